"""Event-time order: buffers each row in the state until the watermark passes it, or until a bound is reached.

So a process gets the rows of a key in event-time order across epochs. The buffer is a table sorted by time: the rows to release
are a prefix of it, and adding rows needs no read. With a bound, the oldest rows of a key are released early. The time of the
newest of them is stored as a mark in the same table until the watermark passes it; a row not newer than the mark is late.
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
"""The state that buffers rows."""
_AT, _ROWS, _RELEASED, _REST = "waits_until", "waiting_rows", "released_early", "released_us"
"""Buffered rows are keyed by millisecond, the precision of the watermark, and released in the order of microseconds. A mark also
has the microseconds, so later rows of its millisecond may still be buffered."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """Bounds of the buffer of a key. Without one, rows are buffered until the watermark passes them, however many they are."""

    rows: int | None = None
    """At most this many rows of a key are buffered."""
    time_ms: int | None = None
    """A row is released once its key has one that is newer by this."""
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The schema of the rows."""

    @property
    def bounded(self) -> bool:
        return self.rows is not None or self.time_ms is not None

    @property
    def bound(self) -> str:
        parts = [f"{self.rows} rows"] if self.rows is not None else []
        return " or ".join([*parts, f"{self.time_ms} ms"] if self.time_ms is not None else parts)


def parse_in_order(argument: bool | InOrder) -> InOrder | None:
    """The argument ``in_order`` of an operator."""
    return argument if isinstance(argument, InOrder) else InOrder() if argument else None


def in_order(*, rows: int | None = None, time: str | timedelta | None = None) -> InOrder:
    """For the argument ``in_order`` of an operator: rows of a key are processed in event-time order, each once the watermark has
    passed it. At most ``rows`` of a key are buffered, and none once its key has one newer by ``time``."""
    if rows is not None and rows < 1:
        raise BadInput(f"in_order: rows={rows} is not possible: use 1 or more, or omit it for no bound")
    return InOrder(rows, None if time is None else to_ms(time, "in_order time"))


def with_waiting(tables: OperatorTables, stored_keys: dict[str, pa.DataType], order: InOrder) -> OperatorTables:
    """The tables of an operator with the table that buffers its rows."""
    if WAITING in tables.places:
        raise BadName(f"state name {WAITING!r} of operator {tables.operator} is reserved with in_order: use another")
    check_keys(f"operator {tables.operator}, in_order", list(stored_keys), _AT, _ROWS, _RELEASED, _REST)
    name = checked_name("table", f"{tables.operator}{SEPARATOR}{WAITING}")
    listed = pa.list_(pa.struct(list(order.columns)))
    columns = {_ROWS: Column(listed, merge="append"), _RELEASED: Column(pa.bool_()), _REST: Column(pa.int64())}
    schema = timer_table(name, stored_keys, columns, time=_AT)
    return replace(
        tables, schemas=(*tables.schemas, schema), places={**tables.places, WAITING: StateColumn(name, _ROWS, subkey=_AT)}
    )


def rows_wait(view: TableView) -> bool:
    """Whether the buffer has rows, and not only marks."""
    return any(_count(entries) for entries in view.scan())


@dataclass(frozen=True, slots=True)
class Ordered:
    """The rows that an epoch processes, of its input and of the buffer."""

    rows: pa.Table
    """In event-time order."""
    late: pa.Table | None
    """Rows not newer than the mark of their key, with the drop reason."""
    early: int
    """How many rows were released before the watermark passed them."""


