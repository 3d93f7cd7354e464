"""The keyed kernel: one task's share of an epoch, from rows and state to rows and a delta."""

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import UserError
from floodplain.eventtime.times import EpochTimes
from floodplain.operators.grouping import Grouped, group
from floodplain.operators.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.collections import ListHandle, MapHandle, SetHandle
from floodplain.state.descriptors import EVENT_TIME, Aggregating, List, Map, Reducing, Set, State, Timers, Value, states_of
from floodplain.state.handles import OneEntry, ReducingHandle, ValueHandle, write_values
from floodplain.state.keyspace import TableCursor
from floodplain.state.tables import OperatorTables, tables_for
from floodplain.state.timers import TimersHandle
from floodplain.state.types import as_fields
from floodplain.store.task import TaskWriter
from floodplain.store.view import Snapshot
from floodplain.versions.edit import GroupRanges
from floodplain.versions.schema import PROCESSING_TIME

EVENT_TIMERS = "event_timers"
PROCESSING_TIMERS = "processing_timers"
_TIMERS: dict[str, State] = {EVENT_TIMERS: Timers("event"), PROCESSING_TIMERS: Timers("processing")}


def declared_states(process: KeyedProcess | KeyedBatchProcess) -> dict[str, State]:
    """The states of an operator, its timers included."""
    return {**states_of(type(process)), **_TIMERS}


def operator_tables(name: str, keys: Mapping[str, pa.DataType], process: KeyedProcess | KeyedBatchProcess) -> OperatorTables:
    return tables_for(name, keys, declared_states(process))


@dataclass(frozen=True, slots=True)
class KeyedOperator:
    """A process function with all that a task must know to run it."""

    name: str
    process: KeyedProcess | KeyedBatchProcess
    keys: Mapping[str, pa.DataType]
    """Key columns as they stand in the rows."""
    event_time: str | None = None
    """The column that rows have their time in, if they have any."""

    @property
    def output(self) -> pa.Schema:
        return pa.schema(as_fields(self.process.output).items())

    @property
    def tables(self) -> OperatorTables:
        return operator_tables(self.name, self.keys, self.process)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task gives back besides its delta."""

    output: pa.Table
    late: int
    rows: int
    keys: int
    max_event_ms: int | None


class Context:
    """What a process function may ask for besides its state. Times are milliseconds since 1970."""

    def __init__(self, epoch: int, times: EpochTimes, timers: Mapping[str, TimersHandle]) -> None:
        self.epoch = epoch
        self.processing_time = times.processing_ms
        self.watermark = times.watermark_ms
        self.event_time = times.watermark_ms
        """The latest event time among the rows of this key in this epoch; the timer's time in ``on_timer``."""
        self._event, self._processing = timers[EVENT_TIMERS], timers[PROCESSING_TIMERS]

    def timer(self, at_ms: int) -> None:
        """Call ``on_timer`` for this key once the watermark reaches ``at_ms``."""
        self._event.add(int(at_ms))

    def processing_timer(self, at_ms: int) -> None:
        """Call ``on_timer`` for this key once processing time reaches ``at_ms``, whether or not data comes."""
        self._processing.add(int(at_ms))

    def delete_timer(self, at_ms: int) -> None:
        self._event.delete(int(at_ms))

    def delete_processing_timer(self, at_ms: int) -> None:
        self._processing.delete(int(at_ms))

    def timers(self) -> list[int]:
        """The event times set for this key, ascending."""
        return self._event.all()


