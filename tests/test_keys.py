import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.keys import check_key_type, columns_equal, group_bounds, group_firsts, hash_columns, key_group, normalize_keys

BYTES = [np.random.default_rng(length).bytes(length) for length in range(201)]
NANS_64 = [
    struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001)
]


def chained(*values: bytes | None) -> int:
    seed = 42
    for value in values:
        if value is not None:
            seed = xxhash.xxh64_intdigest(value, seed)
    return seed


# --- hashes


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_bytes_of_every_length_and_chained_seeds(type_: pa.DataType) -> None:
    forth, back = pa.array(BYTES, type_), pa.array(BYTES[::-1], type_)
    assert hash_columns([forth]).tolist() == [chained(value) for value in BYTES]
    assert hash_columns([forth, back]).tolist() == [chained(a, b) for a, b in zip(BYTES, BYTES[::-1], strict=True)]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 12, 16, 31, 32, 33, 64, 100])
def test_bytes_of_one_length(length: int) -> None:
    values = [np.random.default_rng(row).bytes(length) for row in range(50)]
    expected = [chained(value) for value in values]
    assert hash_columns([pa.array(values)]).tolist() == expected
    assert hash_columns([pa.array(values, pa.binary(length))]).tolist() == expected
    assert hash_columns([pa.array(values, pa.binary(length))[7:20]]).tolist() == expected[7:20]


def test_one_very_long_value_among_short_ones() -> None:
    values = [b"a", b"\x01" * 70_003, b"bc"]
    assert hash_columns([pa.array(values)]).tolist() == [chained(value) for value in values]


@pytest.mark.parametrize(
    ("type_", "code", "values"),
    [
        (pa.int8(), "<i", [0, 1, -1, 127, -128]),
        (pa.int16(), "<i", [0, 1, -1, 2**15 - 1, -(2**15)]),
        (pa.int32(), "<i", [0, 1, -1, 2**31 - 1, -(2**31)]),
        (pa.int64(), "<q", [0, 1, -1, 2**63 - 1, -(2**63)]),
        (pa.float32(), "<f", [0.0, 1.5, -1.5, math.inf]),
        (pa.float64(), "<d", [0.0, 1.5, -1.5, math.inf]),
    ],
    ids=str,
)
def test_numbers_hash_as_their_bytes(type_: pa.DataType, code: str, values: list[Any]) -> None:
    assert hash_columns([pa.array(values, type_)]).tolist() == [chained(struct.pack(code, value)) for value in values]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()], ids=str)
def test_zeros_are_one_and_nans_are_one(type_: pa.DataType) -> None:
    zeros = hash_columns([pa.array([0.0, -0.0], type_)])
    bits, dtype = ([0x7FC00000, 0xFFC00001], "<u4") if type_ == pa.float32() else ([0x7FF8 << 48, 0xFFF8 << 48 | 1], "<u8")
    nans = hash_columns([pa.array(np.array(bits, dtype).view(type_.to_pandas_dtype()), type_, from_pandas=False)])
    assert len(set(zeros.tolist())) == len(set(nans.tolist())) == 1


def test_a_null_leaves_the_hash_and_a_slice_keeps_its_rows() -> None:
    texts = ["a", None, "", "ccc", None, "ä" * 40] * 5
    flags = [True, False, None] * 10
    encoded = [None if text is None else text.encode() for text in texts]
    bits = [None if flag is None else struct.pack("<i", flag) for flag in flags]
    expected = [chained(a, b) for a, b in zip(encoded, bits, strict=True)]
    text_column, flag_column = pa.array(texts), pa.array(flags)
    for start in (0, 1, 7, 8, 9, 29, 30):
        for length in (0, 1, 8, 30):
            found = hash_columns([text_column.slice(start, length), flag_column.slice(start, length)])
            assert found.tolist() == expected[start : start + length]


def test_more_rows_than_a_block_in_chunks_and_dictionaries() -> None:
    values = [f"value {row % 977}" for row in range(40_000)]
    expected = [chained(value.encode()) for value in values]
    plain = pa.array(values)
    assert hash_columns([plain]).tolist() == expected
    assert hash_columns([pa.chunked_array([plain[:11], plain[11:20_000], plain[20_000:]])]).tolist() == expected
    assert hash_columns([plain.dictionary_encode()[3:]]).tolist() == expected[3:]


