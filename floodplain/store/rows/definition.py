"""Table definitions: checks what a user declares and makes a schema of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from floodplain import lossless
from floodplain.errors import BadName, Corrupt, SchemaMismatch
from floodplain.keys import check_key_type
from floodplain.store.rows import merge_functions
from floodplain.store.rows.widening import check_ids
from floodplain.tiers.paths import checked_name
from floodplain.versions.records.schema import PROCESSING_TIME, Field, Shape, TableSchema, type_to_bytes, value_to_bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A value column: its type, what it is where nothing was written, how it merges, how long it lives."""

    type: pa.DataType
    default: Any = None
    merge: str = ""
    """``sum``, ``min``, ``max``, ``count``, ``append``, or what ``register_merge`` returned."""
    ttl_ms: int = 0


MOST_TTL_MS = 1 << 53
"""Some 285,000 years: far enough that times of day plus this stay within 64 bits."""

MOST_DEPTH = 32
"""Of nested types; Arrow's own format ends at 64."""

Types = Mapping[str, pa.DataType]
Values = Mapping[str, pa.DataType | Column]


def value_table(name: str, keys: Types, values: Values, *, ttl_ms: int = 0, ttl_clock: str = PROCESSING_TIME) -> TableSchema:
    """One row per key."""
    return _schema(name, "value", keys, {}, values, ttl_ms, ttl_clock)


def list_table(
    name: str, keys: Types, values: Values, *, position: str = "position", ttl_ms: int = 0, ttl_clock: str = PROCESSING_TIME
) -> TableSchema:
    """Rows of a key in the order of an unsigned 64-bit position."""
    return _schema(name, "ordered", keys, {position: pa.uint64()}, values, ttl_ms, ttl_clock)


def map_table(
    name: str, keys: Types, subkeys: Types, values: Values, *, ttl_ms: int = 0, ttl_clock: str = PROCESSING_TIME
) -> TableSchema:
    """One row per key and sub-key; sub-keys may be of any type that a key can have. With no values it is a set."""
    return _schema(name, "hashed", keys, subkeys, values, ttl_ms, ttl_clock)


def timer_table(name: str, keys: Types, values: Values | None = None, *, time: str = "at") -> TableSchema:
    """Rows in time order, a signed number of milliseconds; many per key, and findable by key."""
    return _schema(name, "time", keys, {time: pa.int64()}, values or {}, 0, PROCESSING_TIME)


def _schema(name: str, shape: Shape, keys: Types, subkeys: Types, values: Values, ttl_ms: int, ttl_clock: str) -> TableSchema:
    columns = {column: Column(declared) if isinstance(declared, pa.DataType) else declared for column, declared in values.items()}
    names = [*keys, *subkeys, *columns]
    _check_names(name, names)
    _check_keys(name, shape, keys, subkeys)
    _check_ttl(name, "the table", ttl_ms)
    ids = iter(range(1, len(names) + 1))
    return TableSchema(
        table=name,
        id=1,
        shape=shape,
        keys=tuple(Field(next(ids), column, type_to_bytes(type_)) for column, type_ in keys.items()),
        subkeys=tuple(Field(next(ids), column, type_to_bytes(type_)) for column, type_ in subkeys.items()),
        values=tuple(_value(name, next(ids), column, declared) for column, declared in columns.items()),
        next_field=len(names) + 1,
        ttl_ms=ttl_ms,
        ttl_clock=checked_name("watermark", ttl_clock),
    )


@lru_cache(maxsize=1024)
def recorded(schema: TableSchema) -> TableSchema:
    """``schema`` as it stands in the log. Raises ``Corrupt`` if no definition can have led to it."""
    try:
        _check_recorded(schema)
    except (SchemaMismatch, BadName, pa.ArrowException, OSError, ValueError, IndexError, StopIteration) as error:
        raise Corrupt(f"schema {schema.id} of table {schema.table!r}", "a definition", str(error)) from error
    return schema


