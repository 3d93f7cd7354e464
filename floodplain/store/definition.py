"""Defining a table: what a user says of it, checked and turned into a schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.keys import check_key_type
from floodplain.store import folds
from floodplain.tiers.paths import checked_name
from floodplain.versions.schema import PROCESSING_TIME, Field, Shape, TableSchema, type_to_bytes, value_to_bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A value column: its type, what it is where nothing was written, how it merges, how long it lives."""

    type: pa.DataType
    default: Any = None
    merge: str = ""
    """``sum``, ``min``, ``max``, ``count``, ``append``, or what ``register_merge`` returned."""
    ttl_ms: int = 0


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
    checked_name("table", name)
    columns = {column: Column(given) if isinstance(given, pa.DataType) else given for column, given in values.items()}
    names = [*keys, *subkeys, *columns]
    for column in names:
        checked_name("column", column)
        if column.startswith("_"):
            raise SchemaMismatch(f"table {name}: column {column} starts with _, which is kept for the store's own")
    if len(set(names)) != len(names):
        raise SchemaMismatch(f"table {name}: a column name stands twice among {', '.join(names)}")
    if not keys or (shape == "hashed" and not subkeys):
        raise SchemaMismatch(f"table {name} needs at least one {'key' if not keys else 'sub-key'} column")
    for column, type_ in {**keys, **(subkeys if shape == "hashed" else {})}.items():
        check_key_type(column, type_)
    _check_ttl(name, "the table", ttl_ms)
    ids = iter(range(1, len(names) + 1))
    return TableSchema(
        table=name,
        id=1,
        shape=shape,
        keys=tuple(Field(next(ids), column, type_to_bytes(type_)) for column, type_ in keys.items()),
        subkeys=tuple(Field(next(ids), column, type_to_bytes(type_)) for column, type_ in subkeys.items()),
        values=tuple(_value(name, next(ids), column, given) for column, given in columns.items()),
        next_field=len(names) + 1,
        ttl_ms=ttl_ms,
        ttl_clock=checked_name("watermark", ttl_clock),
    )


def _value(table: str, id_: int, name: str, column: Column) -> Field:
    _check_ttl(table, f"column {name}", column.ttl_ms)
    if column.merge:
        known = folds.is_builtin(column.merge) or folds.find(column.merge) is not None
        problem = (
            folds.check_type(column.merge, column.type) if known else f"no merge is called {column.merge!r}: register it first"
        )
        if problem:
            raise SchemaMismatch(f"table {table}: column {name}: {problem}")
    try:
        default = b"" if column.default is None else value_to_bytes(pa.scalar(column.default, column.type))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatch(
            f"table {table}: default {column.default!r} of column {name} is not a {column.type}: {error}"
        ) from error
    return Field(id_, name, type_to_bytes(column.type), default, column.merge, column.ttl_ms)


def _check_ttl(table: str, what: str, ttl_ms: int) -> None:
    if ttl_ms < 0:
        raise SchemaMismatch(f"table {table}: {what} has a negative time to live of {ttl_ms} ms")
