"""Rows in the order of their event time: each waits in the state until the watermark passes it, or a bound is reached.

Rows of a key reach the process in the order of event time over all epochs. What waits is a table in time order, so what the
watermark has passed is a prefix, and waiting costs no reading. With a bound the oldest rows of a key are released early; the time
up to which they were stays as a mark in the same table until the watermark has passed it, and what comes for a time before the
mark is late.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, BadName
from floodplain.eventtime.times import NONE_MS, EpochTimes, as_ms
from floodplain.keys import normalize_keys
from floodplain.operators.changes import check_keys
from floodplain.operators.grouping import group
from floodplain.operators.lateness import REASON, moment
from floodplain.state.durations import to_ms
from floodplain.state.tables import SEPARATOR, OperatorTables, Place
from floodplain.store.definition import Column, timer_table
from floodplain.store.layout import one_array
from floodplain.store.task import TaskWriter
from floodplain.store.view import Snapshot, TableView
from floodplain.tiers.paths import checked_name
from floodplain.versions.edit import GroupRanges

WAITING = "waiting"
"""The state of an operator that its rows wait in."""
_AT, _ROWS, _RELEASED = "waits_until", "waiting_rows", "released_early"


@dataclass(frozen=True, slots=True)
class InOrder:
    """How far rows are put in order. Without a bound they wait for the watermark, however many they are."""

    rows: int | None = None
    """No more than this many rows of a key wait."""
    time_ms: int | None = None
    """No row waits once its key has one that is newer by this."""
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Of the rows."""

    @property
    def bounded(self) -> bool:
        return self.rows is not None or self.time_ms is not None

    @property
    def bound(self) -> str:
        parts = [f"{self.rows} rows"] if self.rows is not None else []
        return " or ".join([*parts, f"{self.time_ms} ms"] if self.time_ms is not None else parts)


def order_asked(given: bool | InOrder) -> InOrder | None:
    """What an argument ``in_order`` means."""
    return given if isinstance(given, InOrder) else InOrder() if given else None


def in_order(*, rows: int | None = None, time: str | timedelta | None = None) -> InOrder:
    """For the argument ``in_order`` of an operator: rows of a key are processed in the order of event time, each once the
    watermark has passed it, but no more than ``rows`` of a key wait, and none once its key has one newer by ``time``."""
    if rows is not None and rows < 1:
        raise BadInput(f"in_order: {rows} rows cannot wait: use 1 or more, or none for no bound")
    return InOrder(rows, None if time is None else to_ms(time, "in_order time"))


def with_waiting(tables: OperatorTables, stored_keys: dict[str, pa.DataType], order: InOrder) -> OperatorTables:
    """The tables of an operator and the one that its rows wait in."""
    if WAITING in tables.places:
        raise BadName(f"state name {WAITING!r} of operator {tables.operator} is taken where rows are put in order: use another")
    check_keys(f"operator {tables.operator}, in_order", list(stored_keys), _AT, _ROWS, _RELEASED)
    name = checked_name("table", f"{tables.operator}{SEPARATOR}{WAITING}")
    listed = pa.list_(pa.struct(list(order.columns)))
    columns = {_ROWS: Column(listed, merge="append"), _RELEASED: Column(pa.bool_())}
    schema = timer_table(name, stored_keys, columns, time=_AT)
    return replace(tables, schemas=(*tables.schemas, schema), places={**tables.places, WAITING: Place(name, _ROWS, subkey=_AT)})


def rows_wait(view: TableView) -> bool:
    """Whether there are rows in the table that they wait in, and not only marks of what went early."""
    return any(_count(entries) for entries in view.scan())


@dataclass(frozen=True, slots=True)
class Ordered:
    """What an epoch processes of the rows it got and of those that waited."""

    rows: pa.Table
    """In the order of event time."""
    late: pa.Table | None
    """Rows for a time up to which others of their key were released early, with the reason."""
    early: int
    """Rows that were released before the watermark passed them."""


