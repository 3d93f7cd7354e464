"""Rows of a variable in the columns that Spark's reader has for its kind."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType

from floodplain.keys import hash_columns, normalize_keys
from floodplain.spark.state_reader.variables import StructColumns, Variable
from floodplain.store.rows.layout import one_array
from floodplain.store.rows.row_classes import hash_order, refine, starts_of

_VALUE = {"value": "value", "list": "list_element", "map": "user_map_value"}
"""The column that has the value of a variable of this kind."""


@dataclass(frozen=True)
class Shape:
    """The columns of a read."""

    variable: Variable
    flatten: bool = True
    changes: bool = False
    joined: bool = False
    """Whether it is a side of a join: its rows are called values."""

    @property
    def schema(self) -> StructType:
        variable = self.variable
        made = StructType().add("batch_id", LongType()).add("change_type", StringType()) if self.changes else StructType()
        made.add("key", variable.key.type)
        if variable.kind == "timer":
            return made.add("expiration_timestamp_ms", LongType()).add("partition_id", IntegerType())
        value = self._value_type
        if not self.collected:
            if variable.user_key is not None:
                made.add("user_map_key", variable.user_key.type)
            made.add("value" if self.joined else _VALUE[variable.kind], value)
        elif variable.user_key is not None:
            made.add("map_value", MapType(variable.user_key.type, value))
        else:
            made.add("list_value", ArrayType(value))
        return made.add("partition_id", IntegerType())

    @property
    def collected(self) -> bool:
        """Whether the elements of a key come as one row."""
        return not self.flatten and not self.changes and self.variable.kind in ("list", "map")

    @property
    def arrow(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")

    @property
    def _value_type(self) -> StructType:
        value = self.variable.value.type
        return value if self.variable.ttl is None else StructType().add("value", value).add("ttlExpirationMs", LongType())

    def rows(self, rows: pa.Table, partition: int) -> pa.RecordBatch:
        """Stored rows, which are all of one partition, as this read gives them."""
        variable = self.variable
        rows = rows.filter(pa.array(is_there(variable, rows)))
        if self.collected:
            return self._collected(rows, partition)
        columns = [packed(variable.key, rows)]
        if variable.kind == "timer":
            columns.append(one_array(rows.column(variable.value.columns[0])))
        else:
            columns += [] if variable.user_key is None else [packed(variable.user_key, rows)]
            columns.append(self.values(rows))
        return self.batch([*columns, _constant(partition, len(rows), pa.int32())])

    def values(self, rows: pa.Table) -> pa.Array:
        value = packed(self.variable.value, rows)
        if self.variable.ttl is None:
            return value
        return pa.StructArray.from_arrays([value, one_array(rows.column(self.variable.ttl))], ["value", "ttlExpirationMs"])

    def batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        schema = self.arrow
        arrays = [conformed(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _collected(self, rows: pa.Table, partition: int) -> pa.RecordBatch:
        """One row per key, in the order of its first element. Requires: ``rows`` has all of each key."""
        variable = self.variable
        order, first = by_key(variable, rows)
        rows = rows.take(pa.array(order))
        starts = np.flatnonzero(first)
        offsets = pa.array(np.append(starts, len(rows)), pa.int32())
        value, keys = self.values(rows), packed(variable.key, rows.take(pa.array(starts)))
        if variable.user_key is None:
            made = pa.ListArray.from_arrays(offsets, value)
        else:
            made = pa.MapArray.from_arrays(offsets, packed(variable.user_key, rows), value)
        return self.batch([keys, made, _constant(partition, len(starts), pa.int32())])


def is_there(variable: Variable, rows: pa.Table) -> np.ndarray:
    """Per row, whether it holds a value of the variable: other variables may be columns of the same table."""
    if not variable.shared:
        return np.ones(len(rows), bool)
    there = rows.column(variable.value.columns[0]).is_valid()
    if variable.null_mark is not None:
        there = pc.or_(there, rows.column(variable.null_mark).fill_null(False))
    return one_array(there).to_numpy(zero_copy_only=False)


def by_key(variable: Variable, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The stable order that puts rows of one key side by side, and which of them then are the first of their key."""
    keys = normalize_keys([rows.column(name) for name in variable.key.columns])
    hashes = hash_columns(keys)
    order = hash_order(hashes)
    number = refine(starts_of(hashes[order]), keys, order)
    again = np.argsort(number, kind="stable")
    return order[again], starts_of(number[again])


def packed(struct: StructColumns, rows: pa.Table) -> pa.Array:
    """The struct of Spark's that these columns make."""
    columns = [one_array(rows.column(name)) for name in struct.columns]
    type_ = _arrow(struct.type)
    if struct.whole:
        return conformed(columns[0], type_)
    arrays = [conformed(column, field.type) for column, field in zip(columns, type_, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(type_))


def conformed(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values, of a type that may lack fields of structs, name them otherwise, or say otherwise what may be null."""
    if column.type == type_:
        return column
    if pa.types.is_struct(type_) and pa.types.is_struct(column.type):
        kept = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        by_name = all(field.name in kept for field in type_)
        chosen = [kept[field.name] for field in type_] if by_name else [*kept.values()][: type_.num_fields]
        arrays = [conformed(each, field.type) for each, field in zip(chosen, type_, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=column.is_null())
    try:
        return column.cast(type_)
    except pa.ArrowException:
        return pa.array(column.to_pylist(), type_)


def _arrow(type_: StructType) -> pa.StructType:
    return pa.struct(list(to_arrow_schema(type_, timezone="UTC")))


def _constant(value: int, count: int, type_: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type_), count)
