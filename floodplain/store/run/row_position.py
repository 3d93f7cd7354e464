"""The sort position of a row in a run: hash (in a time table, key group) and ``_sub`` as one 128-bit number."""

import numpy as np
import pyarrow as pa

from floodplain.keys import group_bounds, key_group
from floodplain.store.rows import layout
from floodplain.store.rows.layout import HASH, SUB
from floodplain.versions.records.schema import TableSchema

_SUB_BITS = 64
_MOST_SUB = (1 << _SUB_BITS) - 1


def first_of(major: int) -> int:
    """The position of the first row of a hash, or key group."""
    return major << _SUB_BITS


def place_of(major: int, sub: int) -> int:
    return major << _SUB_BITS | sub


def major_of(place: int) -> int:
    return place >> _SUB_BITS


def is_first(place: int) -> bool:
    """Whether no row of its hash, or key group, stands before it."""
    return not place & _MOST_SUB


def before(major: np.ndarray, minor: np.ndarray | None, place: int) -> int:
    """How many of these rows, which ascend, stand before the place. ``minor``: None where all are 0."""
    at, sub = place >> _SUB_BITS, place & _MOST_SUB
    if at > _MOST_SUB:
        return len(major)
    begin = int(np.searchsorted(major, np.uint64(at), "left"))
    if not sub:
        return begin
    end = int(np.searchsorted(major, np.uint64(at), "right"))
    return end if minor is None else begin + int(np.searchsorted(minor[begin:end], np.uint64(sub), "left"))


def of_groups(schema: TableSchema, low: int, high: int, key_groups: int) -> tuple[int, int]:
    """The places of all rows of the key groups ``low`` to ``high`` (exclusive), as a half-open range."""
    if schema.shape == "time":
        return first_of(low), first_of(high)
    first, last = group_bounds(low, high, key_groups)
    return first_of(first), first_of(last + 1)


def group_of(schema: TableSchema, place: int, key_groups: int) -> int:
    """The key group of the rows at this place."""
    if schema.shape == "time":
        return major_of(place)
    return int(key_group(np.array([major_of(place)], np.uint64), key_groups)[0])


def between(batch: pa.RecordBatch, schema: TableSchema, begin: int, end: int, key_groups: int) -> pa.RecordBatch:
    """The rows of a chunk from ``begin`` to ``end`` (exclusive)."""
    hashes = layout.numbers(batch, HASH)
    major = key_group(hashes, key_groups).astype(np.uint64) if schema.shape == "time" else hashes
    minor = None if schema.shape == "value" else layout.numbers(batch, SUB)
    start = before(major, minor, begin)
    return batch.slice(start, before(major, minor, end) - start)
