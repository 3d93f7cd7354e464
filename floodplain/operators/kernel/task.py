"""The keyed kernel: one task's share of an epoch, from rows and state to rows and a delta."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, FloodplainError, SchemaMismatch, UserError, place_of
from floodplain.eventtime.times import EpochTimes, as_ms
from floodplain.keys import hash_columns
from floodplain.operators.kernel.context import Context
from floodplain.operators.kernel.dead_letters import DeadLetters
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.event_order import WAITING, Ordered, Reorder
from floodplain.operators.kernel.key_grouping import Grouped, group
from floodplain.operators.kernel.late_rows import LATE, with_reasons
from floodplain.operators.kernel.operator import (
    NO_WATERMARK,
    DroppedRows,
    KeyedOperator,
    Outcome,
    added_up,
    declared_states,
)
from floodplain.operators.kernel.outputs import SideOutputs
from floodplain.operators.kernel.per_batch import PerBatchCaller
from floodplain.operators.kernel.per_key import Emitted, PerKeyCaller, Portion, call_portions, keys_of
from floodplain.operators.kernel.per_key_guarded import GuardedPerKeyCaller
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess, Process
from floodplain.operators.kernel.reserved_columns import rows_in
from floodplain.operators.kernel.task_state import TaskLevel
from floodplain.operators.kernel.traits import after_watermark
from floodplain.state.descriptors import EVENT_TIME, Aggregating, Broadcast, List, Map, Reducing, Set, TaskValue, Timers, Value
from floodplain.state.entries import named_by_rows
from floodplain.state.handles import OneEntry, ReducingHandle, ValueHandle, write_values
from floodplain.state.keyspace import Clocks, TableCursor
from floodplain.state.lists import ListHandle
from floodplain.state.maps import MapHandle, SetHandle
from floodplain.state.nested import copying
from floodplain.state.row_expressions import ALL, LAZY
from floodplain.state.tables import OperatorTables
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS, TimersHandle
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.read.task_reads import TaskReads, entries_of
from floodplain.store.rows.layout import BEGINNING
from floodplain.store.write.task_writer import TaskWriter
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.schema import PROCESSING_TIME


@dataclass(frozen=True, slots=True)
class _Bound:
    """Some keys of a task, with handles on their state."""

    grouped: Grouped
    cursors: Mapping[str, TableCursor]
    handles: Mapping[str, Any]
    context: Context
    letters: DeadLetters


class KeyedTask:
    """Runs an operator for the key groups of one slot in one epoch."""

    def __init__(
        self,
        operator: KeyedOperator,
        snapshot: Snapshot,
        writer: TaskWriter,
        times: EpochTimes,
        groups: GroupRanges,
        level: TaskLevel | None = None,
    ) -> None:
        """``level``: the task-level state; by default empty."""
        self._operator = operator
        self._tables = operator.tables
        self._snapshot = snapshot
        self._writer = writer
        self._reported_watermark_ms = times.late_ms
        """The watermark in the drop reasons of late rows, without the lateness."""
        self._times = times.with_lateness(operator.lateness_ms, operator.lateness_before)
        self._groups = groups
        self._level = level or TaskLevel(operator, snapshot)
        # A row that is not late must find the state that was valid at its time.
        self._now_ms = {PROCESSING_TIME: times.processing_ms, EVENT_TIME: times.late_ms}
        self._until = {EVENT_TIMERS: self._times.watermark_ms, PROCESSING_TIMERS: times.processing_ms}

    def run(self, rows: pa.Table) -> Outcome:
        """Processes the rows, fires due timers, and passes the delta to the writer."""
        with _cycle_collector_off(), self._snapshot.task_reads(self._groups) as reads:
            return self._run(rows, reads)

    def _run(self, rows: pa.Table, reads: TaskReads) -> Outcome:
        operator, epoch = self._operator, self._writer.epoch
        reads.scans(self._scanned())
        rows, late, newest = self._on_time(rows)
        ordered = Ordered(rows, None, 0) if operator.in_order is None else self._in_order(rows)
        rows, order_by = ordered.rows, () if operator.in_order is not None else operator.process.order_by
        self._level.begin(epoch, self._times)
        grouped = group(rows, self._tables.key_columns, order_by)
        tables = self._keyed_tables()
        missing = reads.lookups(tables, grouped.space.hashes) | self._missing_entries(reads, grouped)
        due = {name: self._due(name) for name in self._until}
        grouped, with_rows = grouped.joined(_keys_of(due, self._tables)), len(grouped.space)
        sides = SideOutputs(operator.name, operator.sides, check_each=operator.on_error == "dead_letter")
        missing = np.append(missing, reads.lookups(tables, grouped.space.hashes[with_rows:]))
        output, bound = self._call(grouped, due, sides, reads.portions(missing))
        for part in bound:
            self._write(part)
            part.letters.write()
        self._level.write(self._writer)
        if len(grouped.space):
            reads.note({table: any(part.cursors[table].was_read for part in bound) for table in tables})
            by_rows = {entries_of(table): any(part.cursors[table].was_read_by_rows for part in bound) for table in tables}
            reads.note(by_rows)
        return Outcome(
            output=output,
            rows=rows_in(rows),
            received=len(rows),
            keys=len(grouped.space),
            max_event_ms=newest,
            sides=sides.tables(self._reasoned(late, ordered.late), self._origin_of_key(grouped)),
            dropped=DroppedRows(
                late=rows_in(late) + len(ordered.late or ()),
                dead=sum(len(part.letters) for part in bound),
                early=ordered.early,
                ignored=sum(part.context.ignored for part in bound),
            ),
            task_values=self._level.changed(),
            measures=added_up(part.context.measures for part in bound),
            rows_of_group=grouped.rows_of_group(self._snapshot.manifest.key_groups),
        )

    def _scanned(self) -> dict[str, int]:
        """Time tables that are scanned, and up to which time."""
        scanned = {self._tables.places[name].table: until_ms for name, until_ms in self._until.items()}
        if self._operator.in_order is not None:
            scanned[self._tables.places[WAITING].table] = self._times.watermark_ms
        return scanned

    def _keyed_tables(self) -> dict[str, bool]:
        """Tables that lookups by key may read → whether they are read as far as the declarations tell."""
        tables: dict[str, bool] = {}
        for name, state in self._operator.process.states().items():
            if not isinstance(state, TaskValue | Broadcast):
                table = self._tables.places[name].table
                # Whatever a process does with a value reads the row; the others can be written blindly.
                tables[table] = tables.get(table, False) or isinstance(state, Value)
        return tables

    def _missing_entries(self, reads: TaskReads, grouped: Grouped) -> np.ndarray:
        """Starts to fetch the entries of maps and sets that the rows name. Per key, whether some of it is not at hand."""
        missing = np.zeros(len(grouped.space), bool)
        for name, state in self._operator.process.states().items():
            table = self._tables.places[name].table
            if isinstance(state, Map | Set) and state.prefetch not in (ALL, LAZY) and reads.reads_entries(table):
                # What is wrong with the expression is told where an entry is read.
                with suppress(BadInput, SchemaMismatch):
                    numbers, keys = named_by_rows(state, table, grouped.rows, grouped.starts)
                    of_entries = reads.entries(table, grouped.space.hashes[numbers], hash_columns([keys]))
                    missing[numbers[of_entries]] = True
        return missing

    @property
    def _in_one_call(self) -> bool:
        """Whether the order of its calls among keys shows: one call for all keys, a caller of its own, or task values."""
        process = self._operator.process
        tells = any(isinstance(state, TaskValue) for state in process.states().values())
        return tells or self._operator.traits.caller is not None or isinstance(process, KeyedBatchProcess)

    def _call(
        self, grouped: Grouped, due: Mapping[str, pa.Table], sides: SideOutputs, portions: Sequence[np.ndarray]
    ) -> tuple[pa.Table, list[_Bound]]:
        """``portions``: the numbers of the keys to call for first, while the state of others travels, and so on."""
        bound: list[_Bound] = []
        if len(portions) < 2 or self._in_one_call:
            bound.append(self._bind(grouped, due, sides))
            return self._caller(bound[0]).run(), bound

        def called() -> Iterator[Portion]:
            for numbers in portions:
                bound.append(self._bind(grouped.part(numbers), due, sides, numbers))
                yield Portion(numbers, self._caller(bound[-1]))

        return call_portions(called(), Emitted(self._operator, grouped, self._writer.epoch), sides), bound

    def _bind(
        self, grouped: Grouped, due: Mapping[str, pa.Table], sides: SideOutputs, numbers: np.ndarray | None = None
    ) -> _Bound:
        operator = self._operator
        cursors, handles = self._handles(grouped, due)
        if operator.traits.caller is not None:
            _trust(handles)
        context = Context(
            self._writer.epoch,
            self._times,
            {name: handles[name] for name in self._until},
            sides,
            self._level.resource,
            naive=operator.event_time is not None and _is_naive(grouped.input.schema.field(operator.event_time).type),
            stopwatch_s=self._writer.clock.monotonic_s,
            numbers=numbers,
        )
        letters = DeadLetters(operator.name, grouped.space, self._writer, self._times.processing_ms)
        return _Bound(grouped, cursors, handles, context, letters)

    def _caller(self, part: _Bound) -> Any:
        operator = self._operator
        if operator.on_error == "dead_letter":
            handles = {**part.handles, **self._level.handles}
            return GuardedPerKeyCaller(operator, part.grouped, handles, part.context, part.letters)
        default = PerBatchCaller if isinstance(operator.process, KeyedBatchProcess) else PerKeyCaller
        return (operator.traits.caller or default)(operator, part.grouped, part.handles, part.context)

    def _on_time(self, rows: pa.Table) -> tuple[pa.Table, pa.Table, int | None]:
        column = self._operator.event_time
        if column is None or not len(rows):
            return rows, rows.slice(0, 0), None
        event_ms = as_ms(rows.column(column))
        newest = pc.max(event_ms).as_py()
        strict = self._operator.in_order is not None
        if not (strict or self._operator.judges_rows):
            return rows, rows.slice(0, 0), newest
        kept = self._operator.traits.on_time(rows.column(column), self._times.late_ms)
        if strict:
            # Rows up to the watermark have been released: in event-time order, no lateness can be allowed.
            kept = pc.and_(kept, after_watermark(rows.column(column), self._times.late_ms))
        if pc.all(kept).as_py():
            return rows, rows.slice(0, 0), newest
        return rows.filter(kept), rows.filter(pc.invert(kept)), newest

    def _in_order(self, rows: pa.Table) -> Ordered:
        operator = self._operator
        assert operator.in_order is not None and operator.event_time is not None
        reorder = Reorder(operator.name, operator.in_order, self._tables, operator.event_time, operator.process.order_by)
        return reorder.run(rows, self._snapshot, self._writer, self._times, self._groups)

    def _reasoned(self, late: pa.Table, overtaken: pa.Table | None) -> pa.Table:
        if LATE not in self._operator.sides:
            return late
        reasoned = with_reasons(late, self._operator.name, self._operator.event_time, self._reported_watermark_ms)
        if overtaken is not None:
            reasoned = pa.concat_tables([reasoned.select(overtaken.column_names), overtaken])
        return self._operator.traits.late_rows(reasoned)

    def _due(self, name: str) -> pa.Table:
        place = self._tables.places[name]
        view = self._snapshot.stored(place.table)
        due = list(view.scan(groups=self._groups, times=(-(1 << 63), self._until[name] + 1)))
        return pa.concat_tables([view.empty(), *due])

    def _handles(self, grouped: Grouped, due: Mapping[str, pa.Table]) -> tuple[dict[str, TableCursor], dict[str, Any]]:
        cursors: dict[str, TableCursor] = {}
        clocks = Clocks(self._now_ms, cache(partial(_newest_ms, grouped, self._operator.event_time)), self._operator.lateness_ms)
        handles: dict[str, Any] = {}
        offset = 0
        # An operator with its own caller converts values itself.
        kind: Any = copying if self._operator.traits.caller is None else _unchanged
        for name, state in declared_states(self._operator.process).items():
            if isinstance(state, TaskValue | Broadcast):
                continue
            place = self._tables.places[name]
            if place.table not in cursors:
                cursors[place.table] = TableCursor(place.table, grouped.space, self._snapshot, self._writer, clocks)
            cursor = cursors[place.table]
            match state:
                case Value():
                    handles[name] = kind(ValueHandle, state)(state, place, cursor)
                case Reducing() | Aggregating():
                    handles[name] = kind(ReducingHandle, state)(state, place, cursor)
                case List():
                    handles[name] = kind(ListHandle, state)(state, place, cursor, self._writer.epoch)
                case Set():
                    handles[name] = kind(SetHandle, state)(
                        state, place, cursor, _rows_for_prefetch(state, grouped), grouped.starts
                    )
                case Map():
                    handles[name] = kind(MapHandle, state)(
                        state, place, cursor, _rows_for_prefetch(state, grouped), grouped.starts
                    )
                case Timers():
                    numbers = grouped.more[offset : offset + len(due[name])]
                    offset += len(numbers)
                    own = numbers >= 0
                    times = due[name].column(place.subkey).to_numpy()
                    handles[name] = TimersHandle(place, cursor, (numbers[own], times[own]), self._until[name])
                    handles[name].refusal = self._refusal(name)
        return cursors, handles

    def _refusal(self, timers: str) -> str | None:
        """Why timers of this clock cannot be set, if they would never fire; else None."""
        if not _has_on_timer(self._operator.process):
            return "there is no on_timer(self, key, at, ctx) to be called then: add it"
        # Only Spark's API has its own caller, and there a timer that never fires is no error.
        if timers == EVENT_TIMERS and not (self._operator.has_watermark or self._times.ends or self._operator.traits.caller):
            return f"it would never fire: {NO_WATERMARK}, or set a processing timer"
        return None

    def _origin_of_key(self, grouped: Grouped) -> Callable[[int], str] | None:
        """The number of a key → text for an error in a row emitted for it. None if calls are not per key."""
        if not isinstance(self._operator.process, KeyedProcess):
            return None
        return lambda number: place_of(self._writer.epoch, keys_of(self._operator, grouped)[number], None)

    def _write(self, part: _Bound) -> None:
        values: dict[str, list[OneEntry]] = {}
        try:
            for handle in part.handles.values():
                if isinstance(handle, OneEntry):
                    values.setdefault(handle.place.table, []).append(handle)
                else:
                    handle.write()
            for table, one_per_key in values.items():
                write_values(part.cursors[table], one_per_key)
        except Exception as error:
            if is_users_fault(error):
                self._blame(error, part)
            raise

    def _blame(self, error: Exception, part: _Bound) -> None:
        """Raises an error that names the key and the state whose value is invalid, or that a merge function of the user rejects.
        Such errors occur only when all keys are written at once."""
        operator, epoch = self._operator.name, self._writer.epoch
        for name, handle in part.handles.items():
            for number in range(len(part.grouped.space)):
                handle.i = number
                try:
                    handle.check()
                except Exception as reason:
                    key = keys_of(self._operator, part.grouped)[number]
                    raise UserError.of(operator, epoch, key, None, reason, state=name) from error
        if not isinstance(error, FloodplainError):
            raise UserError.of(operator, epoch, None, None, error) from error


def _has_on_timer(process: Process) -> bool:
    return not isinstance(process, KeyedProcess) or type(process).on_timer is not KeyedProcess.on_timer


def _is_naive(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is None


def _unchanged(kind: type, state: object) -> type:  # noqa: ARG001
    return kind


def _trust(handles: Mapping[str, Any]) -> None:
    for handle in handles.values():
        if not isinstance(handle, TimersHandle):
            handle.trust()


def _rows_for_prefetch(state: Map | Set, grouped: Grouped) -> pa.Table:
    """The rows, if ``prefetch`` evaluates an expression on them; else none, to save sorting them."""
    return grouped.input.slice(0, 0) if state.prefetch in (ALL, LAZY) else grouped.rows


@contextmanager
def _cycle_collector_off() -> Iterator[None]:
    """Disables the cycle collector: a task allocates millions of objects that live until its end, to be scanned repeatedly."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _keys_of(due: Mapping[str, pa.Table], tables: OperatorTables) -> pa.Table:
    return pa.concat_tables([rows.select(list(tables.key_columns.values())) for rows in due.values()])


def _newest_ms(grouped: Grouped, event_time: str | None) -> np.ndarray:
    """Per key, the newest event time among its rows.

    Knows no task: a task knows its handles, and they know this. Rows in such a cycle would stay until the collector runs.
    """
    newest = np.full(len(grouped.space), BEGINNING)
    if event_time is not None and len(grouped.order):
        times = as_ms(pa.chunked_array([grouped.column(event_time)])).fill_null(BEGINNING).to_numpy(zero_copy_only=False)
        newest[: len(grouped.starts) - 1] = np.maximum.reduceat(times, grouped.starts[:-1])
    return newest
