"""Which rows speak of the same entry: equal hashes narrow it down, equal keys decide."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from floodplain.equality import equality_classes
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
    ordered_hashes = hashes[order]
    return order if not (ordered_hashes[1:] < ordered_hashes[:-1]).any() else np.argsort(hashes, kind="stable")


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
    mixed = np.zeros(segment[-1] + 1, bool)
    mixed[segment[later[~same]]] = True
    rows = np.flatnonzero(mixed[segment])
    at_rows = pa.array(rows if order is None else order[rows])
    return _split(segment, rows, [column.take(at_rows) for column in columns])


def _split(segment: np.ndarray, rows: np.ndarray, columns: Sequence[pa.Array]) -> np.ndarray:
    """Segments that mix different rows (two keys with one hash) are sorted by what is in them. ``columns``: at ``rows``, those of
    such segments."""
    label = np.zeros(len(segment), np.int64)
    label[rows] = equality_classes(columns)
    order = np.lexsort((label, segment))
    first = starts_of(segment[order], label[order])
    # The first of each class: the order of these is that of the segments, and of first appearance within one.
    rank = np.empty(np.count_nonzero(first), np.int64)
    rank[np.argsort(order[first])] = np.arange(len(rank))
    number = np.empty(len(segment), np.int64)
    number[order] = rank[np.cumsum(first) - 1]
    return number