class Reorder:
    """One task's waiting rows in one epoch."""

    def __init__(self, name: str, order: InOrder, tables: OperatorTables, event_time: str, order_by: Sequence[str]) -> None:
        self._name, self._order, self._event_time, self._order_by = name, order, event_time, order_by
        self._keys = tables.key_columns
        self._table = tables.places[WAITING].table

    def run(self, rows: pa.Table, snapshot: Snapshot, writer: TaskWriter, times: EpochTimes, groups: GroupRanges) -> Ordered:
        """``rows`` are not late. What is not released waits in the table, what is released is gone from it."""
        view = snapshot.table(self._table)
        due = pa.concat_tables([view.empty(), *view.scan(groups=groups, times=(-(1 << 63), times.watermark_ms + 1))])
        self._delete(writer, due)
        late, rows, early, entries = self._early(rows, view, writer, times.watermark_ms)
        event_ms = self._times(rows)
        ready = (event_ms <= times.watermark_ms) | early
        self._wait(writer, rows.filter(pa.array(~ready)), event_ms[~ready])
        released = pa.concat_tables([self._unpacked(due), self._unpacked(entries), rows.filter(pa.array(ready))])
        return Ordered(self._sorted(released), late, int(early.sum()) + _count(entries))

    def _early(
        self, rows: pa.Table, view: TableView, writer: TaskWriter, watermark_ms: int
    ) -> tuple[pa.Table | None, pa.Table, np.ndarray, pa.Table]:
        """Rows that are too late, the others, which of these go before their time, and entries that go with them."""
        rows = rows.select(self._order.columns.names).cast(self._order.columns)
        if not self._order.bounded or not len(rows):
            return None, rows, np.zeros(len(rows), bool), view.empty()
        bounded = _Bounded(rows, self._times(rows), self._keys, view)
        early, going = bounded.release(self._order, watermark_ms)
        gone, marks = bounded.marked(early, going)
        self._delete(writer, gone)
        if len(marks):
            writer.write(self._table, marks, "put")
        late = rows.filter(pa.array(bounded.too_late))
        if REASON not in late.column_names:
            late = late.append_column(REASON, bounded.reasons(self._name, self._order.bound))
        kept = ~bounded.too_late
        return late, rows.filter(pa.array(kept)), early[kept], bounded.entries(going)

    def _unpacked(self, entries: pa.Table) -> pa.Table:
        """The rows of entries of the table."""
        packed = one_array(pc.list_flatten(entries.column(_ROWS)))
        return pa.Table.from_arrays(packed.flatten(), schema=self._order.columns)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        ranks = [pc.rank(one_array(rows.column(name)), tiebreaker="dense").to_numpy() for name in reversed(self._order_by)]
        return rows.take(pa.array(np.lexsort([*ranks, self._times(rows)])))

    def _times(self, rows: pa.Table) -> np.ndarray:
        """Rows without event time come first, at once."""
        return pc.fill_null(as_ms(rows.column(self._event_time)), NONE_MS).to_numpy(zero_copy_only=False)

    def _wait(self, writer: TaskWriter, rows: pa.Table, event_ms: np.ndarray) -> None:
        if len(rows):
            packed = pa.StructArray.from_arrays([one_array(column) for column in rows.columns], fields=list(self._order.columns))
            lists = pa.ListArray.from_arrays(pa.array(np.arange(len(rows) + 1), pa.int32()), packed)
            writer.write(self._table, self._entries(rows, event_ms).append_column(_ROWS, lists), "merge")

    def _delete(self, writer: TaskWriter, entries: pa.Table) -> None:
        if len(entries):
            writer.write(self._table, entries.select([*self._keys.values(), _AT]), "delete")

    def _entries(self, rows: pa.Table, at_ms: np.ndarray) -> pa.Table:
        keys = normalize_keys([rows.column(name) for name in self._keys])
        return pa.table({**dict(zip(self._keys.values(), keys, strict=True)), _AT: pa.array(at_ms, pa.int64())})


def _count(entries: pa.Table) -> int:
    return int(pc.sum(pc.list_value_length(entries.column(_ROWS))).as_py() or 0)


