"""What a key is: its hash, its group, and when two keys are the same.

The hash is Spark's ``xxhash64``, bit for bit, so a row hashed in the JVM and a lookup from Python meet at the same number.
Equality is Spark's grouping equality: null = null, NaN = NaN, −0.0 = 0.0. Equal keys have equal hashes, not the other way round.
"""

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.xxh64 import Flags, Hashes, Places, Values, hash_bytes, hash_ints, hash_longs

Column: TypeAlias = pa.Array | pa.ChunkedArray

MAX_KEY_GROUPS = 65_536

_SEED = 42
# Some twenty passes are made over each block: small enough for the CPU cache, large enough to hide the cost of a NumPy call.
_BLOCK_ROWS = 16_384

_DICTIONARY = pa.dictionary(pa.int8(), pa.null()).id
_STRUCT = pa.struct([]).id
_MAP = pa.map_(pa.int8(), pa.int8()).id
_FIXED_LIST = pa.list_(pa.null(), 1).id
_FIXED_BINARY = pa.binary(1).id
_LISTS = frozenset((pa.list_(pa.null()).id, pa.large_list(pa.null()).id, _FIXED_LIST))
_WIDE_OFFSETS = frozenset((pa.large_list(pa.null()).id, pa.large_string().id, pa.large_binary().id))
_VIEWS = frozenset((pa.string_view().id, pa.binary_view().id))
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

_INTS = {pa.int8().id: "<i1", pa.int16().id: "<i2", pa.int32().id: "<i4", pa.date32().id: "<i4"}
_FLOATS = {pa.float32().id: "<f4", pa.float64().id: "<f8"}
_TIMES = dict.fromkeys((pa.timestamp("us").id, pa.duration("us").id, pa.time64("us").id), "<i8")
_PAIR = np.dtype((np.int64, 2))
_PAIRS = {pa.decimal128(1).id: _PAIR, pa.month_day_nano_interval().id: _PAIR}
_DTYPES: dict[int, npt.DTypeLike] = {**_INTS, **_FLOATS, **_TIMES, **_PAIRS, pa.int64().id: "<i8", pa.float16().id: "<f2"}


def check_key_type(name: str, type: pa.DataType) -> None:  # noqa: A002
    """Refuse a column that cannot be a key: one that Spark has no type for, or does not hash.

    An Arrow type does not show a string's collation; collated strings must be refused where the Spark type is known.
    """
    culprit = _unhashable(type)
    if culprit is not None:
        inside = "" if culprit == type else f" because of the {culprit} inside it"
        raise SchemaMismatch(
            f"column {name} of type {type} cannot be a key{inside}: Spark does not hash it. "
            "Cast it to a type that Spark hashes (a signed integer, string, binary, decimal, date or timestamp)"
        )


def hash_columns(columns: Sequence[Column]) -> Hashes:
    """Spark's ``xxhash64(c1, c2, …)`` of each row, as an unsigned number.

    Requires: at least one column, all of one length, each of a type that ``check_key_type`` accepts.
    """
    for position, column in enumerate(columns):
        check_key_type(f"#{position}", column.type)
    whole = [_whole(column) for column in columns]
    hashes = np.full(_row_count(whole), _SEED, np.uint64)
    for start in range(0, len(hashes), _BLOCK_ROWS):
        block = hashes[start : start + _BLOCK_ROWS]
        for column in whole:
            block[:] = _fold(block, column.slice(start, _BLOCK_ROWS))
    return hashes


def normalize_keys(columns: Sequence[Column]) -> list[pa.Array]:
    """The form in which equal keys have equal bytes: one chunk, no dictionary, +0.0 for −0.0, one NaN; nested floats too.

    A column that is already in this form is returned as it is. Nothing else changes; a map is not looked into.
    """
    return [_canonical(_whole(column)) for column in columns]


def columns_equal(left: Sequence[Column], right: Sequence[Column]) -> Flags:
    """For each row, whether all columns are equal by grouping equality. Maps are equal if their entries are, in order.

    Requires: at least one column; both sides have the same number of columns, of the same types and lengths.
    """
    if len(left) != len(right):
        raise BadInput(f"{len(left)} columns cannot be compared with {len(right)}")
    lefts, rights = [_whole(column) for column in left], [_whole(column) for column in right]
    return _all_equal(_row_count(lefts + rights), list(zip(lefts, rights, strict=True)))


