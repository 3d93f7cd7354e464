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
from floodplain.eventtime.times import NONE_MS, EpochTimes, as_us
from floodplain.keys import normalize_keys
from floodplain.operators.kernel.key_grouping import group
from floodplain.operators.kernel.late_rows import REASON, moment
from floodplain.operators.kernel.reserved_columns import check_keys
from floodplain.state.durations import to_ms
from floodplain.state.tables import SEPARATOR, OperatorTables, StateColumn
from floodplain.store.read.snapshot import Snapshot, TableView
from floodplain.store.rows.definition import Column, timer_table
from floodplain.store.rows.layout import one_array
from floodplain.store.write.task_writer import TaskWriter
from floodplain.tiers.paths import checked_name
from floodplain.versions.records.edit import GroupRanges

WAITING = "waiting"
"""The state of an operator that its rows wait in."""
_AT, _ROWS, _RELEASED, _REST = "waits_until", "waiting_rows", "released_early", "released_us"
"""Rows wait by the millisecond of their time, which is what the watermark is compared with; among each other they are ordered to
the microsecond. A mark has the microseconds within its millisecond, too, and rows of the same one may wait behind it."""


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
    check_keys(f"operator {tables.operator}, in_order", list(stored_keys), _AT, _ROWS, _RELEASED, _REST)
    name = checked_name("table", f"{tables.operator}{SEPARATOR}{WAITING}")
    listed = pa.list_(pa.struct(list(order.columns)))
    columns = {_ROWS: Column(listed, merge="append"), _RELEASED: Column(pa.bool_()), _REST: Column(pa.int64())}
    schema = timer_table(name, stored_keys, columns, time=_AT)
    return replace(
        tables, schemas=(*tables.schemas, schema), places={**tables.places, WAITING: StateColumn(name, _ROWS, subkey=_AT)}
    )


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
        late, rows, early = self._early(rows, view, writer, times.watermark_ms)
        event_ms = _floor_ms(self._times(rows))
        ready = (event_ms <= times.watermark_ms) | early
        self._wait(writer, rows.filter(pa.array(~ready)), event_ms[~ready])
        released = pa.concat_tables([self._unpacked(due.column(_ROWS)), rows.filter(pa.array(ready))])
        return Ordered(self._sorted(released), late, int(early.sum()))

    def _early(
        self, rows: pa.Table, view: TableView, writer: TaskWriter, watermark_ms: int
    ) -> tuple[pa.Table | None, pa.Table, np.ndarray]:
        """Rows that are too late; the others, after those that waited and were looked at; which of these go before their time."""
        rows = rows.select(self._order.columns.names).cast(self._order.columns)
        if not self._order.bounded or not len(rows):
            return None, rows, np.zeros(len(rows), bool)
        bounded = _Bounded(rows, self._times(rows), self._keys, view, watermark_ms)
        waited = self._unpacked(bounded.waiting)
        early, waited_early = bounded.release(self._order, self._times(waited))
        gone, marks = bounded.marked(early, waited_early)
        self._delete(writer, bounded.entries(gone))
        if len(marks):
            writer.write(self._table, marks, "put")
        late = rows.filter(pa.array(bounded.too_late))
        if REASON not in late.column_names:
            late = late.append_column(REASON, bounded.reasons(self._name, self._order.bound))
        kept, taken = ~bounded.too_late, gone[bounded.entry_of_waited]
        both = pa.concat_tables([waited.filter(pa.array(taken)), rows.filter(pa.array(kept))])
        return late, both, np.concatenate([waited_early[taken], early[kept]])

    def _unpacked(self, lists: pa.ChunkedArray) -> pa.Table:
        """The rows of entries of the table."""
        packed = one_array(pc.list_flatten(lists))
        return pa.Table.from_arrays(packed.flatten(), schema=self._order.columns)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        ranks = [pc.rank(one_array(rows.column(name)), tiebreaker="dense").to_numpy() for name in reversed(self._order_by)]
        return rows.take(pa.array(np.lexsort([*ranks, self._times(rows)])))

    def _times(self, rows: pa.Table) -> np.ndarray:
        """In microseconds. Rows without event time come first, at once."""
        return pc.fill_null(as_us(rows.column(self._event_time)), NONE_MS).to_numpy(zero_copy_only=False)

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


