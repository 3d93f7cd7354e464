"""Merges updates into a larger, older run that has nearly all of their keys: its columns are copied and overwritten.

No row is sorted, and keys, which are the same, are not copied at all. That is what compactions and scans of a table meet whose
keys are updated over and over.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.store.rows import layout
from floodplain.store.rows.key_equality import KeyColumn, same_keys
from floodplain.store.rows.layout import HASH
from floodplain.store.run.interpolation_index import Directory
from floodplain.versions.records.schema import TableSchema

_NEW_ONE_IN = 8
"""Where more than this share of the newer rows have keys that the older run does not, all are better sorted."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """What came of it: both by hash."""

    rows: pa.Table
    """The newest row of each key of the older run."""
    new: list[pa.Table]
    """Rows of other keys, those of newer runs first."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A piece of a newer run as it lies: pieces of one run have no key in common."""

    rows: pa.RecordBatch
    at: np.ndarray
    """Rows of this layer whose key the older run has."""
    over: np.ndarray
    """The row of the older run that each of them replaces."""

    def fixed(self, name: str) -> np.ndarray | None:
        values = layout.fixed(self.rows.column(name))
        return values if values is None or len(self.at) == len(values) else values.take(self.at)

    def any(self, name: str) -> pa.Array:
        return layout.at_rows(self.rows.column(name), self.at)


def overlaid(parts: Sequence[pa.Table], schema: TableSchema) -> Overlay | None:
    """None where this is not the way: keys that differ share a hash, or too many keys are new.

    Requires: ``parts`` come newest first, each by hash, with no hash twice in one; all rows are puts or deletes without an end.
    """
    oldest, layers, new = parts[-1], list[_Layer](), list[pa.Table]()
    directory, keys = Directory(layout.numbers(oldest, HASH)), _key_columns(oldest, schema)
    newer, missing = sum(map(len, parts[:-1])), 0
    for piece in [piece for part in reversed(parts[:-1]) for piece in part.to_batches()]:
        at, over = directory.find(layout.numbers(piece, HASH))
        missing += len(piece) - len(at)
        if missing * _NEW_ONE_IN > newer:
            return None
        if not same_keys(_key_columns(piece, schema), at, keys, over):
            return None
        if len(at) < len(piece):
            fresh = np.delete(np.arange(len(piece)), at)
            new.insert(0, pa.Table.from_batches([piece.take(pa.array(fresh))]))
        layers.append(_Layer(piece, at, over))
    same = {HASH, *(layout.column(field) for field in schema.keys)}
    columns = [oldest.column(name) if name in same else _written_over(oldest, layers, name) for name in oldest.column_names]
    return Overlay(pa.Table.from_arrays(columns, schema=oldest.schema), new)


def _key_columns(rows: pa.Table | pa.RecordBatch, schema: TableSchema) -> list[KeyColumn]:
    return [KeyColumn.of(values) for values in layout.column_arrays(rows, schema.keys)]


def _written_over(oldest: pa.Table, layers: Sequence[_Layer], name: str) -> pa.Array | pa.ChunkedArray:
    """A column of the oldest rows with those of the layers, oldest first, written over it."""
    stored = [oldest.column(name), *(layer.rows.column(name) for layer in layers)]
    if all(column.null_count == len(column) for column in stored):
        return stored[0]
    before, after = layout.fixed(oldest.column(name)), [layer.fixed(name) for layer in layers]
    if before is None or any(values is None for values in after):
        choice, pool = np.arange(len(oldest)), [layout.one_array(oldest.column(name))]
        for layer in layers:
            choice[layer.over] = sum(map(len, pool)) + np.arange(len(layer.at))
            pool.append(layer.any(name))
        return pa.concat_arrays(pool).take(pa.array(choice))
    values = before.copy()
    for layer, theirs in zip(layers, after, strict=True):
        values[layer.over] = theirs
    return layout.from_fixed(values, oldest.schema.field(name).type)
