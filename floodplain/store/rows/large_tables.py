"""Take and slice for tables that exceed one Arrow array: a column of strings ends at 2 GiB."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.store.rows import layout

MOST_BYTES = 1 << 30
"""Of rows that are concatenated into one array."""


def take(rows: pa.Table, order: np.ndarray) -> pa.Table:
    """The rows at these places, in that order; as several chunks where one could not hold them."""
    if rows.nbytes <= MOST_BYTES:
        return layout.at_rows(rows.combine_chunks(), order)
    batches = [batch for piece in slices(rows, MOST_BYTES // 16) for batch in piece.to_batches() if len(batch)]
    ends = np.cumsum([len(batch) for batch in batches])
    which = np.searchsorted(ends, order, "right")
    sizes = np.cumsum(np.array([batch.nbytes / len(batch) for batch in batches])[which])
    halves = sizes // max(MOST_BYTES // 2, 1)
    cuts = [0, *(np.flatnonzero(np.diff(halves)) + 1).tolist(), len(order)]
    parts = [_taken(batches, ends, order[start:stop]) for start, stop in pairwise(cuts) if start < stop]
    return pa.concat_tables([rows.slice(0, 0), *parts])


def _taken(batches: Sequence[pa.RecordBatch], ends: np.ndarray, order: np.ndarray) -> pa.Table:
    which = np.searchsorted(ends, order, "right")
    by_batch = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[by_batch], np.arange(len(batches) + 1))
    batches_in_order = []
    for number in np.unique(which).tolist():
        places = order[by_batch[bounds[number] : bounds[number + 1]]] - (ends[number] - len(batches[number]))
        batches_in_order.append(batches[number].take(pa.array(places)))
    back = np.empty(len(order), np.int64)
    back[by_batch] = np.arange(len(order))
    return pa.Table.from_batches(batches_in_order).combine_chunks().take(pa.array(back))


def slices(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """The rows, in order, at most so many bytes at a time, or one row."""
    if len(rows) <= 1 or unpacked_bytes(rows) <= most_bytes:
        yield rows
        return
    middle = len(rows) // 2
    yield from slices(rows.slice(0, middle), most_bytes)
    yield from slices(rows.slice(middle), most_bytes)


def unpacked_bytes(rows: pa.Table) -> int:
    """The size of the rows with dictionaries decoded."""
    return sum(_unpacked_bytes(column) for column in rows.columns)


def _unpacked_bytes(column: pa.ChunkedArray) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return sum(_of_dictionary(chunk) for chunk in column.chunks)


def _of_dictionary(values: pa.DictionaryArray) -> int:
    known = values.dictionary
    if _is_text(known.type):
        lengths = pc.fill_null(pc.binary_length(known), 0).cast(pa.int64())
        return int(pc.sum(lengths.take(values.indices)).as_py() or 0) + 8 * len(values)
    return len(values) * (known.nbytes // max(len(known), 1) + 8)


def _is_text(type_: pa.DataType) -> bool:
    large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    return large or pa.types.is_string(type_) or pa.types.is_binary(type_)