def test_nested_values_chain_their_leaves() -> None:
    inner = pa.struct([("n", pa.int32()), ("s", pa.string())])
    column = pa.array(
        [[{"n": 1, "s": "a"}, None, {"n": None, "s": "b"}], None, [], [{"n": 2, "s": None}]],
        pa.list_(inner),
    )
    one, two = struct.pack("<i", 1), struct.pack("<i", 2)
    expected = [chained(one, b"a", b"b"), 42, 42, chained(two)]
    assert hash_columns([column]).tolist() == expected
    assert hash_columns([column.cast(pa.large_list(inner))]).tolist() == expected
    assert hash_columns([pa.concat_arrays([column, column])[3:6]]).tolist() == [expected[3], *expected[:2]]
    pairs = pa.array([[1, 2], None, [2, None]], pa.list_(pa.int32(), 2))
    assert hash_columns([pairs[1:]]).tolist() == [42, chained(two)]
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    assert hash_columns([pa.ListArray.from_arrays([0, 2, 3], words)]).tolist() == [chained(b"a", b"b"), chained(b"a")]
    hidden = pa.StructArray.from_arrays([pa.array([7, 8])], ["n"], mask=pa.array([True, False]))
    assert hash_columns([hidden]).tolist() == [42, chained(struct.pack("<q", 8))]


@pytest.mark.parametrize("digits", range(1, 39))
def test_decimals_hash_as_java_writes_them(digits: int) -> None:
    ends = [10**digits - 1, 0, 1, 127, 128, 255, 256, 2**63 - 1, 2**63, 2**64, 2**71 - 1, 2**71, 2**119, 2**120]
    unscaled = [sign * value for value in ends for sign in (1, -1) if value < 10**digits]

    def java(value: int) -> bytes:
        if digits <= 18:
            return struct.pack("<q", value)
        return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)

    expected = [chained(java(value)) for value in unscaled]
    numbers = [Decimal(value) for value in unscaled]
    for make in (pa.decimal128, pa.decimal256):
        column = pa.array(numbers, make(digits, 0))
        assert hash_columns([column]).tolist() == expected
        assert hash_columns([column[1:]]).tolist() == expected[1:]


def test_units_of_time_do_not_matter() -> None:
    seconds = [0, 1, -1, 253_402_300_799, None, -62_135_596_800]
    micros = [None if value is None else value * 10**6 for value in seconds]
    expected = hash_columns([pa.array(micros, pa.int64())]).tolist()
    for make in (pa.timestamp, pa.duration):
        assert hash_columns([pa.array(seconds, make("s"))]).tolist() == expected
        assert hash_columns([pa.array(micros, make("us"))]).tolist() == expected
    assert hash_columns([pa.array(micros, pa.timestamp("us", "Asia/Tokyo"))]).tolist() == expected
    nanos = hash_columns([pa.array([1_999, -1], pa.timestamp("ns"))])
    assert nanos.tolist() == hash_columns([pa.array([1, -1], pa.int64())]).tolist()
    assert hash_columns([pa.array([5], pa.time64("us"))]) == hash_columns([pa.array([5_000], pa.int64())])
    with pytest.raises(BadInput, match="outside the range"):
        hash_columns([pa.array([2**62], pa.timestamp("s"))])


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(
    "type_",
    [
        pa.null(),
        pa.bool_(),
        pa.int32(),
        pa.string(),
        pa.large_string(),
        pa.binary(2),
        pa.decimal128(30),
        pa.list_(pa.int8()),
        pa.struct([]),
    ],
    ids=str,
)
def test_nothing_but_nulls(type_: pa.DataType, rows: int) -> None:
    assert hash_columns([pa.nulls(rows, type_)]).tolist() == [42] * rows
    assert columns_equal([pa.nulls(rows, type_)], [pa.nulls(rows, type_)]).tolist() == [True] * rows
    assert hash_columns([pa.nulls(9, type_)[5 : 5 + rows]]).tolist() == [42] * rows
    assert normalize_keys([pa.nulls(rows, type_)]) == [pa.nulls(rows, type_)]


def test_columns_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(BadInput, match="one or more columns"):
        hash_columns([])
    with pytest.raises(BadInput, match=r"lengths \[1, 2\]"):
        hash_columns([pa.array([1]), pa.array([1, 2])])
    with pytest.raises(BadInput, match="1 columns cannot be compared with 2"):
        columns_equal([pa.array([1])], [pa.array([1]), pa.array([1])])
    with pytest.raises(SchemaMismatch, match="int64 and string"):
        columns_equal([pa.array([1])], [pa.array(["1"])])
    with pytest.raises(SchemaMismatch, match="cast one"):
        columns_equal([pa.array([{"a": 1}])], [pa.array([{"b": 1}])])


VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])


@pytest.mark.parametrize(
    "type_",
    [
        pa.uint8(), pa.uint64(), pa.float16(), pa.date64(), pa.time32("ms"), pa.month_day_nano_interval(), pa.decimal256(39, 0),
        VARIANT, pa.map_(pa.string(), pa.int32()), pa.dense_union([pa.field("a", pa.int8())]), pa.uuid(), pa.list_view(pa.int8()),
        pa.run_end_encoded(pa.int32(), pa.int8()),
    ],
    ids=str,
)  # fmt: skip
def test_types_that_cannot_be_keys(type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"column user of type .* cannot be a key"):
        check_key_type("user", type_)
    for nested in (pa.list_(type_), pa.struct([("a", pa.int8()), ("b", pa.list_(type_))])):
        with pytest.raises(SchemaMismatch, match=r"because of the .* inside it"):
            check_key_type("user", nested)


def test_hashing_names_the_type_it_refuses() -> None:
    with pytest.raises(SchemaMismatch, match="#1 of type uint32"):
        hash_columns([pa.array([1]), pa.array([1], pa.uint32())])


# --- normal form


def test_normal_columns_are_returned_as_they_are() -> None:
    columns = [
        pa.array([1.0, None, math.nan]),
        pa.array(["a"]),
        pa.array([[1.0, None]]),
        pa.array([{"a": 1.0, "b": "x"}]),
        pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
    ]
    assert all(new is old for new, old in zip(normalize_keys(columns), columns, strict=True))


@pytest.mark.parametrize(
    "type_",
    [
        pa.float64(),
        pa.list_(pa.float64()),
        pa.large_list(pa.float64()),
        pa.list_(pa.float64(), 2),
        pa.struct([pa.field("x", pa.float64(), metadata={"k": "v"}), pa.field("s", pa.string())]),
        pa.list_(pa.struct([("x", pa.list_(pa.float64()))])),
    ],
    ids=str,
)
def test_floats_are_normalised_at_every_depth(type_: pa.DataType) -> None:
    def wrap(number: float | None) -> Any:
        if pa.types.is_floating(type_) or number is None:
            return number
        if pa.types.is_struct(type_):
            return {"x": number, "s": "s"}
        return [{"x": [number]}] if pa.types.is_struct(type_.value_type) else [number, None]

    odd = pa.array([wrap(number) for number in (7.0, -0.0, None, 3.0, *NANS_64)], type_)
    plain = pa.array([wrap(number) for number in (7.0, 0.0, None, 3.0, *[math.nan] * 3)], type_)
    for start in (0, 1, 2):
        (found,) = normalize_keys([odd[start:]])
        found.validate(full=True)
        assert found.type.equals(type_, check_metadata=True)
        assert found.null_count == 1 - start // 3
        assert repr(found.to_pylist()) == repr(plain[start:].to_pylist())
        assert columns_equal([found], [odd[start:]]).all()
        assert hash_columns([found]).tolist() == hash_columns([odd[start:]]).tolist()


def test_dictionaries_and_chunks_vanish() -> None:
    words = pa.array(["a", None, "b", "a"])
    nested = pa.ListArray.from_arrays([0, 1, 4], words.dictionary_encode())
    found = normalize_keys([words.dictionary_encode(), pa.chunked_array([words[:1], words[1:]]), nested])
    assert found == [words, words, pa.array([["a"], [None, "b", "a"]])]


# --- equality

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-2, 2)),
    (pa.int64(), st.integers(-2, 2)),
    (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf])),
    (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, *NANS_64])),
    (pa.string(), st.sampled_from(["", "a", "ab", "ä", "x" * 40])),
    (pa.large_binary(), st.sampled_from([b"", b"a", b"\0"])),
    (pa.binary(2), st.sampled_from([b"aa", b"ab"])),
    (pa.decimal128(20, 2), st.sampled_from([Decimal("1.00"), Decimal("-1.00"), Decimal("184467440737095516.16")])),
    (pa.date32(), st.sampled_from([dt.date(1969, 12, 31), dt.date(2000, 1, 1)])),
    (pa.timestamp("us", "UTC"), st.integers(-1, 1)),
    (pa.duration("us"), st.integers(-1, 1)),
    (pa.null(), st.none()),
]  # fmt: skip