def _check_recorded(schema: TableSchema) -> None:
    _check_names(schema.table, [field.name for field in schema.fields])
    keys, subkeys = ({field.name: field.arrow for field in fields} for fields in (schema.keys, schema.subkeys))
    _check_keys(schema.table, schema.shape, keys, subkeys)
    _check_ttl(schema.table, "the table", schema.ttl_ms)
    checked_name("watermark", schema.ttl_clock)
    ids = [field.id for field in schema.fields]
    if len(set(ids)) != len(ids) or not all(0 < id_ < schema.next_field for id_ in ids):
        raise SchemaMismatch(f"table {schema.table}: field ids {ids} are not different numbers below {schema.next_field}")
    for field in schema.fields:
        check_ids(field)
    for field in schema.values:
        _check_type(schema.table, field.name, field.arrow)
        _check_ttl(schema.table, f"column {field.name}", field.ttl_ms)
        problem = merge_functions.check_type(field.merge, field.arrow)
        if problem or not _is_default(field):
            raise SchemaMismatch(f"table {schema.table}: column {field.name}: {problem or 'a default of another type'}")


def _is_default(field: Field) -> bool:
    if not field.default:
        return True
    with pa.ipc.open_stream(pa.py_buffer(field.default)) as reader:
        batch = reader.read_next_batch()
    batch.validate(full=True)
    return len(batch) == 1 and batch.schema.types == [field.arrow]


def _check_names(table: str, names: Sequence[str]) -> None:
    checked_name("table", table)
    for column in names:
        checked_name("column", column)
        if column.startswith("_"):
            raise SchemaMismatch(f"table {table}: column {column} starts with _, which is kept for the store's own")
    if len(set(names)) != len(names):
        raise SchemaMismatch(f"table {table}: a column name stands twice among {', '.join(names)}")


def _check_keys(table: str, shape: Shape, keys: Types, subkeys: Types) -> None:
    if not keys or (shape == "hashed" and not subkeys):
        raise SchemaMismatch(f"table {table} needs at least one {'key' if not keys else 'sub-key'} column")
    for column, type_ in {**keys, **(subkeys if shape == "hashed" else {})}.items():
        check_key_type(column, type_)
        _check_type(table, column, type_)
    wanted = {"value": [], "ordered": [pa.uint64()], "time": [pa.int64()]}.get(shape, [*subkeys.values()])
    if [*subkeys.values()] != wanted:
        raise SchemaMismatch(f"table {table} of shape {shape} has sub-keys of types {wanted}, not {[*subkeys.values()]}")


def _check_type(table: str, column: str, type_: pa.DataType, depth: int = 0) -> None:
    """Refuse what Arrow cannot sort, compare and write chunk by chunk."""
    refused = any(is_one(type_) for is_one in _REFUSED) or isinstance(type_, pa.BaseExtensionType)
    if refused or depth > MOST_DEPTH:
        problem = f"{type_} cannot be stored: cast it to a plain type" if refused else f"is nested more than {MOST_DEPTH} deep"
        raise SchemaMismatch(f"table {table}: column {column}: {problem}")
    for position in range(type_.num_fields):
        _check_type(table, column, type_.field(position).type, depth + 1)


_REFUSED = (
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _value(table: str, id_: int, name: str, column: Column) -> Field:
    _check_type(table, name, column.type)
    _check_ttl(table, f"column {name}", column.ttl_ms)
    if column.merge:
        known = merge_functions.is_builtin(column.merge) or merge_functions.find(column.merge) is not None
        problem = (
            merge_functions.check_type(column.merge, column.type)
            if known
            else f"no merge is called {column.merge!r}: register it first"
        )
        if problem:
            raise SchemaMismatch(f"table {table}: column {name}: {problem}")
    try:
        default = b"" if column.default is None else value_to_bytes(_default(column.default, column.type))
    except lossless.UNFIT as error:
        raise SchemaMismatch(
            f"table {table}: default {column.default!r} of column {name} is not a {column.type}: {error}"
        ) from error
    return Field(id_, name, type_to_bytes(column.type), default, column.merge, column.ttl_ms)


def _default(value: Any, type_: pa.DataType) -> pa.Scalar:
    """Raises one of ``UNFIT`` if the type would keep another value."""
    made = pa.scalar(value, type_)
    if not pa.types.is_nested(type_):  # of one that is, Arrow would take a tuple or pairs for another kind
        lossless.cast(pa.array([value]), type_)
    return made


def _check_ttl(table: str, what: str, ttl_ms: int) -> None:
    if not 0 <= ttl_ms <= MOST_TTL_MS:
        raise SchemaMismatch(f"table {table}: {what} has a time to live of {ttl_ms} ms; use 0 (for ever) to {MOST_TTL_MS}")
