"""Entries of states that have expired and are still there for Spark, which evicts them at the end of its batch."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.state.keyspace import TableCursor
from floodplain.state.tables import StateColumn
from floodplain.store.rows.layout import EXPIRES


def entry_columns(place: StateColumn) -> list[str]:
    """The columns that tell whether a row has an entry of this state."""
    return [column for column in (place.column, place.null_mark) if column]


def entries_in(rows: pa.Table, place: StateColumn) -> np.ndarray:
    """Per row, whether it has a value, which may be null; rows with a sub-key all are entries."""
    if place.subkey:
        return np.ones(len(rows), bool)
    there = np.zeros(len(rows), bool)
    for column in entry_columns(place):
        there |= pc.is_valid(rows.column(column)).to_numpy()
    return there


def expiry_column(place: StateColumn) -> str:
    """The column with the time at which the life of an entry ends."""
    return EXPIRES if place.subkey else f"{EXPIRES}_{place.column}"


def ended(rows: pa.Table, place: StateColumn, now_ms: int) -> np.ndarray:
    """Per row, whether it has an entry whose life has ended by this time. Requires: the rows have their expiry times."""
    by_now = pc.fill_null(pc.less_equal(rows.column(expiry_column(place)), now_ms), False)
    return entries_in(rows, place) & by_now.to_numpy()


def newly_expired(cursor: TableCursor, place: StateColumn, numbers: Collection[int]) -> Iterator[tuple[int, Any]]:
    """The entries of these keys that have expired since the last epoch: number of the key, and sub-key if there is one."""
    requested = np.fromiter(numbers, np.int64, len(numbers))
    lookup = cursor.before_expiry(requested)
    if lookup is None:
        return
    expired = ended(lookup.rows, place, cursor.now_ms)
    owners = requested[lookup.key_number[expired]].tolist()
    subkeys = lookup.rows.column(place.subkey).filter(pa.array(expired)).to_pylist() if place.subkey else [None] * len(owners)
    yield from zip(owners, subkeys, strict=True)