def key_group(hashes: Hashes, key_groups: int) -> npt.NDArray[np.int32]:
    """The group of each hash: its top bits, so the order of hashes is the order of groups for every number of groups."""
    bits = _group_bits(key_groups)
    if bits == 0:
        return np.zeros(len(hashes), np.int32)
    return (hashes >> np.uint64(64 - bits)).astype(np.int32)


def key_group_of(hash_: int, key_groups: int) -> int:
    """As ``key_group``, of one hash."""
    return hash_ >> 64 - _group_bits(key_groups)


def group_bounds(lo: int, hi: int, key_groups: int) -> tuple[int, int]:
    """The first and the last hash, both inclusive, of the groups ``lo`` to ``hi - 1``."""
    shift = 64 - _group_bits(key_groups)
    if not 0 <= lo < hi <= key_groups:
        raise BadInput(f"groups {lo} to {hi} (exclusive) are not a range within 0 to {key_groups}")
    return lo << shift, (hi << shift) - 1


@lru_cache
def group_firsts(key_groups: int) -> Hashes:
    """The first hash of each group. Shared by all who ask: not to be written to."""
    firsts = np.arange(key_groups, dtype=np.uint64) << np.uint64((64 - _group_bits(key_groups)) % 64)
    firsts.flags.writeable = False
    return firsts


def _group_bits(key_groups: int) -> int:
    if not 1 <= key_groups <= MAX_KEY_GROUPS or key_groups & (key_groups - 1):
        raise BadInput(f"the number of key groups must be a power of two from 1 to {MAX_KEY_GROUPS}, not {key_groups}")
    return key_groups.bit_length() - 1


# --- Arrow columns as NumPy arrays. Null slots hold anything.


def _whole(column: Column) -> pa.Array:
    """One chunk, and the dictionary of the outermost level decoded."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column.dictionary_decode() if column.type.id == _DICTIONARY else column


def _row_count(columns: Sequence[pa.Array]) -> int:
    lengths = [len(column) for column in columns]
    if len(set(lengths)) != 1:
        raise BadInput(f"one or more columns of equal length are needed, not columns of lengths {lengths}")
    return lengths[0]


def _fixed(column: pa.Array) -> Values:
    dtype = np.dtype(_DTYPES[column.type.id])
    return np.frombuffer(column.buffers()[1] or b"", dtype, len(column), column.offset * dtype.itemsize)


def _bits(column: pa.Array) -> Flags:
    first, skip = divmod(column.offset, 8)
    packed = np.frombuffer(column.buffers()[1] or b"", np.uint8, (skip + len(column) + 7) // 8, first)
    return np.unpackbits(packed, bitorder="little")[skip : skip + len(column)].view(np.bool_)


def _valid(column: pa.Array) -> Flags:
    return _bits(column.is_valid())


def _spans(column: pa.Array) -> tuple[Places, Places]:
    """Where each string, binary, list or map starts in its column's bytes or elements, and its length."""
    if column.type.id in (_FIXED_LIST, _FIXED_BINARY):
        width = column.type.list_size if column.type.id == _FIXED_LIST else column.type.byte_width
        return (np.arange(len(column)) + column.offset) * width, np.full(len(column), width)
    if len(column) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    width = 8 if column.type.id in _WIDE_OFFSETS else 4
    offsets = np.frombuffer(column.buffers()[1], f"<i{width}", len(column) + 1, column.offset * width).astype(np.int64)
    return offsets[:-1], np.diff(offsets)


# --- Hashing by type


def _fold(seeds: Hashes, column: pa.Array) -> Hashes:
    """The running hashes after one more column: a null leaves its row's hash as it was."""
    column = _whole(column)
    hashed = _FOLDS[column.type.id](seeds, column)
    return np.where(_valid(column), hashed, seeds) if column.null_count else hashed


def _fold_float(seeds: Hashes, column: pa.Array) -> Hashes:
    values = _canonical_floats(_fixed(column))
    return hash_ints(seeds, values.view(np.int32)) if values.itemsize == 4 else hash_longs(seeds, values)


