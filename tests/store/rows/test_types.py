"""Values of every Arrow type go in and come out: through runs, lookups, later epochs, compaction and diffs."""

import struct
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import SchemaMismatch
from floodplain.store.rows.definition import MOST_DEPTH, list_table, map_table, timer_table, value_table
from floodplain.store.store import Store
from tests.store import forge

TYPES = [
    pa.null(),
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 10), pa.decimal256(76, 3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("ms"), pa.month_day_nano_interval()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(5), pa.binary(0)),
    *(pa.list_(pa.string()), pa.large_list(pa.int8()), pa.list_(pa.float32(), 3), pa.list_(pa.int8(), 0)),
    pa.struct([]),
    pa.struct([("a", pa.int8()), ("b", pa.struct([("c", pa.string()), ("d", pa.timestamp("us", "UTC"))]))]),
    pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.string(), metadata={"k": "v"})]),
    pa.map_(pa.string(), pa.list_(pa.int8())),
    pa.list_(
        pa.struct(
            [("a", pa.map_(pa.int32(), pa.list_(pa.struct([("z", pa.large_list(pa.decimal128(5, 1)))])))), ("b", pa.bool_())]
        )
    ),
]


def ints(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else st.integers(0, (1 << bits) - 1)


def leaf(type_: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: C901
    if pa.types.is_null(type_):
        return st.none()
    if pa.types.is_boolean(type_):
        return st.booleans()
    if pa.types.is_integer(type_):
        return ints(type_.bit_width, signed=pa.types.is_signed_integer(type_))
    if pa.types.is_floating(type_):
        return st.floats(width=type_.bit_width, allow_nan=False)
    if pa.types.is_decimal(type_):
        return st.integers(-(10**type_.precision) + 1, 10**type_.precision - 1).map(
            lambda n: Decimal(n).scaleb(-type_.scale, Context(prec=80))
        )
    if pa.types.is_date64(type_):
        return st.integers(-(10**5), 10**5).map(lambda days: days * 86_400_000)
    if pa.types.is_time(type_):
        return st.integers(0, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit] * 86_400 - 1)
    if pa.types.is_interval(type_):
        return st.tuples(ints(32), ints(32), ints(64))
    if pa.types.is_temporal(type_):
        return ints(40 if str(type_).endswith(("[s]", "[ms]")) else type_.bit_width)
    if pa.types.is_fixed_size_binary(type_):
        return st.binary(min_size=type_.byte_width, max_size=type_.byte_width)
    return st.text(max_size=6) if "string" in str(type_) else st.binary(max_size=6)


def values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, nulls among them wherever they may stand."""
    if pa.types.is_map(type_):
        inner = st.lists(st.tuples(leaf(type_.key_type), values(type_.item_type)), max_size=3)
    elif pa.types.is_fixed_size_list(type_):
        inner = st.lists(values(type_.value_type), min_size=type_.list_size, max_size=type_.list_size)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        inner = st.lists(values(type_.value_type), max_size=3)
    elif pa.types.is_struct(type_):
        inner = st.fixed_dictionaries({f.name: values(f.type) if f.nullable else leaf(f.type) for f in type_})
    else:
        inner = leaf(type_)
    return st.none() | inner


def by_key(store: Store, key: str = "k") -> pa.Table:
    return store.snapshot().table("t").to_arrow().sort_by(key)


@pytest.mark.parametrize("tier", ["plain", "compressed"])
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_values_come_back(type_: pa.DataType, tier: str) -> None:
    @settings(max_examples=4, deadline=None, derandomize=True, database=None)
    @given(st.lists(values(type_), min_size=1, max_size=12), st.lists(values(type_), max_size=5))
    def check(first: list[Any], second: list[Any]) -> None:
        store = forge.with_table(
            value_table("t", {"k": pa.int64()}, {"v": type_}), forge.objects() if tier == "compressed" else None
        )
        forge.write(store, "t", ("put", {"k": range(len(first)), "v": pa.array(first, type_)}))
        forge.write(store, "t", ("put", {"k": range(1, 1 + len(second)), "v": pa.array(second, type_)}))
        merged = [*first[:1], *second, *first[1 + len(second) :]]
        expected = pa.array(merged, type_)
        keys = pa.table({"k": range(len(merged))})
        found = by_key(store)
        assert found.column("v").type.equals(type_, check_metadata=True)
        assert found.column("v").combine_chunks().equals(expected)
        assert store.snapshot().table("t").multi_get(keys).aligned().column("v").combine_chunks().equals(expected)
        list(store.compact(full=True))
        assert by_key(store).column("v").combine_chunks().equals(expected)
        assert sum(len(change.before) + len(change.added) for change in store.diff("t", 1, 2)) <= len(second)
        assert store.verify().good

    check()


@pytest.mark.parametrize(("type_", "code"), [(pa.float32(), "f"), (pa.float64(), "d")])
def test_floats_keep_their_bits_as_values_and_are_one_as_keys(type_: pa.DataType, code: str) -> None:
    nan = struct.unpack(f"<{code}", b"\x01" * (type_.bit_width // 8 - 2) + b"\xf0\x7f")[0]
    array = pa.array(np.array([0.0, -0.0, nan, float("inf"), 5e-324], type_.to_pandas_dtype()))
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": type_}))
    forge.write(store, "t", ("put", {"k": range(5), "v": array}))
    assert by_key(store).column("v").combine_chunks().buffers()[1].to_pybytes() == array.buffers()[1].to_pybytes()
    store = forge.with_table(value_table("t", {"k": type_}, {"v": pa.int64()}))
    forge.write(store, "t", ("put", {"k": array, "v": range(5)}))
    assert store.snapshot().table("t").count() == 4 - (type_ == pa.float32())
    assert store.snapshot().table("t").multi_get(pa.table({"k": pa.array([0.0, -0.0], type_)})).aligned()["v"].to_pylist() == (
        [1, 1] if type_ == pa.float64() else [4, 4]
    )


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_keys_and_sub_keys_of_every_type_that_can_be_one(type_: pa.DataType) -> None:
    try:
        schema = map_table("t", {"k": type_}, {"s": type_}, {"v": pa.int64()})
    except SchemaMismatch as refused:
        assert "column k" in str(refused)
        return

    @settings(max_examples=4, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.tuples(values(type_), values(type_)), min_size=1, max_size=10))
    def check(pairs: list[tuple[Any, Any]]) -> None:
        store = forge.with_table(schema)
        columns = {"k": pa.array([k for k, _ in pairs], type_), "s": pa.array([s for _, s in pairs], type_)}
        forge.write(store, "t", ("put", {**columns, "v": range(len(pairs))}))
        newest = {repr(pair).replace("-0.0", "0.0"): n for n, pair in enumerate(pairs)}
        found = store.snapshot().table("t").multi_get(pa.table(columns))
        assert found.found.all()
        assert found.rows["v"].to_pylist() == [newest[repr(pairs[n]).replace("-0.0", "0.0")] for n in found.key_number]
        assert store.snapshot().table("t").count() == len(newest)

    check()


REFUSED = {
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "inner dictionary": pa.list_(pa.dictionary(pa.int8(), pa.string())),
    "run ends": pa.run_end_encoded(pa.int32(), pa.int8()),
    "dense union": pa.dense_union([pa.field("a", pa.int8())]),
    "sparse union": pa.sparse_union([pa.field("a", pa.int8())]),
    "string view": pa.string_view(),
    "binary view": pa.binary_view(),
    "list view": pa.list_view(pa.int8()),
    "large list view": pa.large_list_view(pa.int8()),
    "extension": pa.uuid(),
    "inner extension": pa.struct([("a", pa.uuid())]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_no_run_could_hold_are_refused_when_defined(name: str) -> None:
    for values_ in ({"v": REFUSED[name]}, {"v": pa.list_(REFUSED[name])}):
        with pytest.raises(SchemaMismatch, match="column v"):
            value_table("t", {"k": pa.int64()}, values_)
    with pytest.raises(SchemaMismatch, match="column k"):
        value_table("t", {"k": REFUSED[name]}, {})


def nested(levels: int) -> pa.DataType:
    type_ = pa.int8()
    for _ in range(levels):
        type_ = pa.list_(type_)
    return type_


def test_the_deepest_type_works_and_a_deeper_one_is_refused() -> None:
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": nested(MOST_DEPTH)}))
    value: Any = 7
    for _ in range(MOST_DEPTH):
        value = [value]
    forge.write(store, "t", ("put", {"k": [1], "v": pa.array([value], nested(MOST_DEPTH))}))
    assert forge.rows(store, "t") == [{"k": 1, "v": value}]
    for levels in (MOST_DEPTH + 1, 64, 300):
        with pytest.raises(SchemaMismatch, match="deep"):
            value_table("t", {"k": pa.int64()}, {"v": nested(levels)})


def test_encodings_of_a_type_are_the_type() -> None:
    """What a caller has as a dictionary or a view is stored plainly."""
    store = forge.with_table(value_table("t", {"k": pa.string()}, {"v": pa.string()}))
    forge.write(
        store, "t", ("put", {"k": pa.array(["a", "b"]).dictionary_encode(), "v": pa.array(["x", None], pa.string_view())})
    )
    chunked = pa.chunked_array([["c"], [], ["d"]], pa.large_string())
    forge.write(store, "t", ("put", pa.table({"k": chunked, "v": chunked})))
    assert sorted((row["k"], row["v"] or "") for row in forge.rows(store, "t")) == [("a", "x"), ("b", ""), ("c", "c"), ("d", "d")]


def test_nothing_in_nothing_out() -> None:
    tables = [
        value_table("t", {"k": pa.int64()}, {"v": pa.string()}),
        list_table("t", {"k": pa.int64()}, {}),
        map_table("t", {"k": pa.int64()}, {"s": pa.string()}, {}),
        timer_table("t", {"k": pa.int64()}),
    ]
    for schema in tables:
        store = forge.with_table(schema)
        empty = store.snapshot().table("t").to_arrow()
        assert len(empty) == 0
        forge.write(store, "t", ("put", empty))
        assert store.head.epoch == 1
        assert store.head.runs.get("t", ()) == ()
        assert store.snapshot().table("t").to_arrow().equals(empty)
        assert len(store.snapshot().table("t").multi_get(pa.table({"k": pa.array([], pa.int64())})).rows) == 0
