"""Counts the rows that Spark's state store would have for the state of an operator, and those that have expired."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.operators.kernel.operator import KeyedOperator, declared_states
from floodplain.state.descriptors import List, Map, State, Timers, Value
from floodplain.state.keyspace import TableCursor
from floodplain.state.tables import StateColumn
from floodplain.store.read.snapshot import Snapshot, TableView
from floodplain.store.rows.layout import EXPIRES

COUNTED_ROWS = 100_000
"""Larger states are not counted, which would read them: the rows of their runs stand for their rows."""


@dataclass(frozen=True)
class StateCount:
    """What is there of a state after an epoch."""

    rows: int
    """As Spark counts them: one for each value, map entry, and list that has elements. Timers are in tables that it does not
    count."""
    expired: int = 0
    """Values, map entries and elements of lists that have expired since the epoch before, and were not written anew."""


def count_rows(snapshot: Snapshot, operator: KeyedOperator, now_ms: int, *, one_per_key: bool = False) -> int:
    """The rows that are there at this time. ``one_per_key``: all values of a key are one, as in Spark's built-in operators."""
    states, places = declared_states(operator.process), operator.tables.places
    if one_per_key:
        states = dict(islice(states.items(), 1))
    return sum(
        _rows(snapshot.stored(places[name].table), places[name], state, now_ms)
        for name, state in states.items()
        if not isinstance(state, Timers)
    )


def _rows(view: TableView, place: StateColumn, state: State, now_ms: int) -> int:
    if place.subkey is None:
        return sum(int(entries_in(rows, place).sum()) for rows in view.scan(columns=entry_columns(place), now_ms=now_ms))
    if not isinstance(state, List):
        return view.count(now_ms=now_ms)
    keys = [field.name for field in view.schema.keys]
    # A piece of a scan is a range of hashes, so no key is in two of them.
    return sum(rows.group_by(keys).aggregate([]).num_rows for rows in view.scan(columns=keys, now_ms=now_ms))


def count_expired(before: Snapshot, after: Snapshot, operator: KeyedOperator, times_ms: tuple[int, int]) -> int:
    """Entries that were there in one epoch, whose life has ended by the time of the next, and that are not there after it.

    ``times_ms``: the times of both.
    """
    states, places = declared_states(operator.process), operator.tables.places
    return sum(
        _expired(before, after, places[name], times_ms)
        for name, state in states.items()
        if isinstance(state, Value | List | Map) and state.ttl_ms
    )


def _expired(before: Snapshot, after: Snapshot, place: StateColumn, times_ms: tuple[int, int]) -> int:
    view, then = before.stored(place.table), after.stored(place.table)
    names = [field.name for field in (*view.schema.keys, *view.schema.subkeys)]
    ends = expiry_column(place)
    columns = [*names, *([] if place.subkey else entry_columns(place))]
    gone = pa.concat_tables(
        rows.filter(pa.array(ended(rows, place, times_ms[1])))
        for rows in [view.empty(columns).append_column(ends, pa.nulls(0, pa.int64())), *_scan(view, columns, times_ms[0], ends)]
    )
    if not len(gone):
        return 0
    lookup = then.multi_get(gone.select(names), now_ms=times_ms[1])
    return len(gone) - int((lookup.found if place.subkey else entries_in(lookup.aligned(), place)).sum())


def _scan(view: TableView, columns: list[str], now_ms: int, ends: str) -> list[pa.Table]:
    return [rows.select([*columns, ends]) for rows in view.scan(columns=columns, now_ms=now_ms, expiries=True)]


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