def _fold_time(seeds: Hashes, column: pa.Array) -> Hashes:
    """Spark counts a time of day in nanoseconds, everything else that has an Arrow unit in microseconds."""
    target = 10**9 if pa.types.is_time64(column.type) else 10**6
    unit = _UNITS_PER_SECOND[column.type.unit]
    if unit >= target:
        return hash_longs(seeds, _fixed(column) // (unit // target))
    try:
        return hash_longs(seeds, _fixed(pc.multiply_checked(column.view(pa.int64()), target // unit)))
    except pa.ArrowInvalid as error:
        raise BadInput(f"a key of type {column.type} is outside the range that Spark can hold: {error}") from error


def _fold_decimal(seeds: Hashes, column: pa.Array) -> Hashes:
    halves = _fixed(column.cast(pa.decimal128(column.type.precision, column.type.scale)))
    low, high = halves[:, 0], halves[:, 1]
    if column.type.precision <= 18:
        return hash_longs(seeds, np.ascontiguousarray(low))
    # As Java's BigInteger.toByteArray: big-endian, as few bytes as hold the value and its sign.
    sign = high >> 63
    low, high = (low ^ sign).view(np.uint64), (high ^ sign).view(np.uint64)
    lengths = np.ones(len(column), np.int64)
    for bits in range(7, 64, 8):
        lengths += (low >> np.uint64(bits) != 0) | (high != 0)
    for bits in range(7, 56, 8):
        lengths += high >> np.uint64(bits) != 0
    data = np.ascontiguousarray(halves.view(np.uint8)[:, ::-1]).reshape(-1)
    return hash_bytes(seeds, data, 16 * np.arange(1, len(column) + 1) - lengths, lengths)


def _fold_bytes(seeds: Hashes, column: pa.Array) -> Hashes:
    if column.type.id in _VIEWS:
        column = column.cast(pa.large_binary())
    return hash_bytes(seeds, np.frombuffer(column.buffers()[-1] or b"", np.uint8), *_spans(column))


def _fold_struct(seeds: Hashes, column: pa.Array) -> Hashes:
    for position in range(column.type.num_fields):
        seeds = _fold(seeds, column.field(position))
    return seeds


def _fold_list(seeds: Hashes, column: pa.Array) -> Hashes:
    starts, lengths = _spans(column)
    hashes = seeds.copy()
    rows = np.flatnonzero(lengths)
    step = 0
    while rows.size:
        hashes[rows] = _fold(hashes[rows], column.values.take(pa.array(starts[rows] + step)))
        step += 1
        rows = rows[lengths[rows] > step]
    return hashes


_DECIMALS = frozenset(type_.id for type_ in (pa.decimal32(1), pa.decimal64(1), pa.decimal128(1), pa.decimal256(1)))
_BYTES = frozenset(type_.id for type_ in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.binary(1)))
_FOLDS: dict[int, Callable[[Hashes, pa.Array], Hashes]] = {
    pa.null().id: lambda seeds, _: seeds,
    pa.bool_().id: lambda seeds, column: hash_ints(seeds, _bits(column)),
    pa.int64().id: lambda seeds, column: hash_longs(seeds, _fixed(column)),
    _STRUCT: _fold_struct,
    **dict.fromkeys(_INTS, lambda seeds, column: hash_ints(seeds, _fixed(column))),
    **dict.fromkeys(_FLOATS, _fold_float),
    **dict.fromkeys(_TIMES, _fold_time),
    **dict.fromkeys(_DECIMALS, _fold_decimal),
    **dict.fromkeys(_BYTES | _VIEWS, _fold_bytes),
    **dict.fromkeys(_LISTS, _fold_list),
}


def _unhashable(type_: pa.DataType) -> pa.DataType | None:
    """The first type, at any depth, that has no hash in Spark."""
    if type_.id == _DICTIONARY:
        return _unhashable(type_.value_type)
    fields = [type_.field(position) for position in range(type_.num_fields)]
    # Spark sends a variant or a geometry as a struct with a mark in the metadata of a field.
    marked = any({b"variant", b"geometry", b"geography"} & set(field.metadata or {}) for field in fields)
    if type_.id not in _FOLDS or marked or (type_.id in _DECIMALS and type_.precision > 38):
        return type_
    return next(filter(None, (_unhashable(field.type) for field in fields)), None)


# --- Equality


def _canonical_floats(values: Values) -> Values:
    with np.errstate(invalid="ignore"):  # a signalling NaN is no error here
        values = values + values.dtype.type(0)
    values[np.isnan(values)] = np.nan
    return values


def _canonical(column: pa.Array) -> pa.Array:
    """The column itself if it holds nothing to normalise."""
    kind = column.type.id
    if kind in _FLOATS:
        old, new = _fixed(column), _canonical_floats(_fixed(column))
        return column if old.tobytes() == new.tobytes() else pa.array(new, column.type, mask=~_valid(column))
    if kind == _STRUCT:
        return _canonical_struct(column)
    return _canonical_list(column) if kind in _LISTS else column


def _canonical_struct(column: pa.Array) -> pa.Array:
    old = [column.field(position) for position in range(column.type.num_fields)]
    new = [_canonical(_whole(child)) for child in old]
    if all(map(operator.is_, new, old)):
        return column
    fields = [field.with_type(child.type) for field, child in zip(column.type, new, strict=True)]
    return pa.StructArray.from_arrays(new, fields=fields, mask=column.is_null())


def _canonical_list(column: pa.Array) -> pa.Array:
    type_, old = column.type, column.values
    new = _canonical(_whole(old))
    if new is old:
        return column
    element = type_.value_field.with_type(new.type)
    if type_.id == _FIXED_LIST:
        type_ = pa.list_(element, type_.list_size)
    else:
        type_ = pa.large_list(element) if type_.id in _WIDE_OFFSETS else pa.list_(element)
    return pa.Array.from_buffers(type_, len(column), column.buffers()[: type_.num_buffers], offset=column.offset, children=[new])


def _all_equal(rows: int, pairs: Sequence[tuple[pa.Array, pa.Array]]) -> Flags:
    equal = np.ones(rows, np.bool_)
    for left, right in pairs:
        equal &= _equal(_whole(left), _whole(right))
    return equal


def _equal(left: pa.Array, right: pa.Array) -> Flags:
    equal = _equal_values(left, right)
    if left.null_count or right.null_count:
        left_valid, right_valid = _valid(left), _valid(right)
        equal = np.where(left_valid & right_valid, equal, left_valid == right_valid)
    return equal


def _equal_values(left: pa.Array, right: pa.Array) -> Flags:
    """Row by row where both are valid; anything elsewhere."""
    kind = left.type.id if left.type.id == right.type.id else None
    if kind in _LISTS:
        return _equal_lists(left, right, [(left.values, right.values)])
    if kind == _MAP:
        return _equal_lists(left, right, [(left.keys, right.keys), (left.items, right.items)])
    if kind == _STRUCT and [field.name for field in left.type] == [field.name for field in right.type]:
        return _all_equal(len(left), [(left.field(i), right.field(i)) for i in range(left.type.num_fields)])
    if left.type != right.type:
        raise SchemaMismatch(f"columns of types {left.type} and {right.type} cannot be compared: cast one of them")
    if kind in _DTYPES:
        return _equal_fixed(_fixed(left), _fixed(right))
    return np.ones(len(left), np.bool_) if pa.types.is_null(left.type) else _bits(pc.equal(left, right))


def _equal_fixed(left: Values, right: Values) -> Flags:
    same: Flags = left == right
    if left.dtype.kind == "f":
        same |= np.isnan(left) & np.isnan(right)
    return same if same.ndim == 1 else np.all(same, axis=1)


def _equal_lists(left: pa.Array, right: pa.Array, children: Sequence[tuple[pa.Array, pa.Array]]) -> Flags:
    (left_starts, left_lengths), (right_starts, right_lengths) = _spans(left), _spans(right)
    equal = left_lengths == right_lengths
    rows = np.flatnonzero(equal & (left_lengths > 0))
    lengths = left_lengths[rows]
    inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    left_at = pa.array(np.repeat(left_starts[rows], lengths) + inside)
    right_at = pa.array(np.repeat(right_starts[rows], lengths) + inside)
    same = _all_equal(len(inside), [(a.take(left_at), b.take(right_at)) for a, b in children])
    equal[np.repeat(rows, lengths)[~same]] = False
    return equal


def hash_one(values: Sequence[object], types: Sequence[pa.DataType]) -> int | None:
    """The hash of one key, of Python values, as ``hash_columns`` gives it. None for values and types that it does not know: those
    that are not strings and whole numbers, or do not fit."""
    hash_ = _SEED
    for value, type_ in zip(values, types, strict=True):
        data = _bytes_of(value, type_)
        if data is None:
            return None
        hash_ = xxhash.xxh64_intdigest(data, hash_)
    return hash_


def _bytes_of(value: object, type_: pa.DataType) -> bytes | None:
    if type(value) is str and type_.id == _STRING:
        return _encoded(value)
    if type(value) is int and type_.id in _WIDTHS:
        bits = _WIDTHS[type_.id]
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value.to_bytes(max(bits // 8, 4), "little", signed=True)
    return None


def _encoded(value: str) -> bytes | None:
    try:
        return value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None


_STRING = pa.string().id
_WIDTHS = {pa.int8().id: 8, pa.int16().id: 16, pa.int32().id: 32, pa.int64().id: 64}