class Reorder:
    """Reorders the rows of one task in one epoch."""

    def __init__(self, name: str, order: InOrder, tables: OperatorTables, event_time: str, order_by: Sequence[str]) -> None:
        self._name, self._order, self._event_time, self._order_by = name, order, event_time, order_by
        self._keys = tables.key_columns
        self._table = tables.places[WAITING].table

    def run(self, rows: pa.Table, snapshot: Snapshot, writer: TaskWriter, times: EpochTimes, groups: GroupRanges) -> Ordered:
        """Buffers and releases rows. Requires: ``rows`` are not late."""
        view = snapshot.stored(self._table)
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
        """The late rows; the other rows, after buffered ones of rewritten entries; and which of these are released early."""
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
        """The rows of these entries of the buffer."""
        packed = one_array(pc.list_flatten(lists))
        return pa.Table.from_arrays(packed.flatten(), schema=self._order.columns)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        ranks = [pc.rank(one_array(rows.column(name)), tiebreaker="dense").to_numpy() for name in reversed(self._order_by)]
        return rows.take(pa.array(np.lexsort([*ranks, self._times(rows)])))

    def _times(self, rows: pa.Table) -> np.ndarray:
        """Event times in microseconds. Rows without one sort first and are released at once."""
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
    """Applies the bounds: the input rows of a task and all buffered rows of their keys; which are released early, and which are
    late. Times are in microseconds."""

    def __init__(self, rows: pa.Table, times: np.ndarray, keys: Mapping[str, str], view: TableView, watermark_ms: int) -> None:
        grouped = group(rows, keys)
        self._space, self._times, self._watermark_ms = grouped.space, times, watermark_ms
        self._key_of_row = np.empty(len(rows), np.int64)
        self._key_of_row[grouped.order] = np.repeat(np.arange(len(self._space)), np.diff(grouped.starts))
        stored = view.multi_get(self._space.lookup_keys())
        self._marks = self._marked_before(stored.key_number, stored.rows)
        waits = stored.rows.column(_AT).to_numpy() > watermark_ms
        self._key_of_entry, self._entries = stored.key_number[waits], stored.rows.filter(pa.array(waits))
        self._at_ms = self._entries.column(_AT).to_numpy()
        self._is_mark = _are_marks(self._entries)
        self.entry_of_waited = np.repeat(np.arange(len(self._at_ms)), _lengths(self._entries))
        """The entry of each buffered row."""
        self.too_late = (times <= self._marks[self._key_of_row]) & (times > NONE_MS)
        """Per input row, whether it is not newer than the mark of its key."""

    def _marked_before(self, key_of: np.ndarray, entries: pa.Table) -> np.ndarray:
        """The mark of each key. In older states, a mark covers its whole millisecond."""
        is_mark, marks = _are_marks(entries), np.full(len(self._space), NONE_MS)
        at = entries.column(_AT).to_numpy() * 1000 + pc.fill_null(entries.column(_REST), 999).to_numpy()
        np.maximum.at(marks, key_of[is_mark], at[is_mark])
        return marks

    @property
    def waiting(self) -> pa.ChunkedArray:
        """The rows of each entry."""
        return self._entries.column(_ROWS)

    def reasons(self, operator: str, bound: str) -> pa.Array:
        """The drop reasons of the late rows."""
        marks = self._marks[self._key_of_row[self.too_late]].tolist()
        why = f"were processed early, because no more than {bound} of a key wait"
        return pa.array([f"late for {operator}: rows of its key up to {moment(at // 1000)} {why}" for at in marks], pa.string())

    def release(self, order: InOrder, waited: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which input rows, and which buffered rows (of times ``waited``), are released early."""
        self._waited, self._key_of_waited = waited, self._key_of_entry[self.entry_of_waited]
        coming = ~self.too_late & (_floor_ms(self._times) > self._watermark_ms)
        keys = np.concatenate([self._key_of_waited, self._key_of_row[coming]])
        limit = self._limit(order, keys, np.concatenate([waited, self._times[coming]]))
        return coming & (self._times <= limit[self._key_of_row]), waited <= limit[self._key_of_waited]

    def _limit(self, order: InOrder, keys: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Per key, the time up to which the bounds release its rows."""
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
        """The entries to delete and the marks to put once these rows are released. Other rows of these entries must be buffered
        again: a mark replaces the entry of its millisecond."""
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
