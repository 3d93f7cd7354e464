"""Columns written under an older type as columns of a newer one, whole arrays at a time."""

import numpy as np
import pyarrow as pa

from floodplain.store.rows.widening import TypeNode, default_of, inside, part_of
from floodplain.versions.records.schema import Field


def reshaped(column: pa.Array | pa.ChunkedArray, before: Field, wanted: Field) -> pa.Array | pa.ChunkedArray:
    """What was written under ``before`` as ``wanted``, a later version of the same column, has it.

    Fields that structs did not have are null, or what the column's default has in their place; what is null stays null.
    Requires: ``problems`` found none.
    """
    one, other, default = part_of(before), part_of(wanted), default_of(wanted)
    if one == other:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_as(chunk, one, other, default) for chunk in column.chunks], wanted.arrow)
    return _as(column, one, other, default)


def _as(array: pa.Array, before: TypeNode, wanted: TypeNode, default: pa.Scalar | None) -> pa.Array:
    if before == wanted:
        return array
    if pa.types.is_null(before.type):
        return pa.nulls(len(array), wanted.type)
    match wanted.kind:
        case "value":
            return array.cast(wanted.type)
        case "struct":
            return _struct(array, before, wanted, default)
        case "map" | "list":
            return _listed(array, before, wanted)
        case _:
            values = array.values.slice(array.offset * wanted.type.list_size, len(array) * wanted.type.list_size)
            children = [_as(values, before.parts[0], wanted.parts[0], None)]
            return pa.Array.from_buffers(wanted.type, len(array), [_validity(array)], children=children)


def _struct(array: pa.Array, before: TypeNode, wanted: TypeNode, default: pa.Scalar | None) -> pa.Array:
    had = {part.id: (number, part) for number, part in enumerate(before.parts)}
    children = []
    for part in wanted.parts:
        filling = inside(default, part)
        if part.id in had:
            number, old = had[part.id]
            children.append(_as(array.field(number), old, part, filling))
        else:
            children.append(pa.nulls(len(array), part.type) if filling is None else pa.repeat(filling, len(array)))
    return pa.Array.from_buffers(wanted.type, len(array), [_validity(array)], children=children)


def _listed(array: pa.Array, before: TypeNode, wanted: TypeNode) -> pa.Array:
    """A list or map: its elements are those between the first and the last of its offsets, wherever it was cut out."""
    offsets = array.offsets.to_numpy()
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    wide = np.int64 if pa.types.is_large_list(wanted.type) else np.int32
    starts = pa.py_buffer((offsets - offsets[0]).astype(wide))
    if wanted.kind == "list":
        inner = _as(values, before.parts[0], wanted.parts[0], None)
    else:
        both = zip(before.parts, wanted.parts, strict=True)
        pairs = [_as(values.field(number), *parts, None) for number, parts in enumerate(both)]
        inner = pa.Array.from_buffers(wanted.type.field(0).type, len(values), [None], children=pairs)
    return pa.Array.from_buffers(wanted.type, len(array), [_validity(array), starts], children=[inner])


def _validity(array: pa.Array) -> pa.Buffer | None:
    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
