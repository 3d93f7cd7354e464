"""Rows as values of a state: structs of all columns but the keys, which the state has already."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.store.rows.layout import one_array
from floodplain.structs import field_at, fields_of


def struct_type(rows: pa.Schema, keys: Sequence[str], what: str) -> pa.StructType:
    """The struct type of rows of this schema."""
    fields = [pa.field(field.name, field.type) for field in rows if field.name not in keys]
    if not fields:
        raise BadInput(f"{what}: the rows have no columns but the keys {', '.join(keys)}")
    return pa.struct(fields)


def as_struct(rows: pa.Table, kind: pa.StructType) -> pa.StructArray:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return pa.StructArray.from_arrays([one_array(rows.column(field.name)).cast(field.type) for field in fields], fields=fields)


def field_of(structs: pa.StructArray, name: str) -> pa.Array:
    return field_at(structs, structs.type.get_field_index(name))


def as_rows(batch: Any, owner: np.ndarray, structs: pa.StructArray, keys: Sequence[str], rows: pa.Schema) -> pa.Table:
    """Rows of the input schema, from stored structs and the key number of each."""
    at = pa.array(owner)
    columns = {name: batch.keys.column(number).take(at) for number, name in enumerate(keys)}
    columns |= zip((field.name for field in structs.type), fields_of(structs), strict=True)
    return pa.Table.from_arrays([columns[field.name] for field in rows], names=rows.names)