class KeyedTask:
    """Runs an operator for the key groups of one slot in one epoch."""

    def __init__(
        self, operator: KeyedOperator, snapshot: Snapshot, writer: TaskWriter, times: EpochTimes, groups: GroupRanges
    ) -> None:
        self._operator = operator
        self._tables = operator.tables
        self._snapshot = snapshot
        self._writer = writer
        self._times = times
        self._groups = groups
        self._now_ms = {PROCESSING_TIME: times.processing_ms, EVENT_TIME: times.watermark_ms}
        self._until = {EVENT_TIMERS: times.watermark_ms, PROCESSING_TIMERS: times.processing_ms}

    def run(self, rows: pa.Table) -> Outcome:
        """Process the rows, fire what is due, and hand the delta to the writer."""
        rows, late, newest = self._on_time(rows)
        due = {name: self._due(name) for name in self._until}
        grouped = group(rows, self._tables.key_columns, self._operator.process.order_by, _keys_of(due, self._tables))
        handles = self._handles(grouped, due)
        context = Context(self._writer.epoch, self._times, {name: handles[name] for name in self._until})
        if isinstance(self._operator.process, KeyedBatchProcess):
            output = _BatchCall(self._operator, grouped, handles, context).run()
        else:
            output = _EachKey(self._operator, grouped, handles, context).run()
        self._write(handles)
        return Outcome(output, late, len(rows), len(grouped.space), newest)

    def _on_time(self, rows: pa.Table) -> tuple[pa.Table, int, int | None]:
        column = self._operator.event_time
        if column is None or not len(rows):
            return rows, 0, None
        event_ms = _as_ms(rows.column(column))
        newest = pc.max(event_ms).as_py()
        kept = pc.fill_null(pc.greater_equal(event_ms, self._times.late_ms), True)
        late = len(rows) - pc.sum(kept).as_py()
        return (rows.filter(kept) if late else rows), late, newest

    def _due(self, name: str) -> pa.Table:
        place = self._tables.places[name]
        view = self._snapshot.table(place.table)
        found = list(view.scan(groups=self._groups, times=(-(1 << 63), self._until[name] + 1)))
        return pa.concat_tables([view.empty(), *found])

    def _handles(self, grouped: Grouped, due: Mapping[str, pa.Table]) -> dict[str, Any]:
        cursors: dict[str, TableCursor] = {}
        handles: dict[str, Any] = {}
        offset = 0
        for name, state in declared_states(self._operator.process).items():
            place = self._tables.places[name]
            if place.table not in cursors:
                cursors[place.table] = TableCursor(place.table, grouped.space, self._snapshot, self._writer, self._now_ms)
            cursor = cursors[place.table]
            match state:
                case Value():
                    handles[name] = ValueHandle(state, place, cursor)
                case Reducing() | Aggregating():
                    handles[name] = ReducingHandle(state, place, cursor)
                case List():
                    handles[name] = ListHandle(state, place, cursor, self._writer.epoch)
                case Set():
                    handles[name] = SetHandle(state, place, cursor)
                case Map():
                    handles[name] = MapHandle(state, place, cursor)
                case Timers():
                    numbers = grouped.more[offset : offset + len(due[name])]
                    offset += len(numbers)
                    times = due[name].column(place.subkey).to_pylist()
                    handles[name] = TimersHandle(place, cursor, _by_number(numbers, times), self._until[name])
        self._cursors = cursors
        return handles

    def _write(self, handles: Mapping[str, Any]) -> None:
        values: dict[str, list[OneEntry]] = {}
        for handle in handles.values():
            if isinstance(handle, OneEntry):
                values.setdefault(handle.place.table, []).append(handle)
            else:
                handle.write()
        for table, together in values.items():
            write_values(self._cursors[table], together)


