"""The physical columns of a table's rows, in memory and in runs.

Order: ``_hash``, ``_sub`` (but for value tables), ``_op``, ``_expires`` (if rows do), then one column ``f<field id>`` per key,
sub-key (of hashed tables; others carry it in ``_sub``) and value, and one ``t<field id>`` per value with its own time to live.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.versions.records.schema import Field, TableSchema

HASH = "_hash"
SUB = "_sub"
OP = "_op"
EXPIRES = "_expires"

PUT, DELETE, CLEAR, MERGE = 0, 1, 2, 3
OPS = {"put": PUT, "delete": DELETE, "clear": CLEAR, "merge": MERGE}

NEVER = int(np.iinfo(np.int64).max)
BEGINNING = int(np.iinfo(np.int64).min)
_SIGN = np.uint64(1 << 63)


def column(field: Field) -> str:
    return f"f{field.id}"


def expires_column(field: Field) -> str:
    """The column that holds when a value with its own time to live ends."""
    return f"t{field.id}"


def expiry_columns(schema: TableSchema) -> list[str]:
    """The columns that hold when rows, or values with a time to live of their own, end."""
    return [EXPIRES] * bool(schema.ttl_ms) + [expires_column(field) for field in schema.values if field.ttl_ms]


def stored_subkeys(schema: TableSchema) -> tuple[Field, ...]:
    """Sub-keys that stand in runs as columns; those of other shapes are their ``_sub``."""
    return schema.subkeys if schema.shape == "hashed" else ()


@lru_cache(maxsize=1024)
def physical(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of the rows of this table."""
    fields = [pa.field(HASH, pa.uint64(), nullable=False)]
    if schema.shape != "value":
        fields.append(pa.field(SUB, pa.uint64(), nullable=False))
    fields.append(pa.field(OP, pa.uint8(), nullable=False))
    if schema.ttl_ms:
        fields.append(pa.field(EXPIRES, pa.int64()))
    fields += [pa.field(column(field), field.arrow) for field in (*schema.keys, *stored_subkeys(schema), *schema.values)]
    fields += [pa.field(expires_column(field), pa.int64()) for field in schema.values if field.ttl_ms]
    return pa.schema(fields)


def numbers(rows: pa.Table | pa.RecordBatch, name: str) -> np.ndarray:
    """A system column as NumPy, without copying where it is one chunk and has no nulls."""
    return one_array(rows.column(name)).to_numpy(zero_copy_only=False)


def expiries(rows: pa.Table | pa.RecordBatch, name: str) -> np.ndarray:
    """A column of times at which rows end; null, for a row written before the table had a time to live, is never."""
    ends = rows.column(name)
    return one_array(ends.fill_null(NEVER)).to_numpy() if ends.null_count else numbers(rows, name)


def column_arrays(rows: pa.Table | pa.RecordBatch, fields: Sequence[Field]) -> list[pa.Array]:
    """The columns of these fields, each as one array."""
    return [one_array(rows.column(column(field))) for field in fields]


def with_columns(rows: pa.Table, values: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """``rows`` with these values in some of its columns, put in place all at once: one by one, each copies the list of all."""
    if not values:
        return rows
    columns = [values.get(name, column) for name, column in zip(rows.column_names, rows.columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def append_columns(rows: pa.Table, more: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """``rows`` with these columns behind its own, added all at once."""
    schema = pa.schema([*rows.schema, *(pa.field(name, values.type) for name, values in more.items())])
    return pa.Table.from_arrays([*rows.columns, *more.values()], schema=schema)


def sub_from_integers(values: pa.Array, field: Field, table: str) -> np.ndarray:
    """Sub-keys of an ordered or time table as unsigned numbers in the same order."""
    if values.null_count:
        raise SchemaMismatch(f"table {table}: column {field.name} orders the rows of a key and cannot be null")
    if pa.types.is_unsigned_integer(field.arrow):
        return values.cast(pa.uint64()).to_numpy(zero_copy_only=False)
    signed = (values.view(pa.int64()) if pa.types.is_temporal(field.arrow) else values.cast(pa.int64())).to_numpy(
        zero_copy_only=False
    )
    return signed.view(np.uint64) ^ _SIGN


def sub_to_integers(sub: np.ndarray, field: Field) -> pa.Array:
    """The inverse of ``sub_from_integers``."""
    if pa.types.is_unsigned_integer(field.arrow):
        return pa.array(sub).cast(field.arrow)
    signed = pa.array((sub ^ _SIGN).view(np.int64))
    return signed.view(field.arrow) if pa.types.is_temporal(field.arrow) else signed.cast(field.arrow)


def sub_of_time(time_ms: int) -> int:
    """Where a time stands among the ``_sub`` of a time table; clamped to what 64 bits hold, and one past that."""
    return min(max(time_ms, -(1 << 63)), 1 << 63) + (1 << 63)


def one_array(data: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(data, pa.ChunkedArray):
        return data
    return data.chunk(0) if data.num_chunks == 1 else data.combine_chunks()


def at_rows(column: Any, rows: np.ndarray) -> Any:
    """``column``, or table, at these rows; neighbours are a slice, which copies nothing."""
    return column.slice(rows[0], len(rows)) if are_neighbours(rows) else column.take(pa.array(rows))


def are_neighbours(rows: np.ndarray) -> bool:
    """Whether these are rows that follow one another."""
    return len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())


def fixed(column: pa.Array | pa.ChunkedArray) -> np.ndarray | None:
    """The values of a column as unsigned numbers of their width, not copied if it is one chunk; None where they have no such
    width, or some are null."""
    if not pa.types.is_primitive(column.type) or column.type.bit_width not in (8, 16, 32, 64) or column.null_count:
        return None
    array, width = one_array(column), column.type.bit_width // 8
    return np.frombuffer(array.buffers()[1] or b"", f"<u{width}", len(array), array.offset * width)


def from_fixed(values: np.ndarray, type_: pa.DataType) -> pa.Array:
    """The inverse of ``fixed``."""
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def clears_first(rows: pa.Table | pa.RecordBatch) -> np.ndarray:
    """A sort column that puts clears before all other rows."""
    return (numbers(rows, OP) != CLEAR).astype(np.uint8)
