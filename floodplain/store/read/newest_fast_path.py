"""The fast path of a multi-get: one put per key, no merge operands. The newest value is copied straight to its output row.

Nothing is resolved, sorted or copied twice. Values of a fixed width go straight from the runs to their places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.store.rows import layout
from floodplain.store.rows.key_equality import KeyColumn, same_keys
from floodplain.store.rows.layout import OP, PUT
from floodplain.store.run.lookup_keys import LookupKeys, Source, candidates
from floodplain.store.run.reader import Hits
from floodplain.versions.records.schema import TableSchema


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one chunk that are the newest of their keys."""

    chunk: pa.RecordBatch
    key_number: np.ndarray
    row: np.ndarray


def newest_values(
    lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema, held: Mapping[int, Mapping[int, pa.RecordBatch]]
) -> tuple[pa.Table, np.ndarray] | None:
    """Physical rows without hashes and keys, in the order of the lookup keys, and the lookup key of each.

    None where this is not the way: rows that fold, expire or are of an older schema, sub-keys, keys that share a hash.
    Requires: lookup keys ascend by hash; sources come newest first.
    """
    if not _may(lookup_keys, sources, schema):
        return None
    parts, pending, unsettled = list[_Rows](), np.arange(len(lookup_keys.hashes)), np.ones(len(lookup_keys.hashes), bool)
    keys = [KeyColumn.of(key) for key in lookup_keys.keys]
    for age, source in enumerate(sources):
        if not len(pending):
            break
        number = candidates(source, lookup_keys, pending)
        for hits in source.reader.find(lookup_keys.hashes[number], None, held.get(age, {})) if len(number) else ():
            key_number = number[hits.key_number]
            stored = [KeyColumn.of(hits.chunk.column(layout.column(field))) for field in source.schema.keys]
            if not same_keys(stored, hits.row, keys, key_number):
                return None
            unsettled[key_number] = False
            parts += _puts(hits, key_number) if source.reader.ref.deletes else [_Rows(hits.chunk, key_number, hits.row)]
        pending = np.flatnonzero(unsettled)
    return _put_together(parts, len(lookup_keys.hashes), schema)


def _may(lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema) -> bool:
    if lookup_keys.subs is not None or schema.shape != "value" or schema.ttl_ms or any(field.ttl_ms for field in schema.values):
        return False
    return all(source.reader.unique and not source.reader.ref.merges and source.schema == schema for source in sources)


def _puts(hits: Hits, key_number: np.ndarray) -> list[_Rows]:
    """What is deleted is settled, too, but has no values."""
    put = np.flatnonzero(layout.numbers(hits.chunk, OP)[hits.row] == PUT)
    return [_Rows(hits.chunk, key_number[put], hits.row[put])]


def _put_together(parts: Sequence[_Rows], lookup_keys: int, schema: TableSchema) -> tuple[pa.Table, np.ndarray]:
    wanted = {layout.column(field) for field in schema.values}
    fields = [field for field in layout.physical(schema) if field.name in wanted]
    there = np.zeros(lookup_keys, bool)
    for part in parts:
        there[part.key_number] = True
    key_number = np.flatnonzero(there)
    place = None if len(key_number) == lookup_keys else np.cumsum(there) - 1
    places = [part.key_number if place is None else place[part.key_number] for part in parts]
    columns = [_column(field, parts, places, len(key_number)) for field in fields]
    ops = pa.array(np.zeros(len(key_number), np.uint8))
    named = pa.schema([layout.physical(schema).field(OP), *fields])
    return pa.Table.from_arrays([ops, *columns], schema=named), key_number


def _column(field: pa.Field, parts: Sequence[_Rows], places: Sequence[np.ndarray], rows: int) -> pa.Array:
    """The values of a column of all parts, each at its place."""
    stored = [part.chunk.column(field.name) for part in parts]
    if all(column.null_count == len(column) for column in stored):
        return pa.nulls(rows, field.type)
    fixed_width = [layout.fixed(column) for column in stored]
    known = [values for values in fixed_width if values is not None]
    if len(known) == len(fixed_width):
        out = np.empty(rows, known[0].dtype)
        for part, values, at in zip(parts, known, places, strict=True):
            out[at] = values.take(part.row)
        return layout.from_fixed(out, field.type)
    taken = pa.concat_arrays([layout.at_rows(column, part.row) for column, part in zip(stored, parts, strict=True)])
    return taken.take(pa.array(np.argsort(np.concatenate(places), kind="stable")))
