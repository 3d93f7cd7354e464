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


def hash_order(hashes: np.ndarray) -> np.ndarray:
    """The stable order of hashes: those that are equal stay as they stand.

    Sorts numbers made of a hash's upper bits and its place, which is several times faster than an ``argsort``. Two hashes that
    differ only in the bits that gave way to the place are rare; where they come out in the wrong order the slow way is taken.
    """
    count = len(hashes)
    if count < 2:
        return np.arange(count)
    low = np.uint64((1 << (count - 1).bit_length()) - 1)
    packed = (hashes & ~low) | np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & low).view(np.int64)
    found = hashes[order]
    return order if not (found[1:] < found[:-1]).any() else np.argsort(hashes, kind="stable")


def refine(first: np.ndarray, columns: Sequence[pa.Array], order: np.ndarray | None = None) -> np.ndarray:
    """Number the classes of equal rows within each segment.

    Requires: ``first`` marks the first row of each segment. Returns one ascending number per (segment, class); rows of one
    segment share a number exactly if ``columns`` are equal. Classes are numbered by first appearance. With an ``order``,
    row i of the segments is row ``order[i]`` of the columns: only rows that must be compared are copied.
    """
    segment = np.cumsum(first) - 1
    later = np.flatnonzero(~first)
    if not len(later) or not columns:
        return segment
    at, before = (later, later - 1) if order is None else (order[later], order[later - 1])
    same = columns_equal([c.take(pa.array(at)) for c in columns], [c.take(pa.array(before)) for c in columns])
    if same.all():
        return segment
    return _split(segment, columns if order is None else [c.take(pa.array(order)) for c in columns])


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