class _Bounded:
    """The keys of the rows that came, with all that waits for them: what goes early, and what is too late for that."""

    def __init__(self, rows: pa.Table, event_ms: np.ndarray, keys: Mapping[str, str], view: TableView) -> None:
        grouped = group(rows, keys)
        self._space, self._event_ms = grouped.space, event_ms
        self._key_of_row = np.empty(len(rows), np.int64)
        self._key_of_row[grouped.order] = np.repeat(np.arange(len(self._space)), np.diff(grouped.starts))
        found = view.multi_get(self._space.needles())
        self._key_of_entry, self._entries = found.needle, found.rows
        self._at_ms = self._entries.column(_AT).to_numpy()
        self._is_mark = pc.fill_null(self._entries.column(_RELEASED), False).to_numpy()
        self._marks = np.full(len(self._space), NONE_MS)
        np.maximum.at(self._marks, self._key_of_entry[self._is_mark], self._at_ms[self._is_mark])
        self.too_late = (event_ms <= self._marks[self._key_of_row]) & (event_ms > NONE_MS)
        """Of the rows that came, those that others were released before early."""

    def reasons(self, operator: str, bound: str) -> pa.Array:
        """Of those that are too late."""
        marks = self._marks[self._key_of_row[self.too_late]].tolist()
        told = f"were processed early, because no more than {bound} of a key wait"
        return pa.array([f"late for {operator}: rows of its key up to {moment(at)} {told}" for at in marks], pa.string())

    def release(self, order: InOrder, watermark_ms: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the rows that came, and of the entries of the table, those that go early."""
        waiting = ~self._is_mark & (self._at_ms > watermark_ms)
        coming = ~self.too_late & (self._event_ms > watermark_ms)
        counts = pc.list_value_length(self._entries.column(_ROWS)).to_numpy()[waiting]
        keys = np.concatenate([np.repeat(self._key_of_entry[waiting], counts), self._key_of_row[coming]])
        limit = self._limit(order, keys, np.concatenate([np.repeat(self._at_ms[waiting], counts), self._event_ms[coming]]))
        return coming & (self._event_ms <= limit[self._key_of_row]), waiting & (self._at_ms <= limit[self._key_of_entry])

    def _limit(self, order: InOrder, keys: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Per key, the time up to which its rows cannot wait any more."""
        by_key = np.lexsort((times, keys))
        times, bounds = times[by_key], np.searchsorted(keys[by_key], np.arange(len(self._space) + 1))
        limit, ends = np.full(len(self._space), NONE_MS), bounds[1:]
        if order.rows is not None:
            over = np.flatnonzero(np.diff(bounds) > order.rows)
            limit[over] = times[ends[over] - order.rows - 1]
        if order.time_ms is not None:
            some = np.flatnonzero(np.diff(bounds))
            limit[some] = np.maximum(limit[some], times[ends[some] - 1] - order.time_ms)
        return limit

    def marked(self, rows: np.ndarray, entries: np.ndarray) -> tuple[pa.Table, pa.Table]:
        """Entries to delete and marks to put, once these rows and entries went early."""
        marks = np.full(len(self._space), NONE_MS)
        np.maximum.at(marks, self._key_of_row[rows], self._event_ms[rows])
        np.maximum.at(marks, self._key_of_entry[entries], self._at_ms[entries])
        moved = np.flatnonzero(marks > NONE_MS)
        gone = entries | (self._is_mark & (marks > NONE_MS)[self._key_of_entry])
        nothing = pa.array([[]] * len(moved), self._entries.schema.field(_ROWS).type)
        columns = {_AT: pa.array(marks[moved]), _ROWS: nothing, _RELEASED: pa.array([True] * len(moved), pa.bool_())}
        put = self._space.at(moved)
        for name, values in columns.items():
            put = put.append_column(name, values)
        return self.entries(gone), put

    def entries(self, wanted: np.ndarray) -> pa.Table:
        keys = self._space.keys.take(pa.array(self._key_of_entry[wanted]))
        found = self._entries.select([_AT, _ROWS]).filter(pa.array(wanted))
        return pa.table(
            {
                **{name: keys.column(name) for name in keys.column_names},
                **{name: found.column(name) for name in found.column_names},
            }
        )
