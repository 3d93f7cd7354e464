"""The definition of a table as the log records it. Columns are known by field id, so names and order may change freely."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import msgspec
import pyarrow as pa

from floodplain.errors import SchemaMismatch

Shape = Literal["value", "ordered", "hashed", "time"]
"""How a table's rows are told apart and sorted.

``value``    one row per key; sorted by hash.
``ordered``  many rows per key, told apart by an integer in 0 .. 2**64-1 that also orders them (lists); sorted by (hash, sub).
``hashed``   many rows per key, told apart by sub-key columns of any type (maps, sets); sorted by (hash, hash of the sub-key).
``time``     many rows per key, told apart by a time in milliseconds (timers); sorted by (key group, time, hash).
"""


PROCESSING_TIME = "processing_time"
"""The watermark that every epoch advances to the time its rows were processed at."""


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column. ``type`` is its Arrow type and ``default`` a value of it, both in Arrow's own encoding."""

    id: int
    name: str
    type: bytes
    default: bytes = b""
    merge: str = ""
    """Name of the merge that folds operands into this column; empty for none."""
    ttl_ms: int = 0
    """This column's own time to live; 0 for none."""
    inner: tuple[int, ...] = ()
    """The ids of the fields of structs inside its type, outer ones before those inside them; empty if they count up from 1."""
    next_inner: int = 0
    """Such ids are never used twice, either; 0 for one more than there are fields."""

    @property
    def arrow(self) -> pa.DataType:
        return type_from_bytes(self.type)


class TableSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a table's definition. ``id`` counts versions within the table, from 1."""

    table: str
    id: int
    shape: Shape
    keys: tuple[Field, ...]
    subkeys: tuple[Field, ...]
    values: tuple[Field, ...]
    next_field: int
    """Field ids are never used twice, so that a column dropped and added again does not find its old values."""
    ttl_ms: int = 0
    """Time to live of a row since it was last written; 0 for ever."""
    ttl_clock: str = PROCESSING_TIME
    """The watermark that tells what has expired, so that every reader of an epoch agrees: that of processing or event time."""

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.keys + self.subkeys + self.values


def type_to_bytes(type_: pa.DataType) -> bytes:
    return pa.schema([pa.field("", type_)]).serialize().to_pybytes()


@lru_cache(maxsize=4096)
def type_from_bytes(data: bytes) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(data)).field(0).type


def value_to_bytes(value: pa.Scalar) -> bytes:
    """A scalar as an Arrow IPC stream of one batch with one row."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array([value.as_py()], value.type)], names=[""])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def value_from_bytes(data: bytes) -> pa.Scalar:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch().column(0)[0]


def same_definition(a: TableSchema, b: TableSchema) -> bool:
    """Whether two versions differ in nothing but their number."""
    return msgspec.structs.replace(a, id=0) == msgspec.structs.replace(b, id=0)


def fields_named(schema: TableSchema, names: Iterable[str]) -> list[Field]:
    """The columns of these names, in their order. Raises ``SchemaMismatch`` for one that the table lacks."""
    known = {field.name: field for field in schema.fields}
    try:
        return [known[name] for name in names]
    except KeyError as missing:
        raise SchemaMismatch(f"table {schema.table} has no column {missing.args[0]!r}; it has {', '.join(known)}") from None


def field_named(schema: TableSchema, name: str) -> Field:
    return fields_named(schema, (name,))[0]
