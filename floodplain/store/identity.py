"""Which rows speak of the same entry: equal hashes narrow it down, equal keys decide."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from floodplain.keys import columns_equal


def starts_of(*columns: np.ndarray) -> np.ndarray:
    """True where a row differs from the one before it in any of these sorted columns."""
    first = np.ones(len(columns[0]), bool)
    if len(first) > 1:
        first[1:] = columns[0][1:] != columns[0][:-1]
        for values in columns[1:]:
            first[1:] |= values[1:] != values[:-1]
    return first


def refine(first: np.ndarray, columns: Sequence[pa.Array]) -> np.ndarray:
    """Number the classes of equal rows within each segment.

    Requires: ``first`` marks the first row of each segment. Returns one ascending number per (segment, class); rows of one
    segment share a number exactly if ``columns`` are equal. Classes are numbered by first appearance.
    """
    segment = np.cumsum(first) - 1
    later = np.flatnonzero(~first)
    if not len(later) or not columns:
        return segment
    at, before = pa.array(later), pa.array(later - 1)
    same = columns_equal([c.take(at) for c in columns], [c.take(before) for c in columns])
    return segment if same.all() else _split(segment, columns)


def _split(segment: np.ndarray, columns: Sequence[pa.Array]) -> np.ndarray:
    """Segments that mix different rows (two keys with one hash): each round settles one class per segment."""
    label = np.zeros(len(segment), np.int64)
    pending = np.arange(len(segment))
    for round_ in range(len(segment)):
        leader = pending[np.searchsorted(segment[pending], segment[pending])]
        rows, leaders = pa.array(pending), pa.array(leader)
        same = columns_equal([c.take(rows) for c in columns], [c.take(leaders) for c in columns])
        label[pending[same]] = round_
        pending = pending[~same]
        if not len(pending):
            break
    order = np.lexsort((label, segment))
    number = np.empty(len(segment), np.int64)
    number[order] = np.cumsum(starts_of(segment[order], label[order])) - 1
    return number