class _EachKey:
    """Calls a ``KeyedProcess`` key by key."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        self._operator = operator
        self._process: Any = operator.process
        self._grouped = grouped
        self._handles = list(handles.values())
        self._timers = [handles[EVENT_TIMERS], handles[PROCESSING_TIMERS]]
        self._context = context
        self._key = _tuple_type("Key", list(operator.keys))
        for name, handle in handles.items():
            setattr(self._process, name, handle)
        self._out: list[Any] = []

    def run(self) -> pa.Table:
        keys = list(map(self._key._make, zip(*(column.to_pylist() for column in self._grouped.space.keys.columns), strict=True)))
        self._rows(keys)
        for timers in self._timers:
            for number, at_ms in timers.fire():
                self._point(number)
                self._context.event_time = at_ms
                self._take(keys[number], lambda key, at_ms=at_ms: self._process.on_timer(key, at_ms, self._context), None)
        return _output(self._out, self._operator)

    def _rows(self, keys: list[Any]) -> None:
        table = self._grouped.rows
        row = _tuple_type("Row", table.column_names)
        rows = list(map(row._make, zip(*(column.to_pylist() for column in table.columns), strict=True)))
        newest = self._newest()
        starts = self._grouped.starts.tolist()
        process, context, handles = self._process.process, self._context, self._handles
        extend = self._out.extend
        for number in range(len(starts) - 1):
            for handle in handles:
                handle.i = number
            given = rows[starts[number] : starts[number + 1]]
            context.event_time = newest[number]
            try:
                made = process(keys[number], given, context)
                if made is not None:
                    extend(made)
            except Exception as error:
                raise UserError.of(self._operator.name, context.epoch, keys[number], given[:1], error) from error

    def _newest(self) -> list[int]:
        count = len(self._grouped.starts) - 1
        if self._operator.event_time is None or not count:
            return [self._context.watermark] * count
        event_ms = _as_ms(self._grouped.rows.column(self._operator.event_time))
        values = pc.fill_null(event_ms, self._context.watermark).to_numpy()
        return np.maximum.reduceat(values, self._grouped.starts[:-1]).tolist()

    def _point(self, number: int) -> None:
        for handle in self._handles:
            handle.i = number

    def _take(self, key: Any, call: Any, row: Any) -> None:
        try:
            made: Iterable[Any] | None = call(key)
            if made is not None:
                self._out.extend(made)
        except Exception as error:
            raise UserError.of(self._operator.name, self._context.epoch, key, row, error) from error


class Batch:
    """All keys of a task at once."""

    def __init__(self, grouped: Grouped, handles: Mapping[str, Any]) -> None:
        self.rows = grouped.rows
        self.keys = grouped.space.keys
        self.starts = grouped.starts
        self._handles = handles

    @property
    def key_of_row(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def rows_per_key(self) -> np.ndarray:
        """How many rows each key has in this epoch; 0 for keys that are here for a timer only."""
        return np.append(np.diff(self.starts), np.zeros(len(self.keys) - len(self.starts) + 1, np.int64))

    def state(self, name: str) -> pa.Array:
        """The values of a state, one per key; its default where there is none."""
        return self._handles[name].column()

    def set(self, name: str, values: pa.Array) -> None:
        """Replace the values of a state for all keys; null clears."""
        self._handles[name].replace(values)


class _BatchCall:
    """Calls a ``KeyedBatchProcess`` once."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        self._operator, self._context = operator, context
        self._process: Any = operator.process
        self._batch = Batch(grouped, handles)

    def run(self) -> pa.Table:
        try:
            made = self._process.process(self._batch, self._context)
        except Exception as error:
            raise UserError.of(self._operator.name, self._context.epoch, None, None, error) from error
        schema = self._operator.output
        return schema.empty_table() if made is None else made.select(schema.names).cast(schema)


def _tuple_type(name: str, fields: list[str]) -> Any:
    """A named tuple for columns that are known only now."""
    return namedtuple(name, fields, rename=True)


def _output(rows: list[Any], operator: KeyedOperator) -> pa.Table:
    schema = operator.output
    if not rows:
        return schema.empty_table()
    if isinstance(rows[0], dict):
        columns: Iterator[Any] = ([row.get(name) for row in rows] for name in schema.names)
    else:
        columns = zip(*rows, strict=True)
    return pa.Table.from_arrays(
        [pa.array(list(values), type_) for values, type_ in zip(columns, schema.types, strict=True)], schema=schema
    )


def _keys_of(due: Mapping[str, pa.Table], tables: OperatorTables) -> pa.Table:
    return pa.concat_tables([rows.select(list(tables.key_columns.values())) for rows in due.values()])


def _by_number(numbers: np.ndarray, times: list[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, at_ms in zip(numbers.tolist(), times, strict=True):
        found.setdefault(number, []).append(at_ms)
    return found


def _as_ms(column: pa.ChunkedArray) -> pa.Array:
    """Event times as milliseconds, rounded down; integers are milliseconds already."""
    whole = column.combine_chunks()
    if not pa.types.is_timestamp(whole.type):
        return whole.cast(pa.int64())
    micros = whole.cast(pa.timestamp("us", whole.type.tz)).cast(pa.int64())
    return pa.array(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False) // 1000, mask=np.asarray(micros.is_null()))