def _floor_ms(times: np.ndarray) -> np.ndarray:
    return np.where(times == NONE_MS, NONE_MS, times // 1000)


class _Bounded:
    """The keys of the rows that came, with all that waits for them: what goes early, and what is too late for that. Times are in
    microseconds."""

    def __init__(self, rows: pa.Table, times: np.ndarray, keys: Mapping[str, str], view: TableView, watermark_ms: int) -> None:
        grouped = group(rows, keys)
        self._space, self._times, self._watermark_ms = grouped.space, times, watermark_ms
        self._key_of_row = np.empty(len(rows), np.int64)
        self._key_of_row[grouped.order] = np.repeat(np.arange(len(self._space)), np.diff(grouped.starts))
        found = view.multi_get(self._space.lookup_keys())
        self._marks = self._marked_before(found.key_number, found.rows)
        waits = found.rows.column(_AT).to_numpy() > watermark_ms
        self._key_of_entry, self._entries = found.key_number[waits], found.rows.filter(pa.array(waits))
        self._at_ms = self._entries.column(_AT).to_numpy()
        self._is_mark = _are_marks(self._entries)
        self.entry_of_waited = np.repeat(np.arange(len(self._at_ms)), _lengths(self._entries))
        """For each row that waits, the entry that it is in."""
        self.too_late = (times <= self._marks[self._key_of_row]) & (times > NONE_MS)
        """Of the rows that came, those that others were released before early."""

    def _marked_before(self, key_of: np.ndarray, entries: pa.Table) -> np.ndarray:
        """Per key, up to when rows went early. A mark of an older state is for all of its millisecond."""
        is_mark, marks = _are_marks(entries), np.full(len(self._space), NONE_MS)
        at = entries.column(_AT).to_numpy() * 1000 + pc.fill_null(entries.column(_REST), 999).to_numpy()
        np.maximum.at(marks, key_of[is_mark], at[is_mark])
        return marks

    @property
    def waiting(self) -> pa.ChunkedArray:
        """The rows of each entry."""
        return self._entries.column(_ROWS)

    def reasons(self, operator: str, bound: str) -> pa.Array:
        """Of those that are too late."""
        marks = self._marks[self._key_of_row[self.too_late]].tolist()
        told = f"were processed early, because no more than {bound} of a key wait"
        return pa.array([f"late for {operator}: rows of its key up to {moment(at // 1000)} {told}" for at in marks], pa.string())

    def release(self, order: InOrder, waited: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the rows that came, and of those that waited, whose times are given, those that go early."""
        self._waited, self._key_of_waited = waited, self._key_of_entry[self.entry_of_waited]
        coming = ~self.too_late & (_floor_ms(self._times) > self._watermark_ms)
        keys = np.concatenate([self._key_of_waited, self._key_of_row[coming]])
        limit = self._limit(order, keys, np.concatenate([waited, self._times[coming]]))
        return coming & (self._times <= limit[self._key_of_row]), waited <= limit[self._key_of_waited]

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
            limit[some] = np.maximum(limit[some], times[ends[some] - 1] - order.time_ms * 1000)
        return limit

    def marked(self, early: np.ndarray, waited_early: np.ndarray) -> tuple[np.ndarray, pa.Table]:
        """Which entries to delete and marks to put, once these rows went early. What else waits in these entries must wait anew:
        a mark takes the place of what is there for its millisecond."""
        marks = np.full(len(self._space), NONE_MS)
        np.maximum.at(marks, self._key_of_row[early], self._times[early])
        np.maximum.at(marks, self._key_of_waited[waited_early], self._waited[waited_early])
        moved = np.flatnonzero(marks > NONE_MS)
        of_entry = marks[self._key_of_entry]
        gone = (of_entry > NONE_MS) & (self._is_mark | (self._at_ms == of_entry // 1000))
        gone[self.entry_of_waited[waited_early]] = True
        nothing = pa.array([[]] * len(moved), self._entries.schema.field(_ROWS).type)
        columns = {
            _AT: pa.array(marks[moved] // 1000),
            _ROWS: nothing,
            _RELEASED: pa.array([True] * len(moved), pa.bool_()),
            _REST: pa.array(marks[moved] % 1000),
        }
        return gone, self._space.at(moved, columns)

    def entries(self, wanted: np.ndarray) -> pa.Table:
        keys = self._space.keys.take(pa.array(self._key_of_entry[wanted]))
        at = self._entries.column(_AT).filter(pa.array(wanted))
        return pa.table({**{name: keys.column(name) for name in keys.column_names}, _AT: at})


def _are_marks(entries: pa.Table) -> np.ndarray:
    return pc.fill_null(entries.column(_RELEASED), False).to_numpy()


def _lengths(entries: pa.Table) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(entries.column(_ROWS)), 0).to_numpy()