def lists_of(child: tuple[pa.DataType, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    type_, values = child
    items = st.one_of(st.none(), values)
    return st.sampled_from(
        [
            (pa.list_(type_), st.lists(items, max_size=3)),
            (pa.large_list(type_), st.lists(items, max_size=3)),
            (pa.list_(type_, 2), st.lists(items, min_size=2, max_size=2)),
            (pa.struct([("x", type_), ("y", pa.int8())]), st.fixed_dictionaries({"x": items, "y": st.integers(0, 1)})),
            (pa.map_(pa.int8(), type_), st.lists(st.tuples(st.integers(0, 1), items), max_size=2)),
        ]
    )


def has_map(type_: pa.DataType) -> bool:
    return pa.types.is_map(type_) or any(has_map(type_.field(i).type) for i in range(type_.num_fields))


TYPED = st.recursive(st.sampled_from(SCALARS), lambda inner: inner.flatmap(lists_of), max_leaves=3)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return all(same(a[name], b[name]) for name in a)
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_equality_and_hashes_against_plain_python(data: st.DataObject) -> None:
    type_, values = data.draw(TYPED)
    rows = data.draw(st.lists(st.tuples(*[st.one_of(st.none(), values)] * 2), max_size=8))
    cut_left, cut_right = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    left = pa.array([None] * cut_left + [a for a, _ in rows], type_)[cut_left:]
    right = pa.array([b for _, b in rows[:1]] * cut_right + [b for _, b in rows], type_)[cut_right if rows else 0 :]
    expected = [same(a, b) for a, b in rows]
    assert columns_equal([left], [right]).tolist() == expected
    assert columns_equal([left, left], [left, right]).tolist() == expected
    if not has_map(type_):
        left_hashes, right_hashes = hash_columns([left]), hash_columns([right])
        assert (left_hashes == right_hashes)[np.array(expected, bool)].all()
        assert hash_columns(normalize_keys([left])).tolist() == left_hashes.tolist()


def test_values_that_are_no_keys_compare_too() -> None:
    intervals = pa.array([(1, 2, 3), (1, 2, 4), None], pa.month_day_nano_interval())
    assert columns_equal([intervals], [intervals.take(pa.array([0, 0, 2]))]).tolist() == [True, False, True]
    small = pa.array([1, 2, None], pa.uint8())
    assert columns_equal([small], [pa.array([1, 3, 4], pa.uint8())]).tolist() == [True, False, False]
    words = pa.array(["a", "b"]).dictionary_encode()
    assert columns_equal([words], [pa.array(["a", "c"])]).tolist() == [True, False]


def test_names_inside_lists_do_not_matter() -> None:
    element = pa.array([[1], None], pa.list_(pa.field("element", pa.int32())))
    item = pa.array([[1], None], pa.list_(pa.field("item", pa.int32(), nullable=False)))
    assert columns_equal([element], [item]).tolist() == [True, True]


# --- groups


@pytest.mark.parametrize("key_groups", [1, 2, 64, 1024, 65_536])
def test_groups_are_ranges_of_hashes(key_groups: int) -> None:
    hashes = np.sort(hash_columns([pa.array(range(5_000))]))
    groups = key_group(hashes, key_groups)
    assert groups.dtype == np.int32
    assert (np.diff(groups) >= 0).all()
    assert 0 <= groups[0] <= groups[-1] < key_groups
    for lo, hi in ((0, 1), (0, key_groups), (key_groups // 2, key_groups)):
        first, last = group_bounds(lo, hi, key_groups)
        inside = (hashes >= np.uint64(first)) & (hashes <= np.uint64(last))
        assert (inside == ((groups >= lo) & (groups < hi))).all()
    assert group_bounds(0, key_groups, key_groups) == (0, 2**64 - 1)
    assert group_firsts(key_groups).tolist() == [group_bounds(group, group + 1, key_groups)[0] for group in range(key_groups)]
    ends = np.array(group_bounds(key_groups - 1, key_groups, key_groups), np.uint64)
    assert key_group(ends, key_groups).tolist() == [key_groups - 1] * 2


@pytest.mark.parametrize("key_groups", [0, -1, 3, 1000, 131_072])
def test_a_bad_number_of_groups(key_groups: int) -> None:
    with pytest.raises(BadInput, match="power of two"):
        key_group(np.zeros(1, np.uint64), key_groups)


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (-1, 2), (3, 2), (0, 9)])
def test_a_bad_range_of_groups(lo: int, hi: int) -> None:
    with pytest.raises(BadInput, match="not a range"):
        group_bounds(lo, hi, 8)
