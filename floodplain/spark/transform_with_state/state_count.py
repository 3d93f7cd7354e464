"""Counts the rows that Spark's state store would have for the state of an operator, and those that have expired."""

from dataclasses import dataclass

import pyarrow as pa

from floodplain.operators.kernel.operator import KeyedOperator, declared_states
from floodplain.spark.transform_with_state.expired import ended, entries_in, entry_columns, expiry_column
from floodplain.state.descriptors import List, Map, State, Timers, Value
from floodplain.state.tables import StateColumn
from floodplain.store.read.snapshot import Snapshot, TableView

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


def count_rows(snapshot: Snapshot, operator: KeyedOperator, now_ms: int) -> int:
    """The rows that are there at this time."""
    states, places = declared_states(operator.process), operator.tables.places
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
