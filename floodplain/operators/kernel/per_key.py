"""Calls a ``KeyedProcess`` key by key, with Python values."""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import UserError, place_of
from floodplain.eventtime.times import NONE_MS, as_ms
from floodplain.operators.kernel.context import Context
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.outputs import OutputConverter, SideOutputs
from floodplain.operators.kernel.process import give_handle
from floodplain.operators.kernel.row_cursor import Rows, failed_at, tuple_type
from floodplain.state.python_values import user_values
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS


class Emitted:
    """The rows that calls have emitted, and by which call."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, epoch: int) -> None:
        self._operator, self._grouped, self._epoch = operator, grouped, epoch
        self.target = OutputConverter(operator.name, operator.output)
        self.rows: list[Any] = []
        self.ends: list[int] = []
        """How many rows were emitted up to the end of each key."""
        self.timer_ends: list[tuple[int, int, int]] = []
        """For each fired timer: how many rows were emitted up to its end, its key number, and its time."""

    def table(self) -> pa.Table:
        return self.target.table(self.rows, self._origin)

    def gather(self, portions: Sequence["Portion"]) -> None:
        """Takes over what was emitted for rows, in the order of keys."""
        ends = [portion.caller.emitted.ends for portion in portions]
        number = np.concatenate([portion.numbers[: len(of)] for portion, of in zip(portions, ends, strict=True)])
        which = np.repeat(np.arange(len(portions)), [len(of) for of in ends])
        place = np.concatenate([np.arange(len(of)) for of in ends])
        order = np.argsort(number)
        for portion, at in zip(which[order].tolist(), place[order].tolist(), strict=True):
            start = ends[portion][at - 1] if at else 0
            self.rows += portions[portion].caller.emitted.rows[start : ends[portion][at]]
            self.ends.append(len(self.rows))

    def _origin(self, at: int) -> str:
        """The call that emitted this row, as text."""
        number = bisect_right(self.ends, at)
        if number < len(self.ends):
            rows, among = self._rows_of(number)
            return place_of(self._epoch, keys_of(self._operator, self._grouped)[number], rows, among=among)
        _, number, at_ms = self.timer_ends[bisect_right(self.timer_ends, at, key=itemgetter(0))]
        return place_of(self._epoch, keys_of(self._operator, self._grouped)[number], None, timer_ms=at_ms)

    def _rows_of(self, number: int) -> tuple[Any, int]:
        """The first row of a key, and how many it has."""
        low, high = self._grouped.starts[number : number + 2].tolist()
        table = self._grouped.rows.slice(low, 1)
        return tuple_type("Row", table.column_names)(*(user_values(column)[0] for column in table.columns)), high - low


class PerKeyCaller:
    """Calls ``process`` for each key that has rows, then ``on_timer`` for each due timer."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        self._operator = operator
        self._process: Any = operator.process
        self._grouped = grouped
        self._handles = list(handles.values())
        self._timers = [handles[EVENT_TIMERS], handles[PROCESSING_TIMERS]]
        self._context = context
        self._by_name = handles
        self.emitted = Emitted(operator, grouped, context.epoch)

    def run(self) -> pa.Table:
        self.call_rows()
        for clock in CLOCKS:
            for number, at_ms in self.firing(clock):
                self.call_timer(number, at_ms)
                self.emitted.timer_ends.append((len(self.emitted.rows), number, at_ms))
        return self.emitted.table()

    def call_rows(self) -> None:
        """Calls ``process`` for each key that has rows."""
        self.attach()
        self._rows(self._keys)

    def firing(self, clock: int) -> Iterator[tuple[int, int]]:
        """(key number, time) of each due timer, sorted by time. Requires: ``call_timer`` for each before the next is taken."""
        return self._timers[clock].fire()

    def call_timer(self, number: int, at_ms: int) -> None:
        self._point(number, at_ms)
        self._timer(self._keys[number], at_ms)

    def attach(self) -> None:
        """Gives the process the handles of these keys."""
        for name, handle in self._by_name.items():
            give_handle(self._process, name, handle)

    @cached_property
    def _keys(self) -> list[Any]:
        return keys_of(self._operator, self._grouped)

    def _point(self, number: int, event_ms: int | None) -> None:
        for handle in self._handles:
            handle.i = number
        self._context.event_time = event_ms

    def _input(self) -> tuple[list[Any], list[int], list[int | None]]:
        """All rows, the start of each key's rows, and the newest event time of each key."""
        table = self._grouped.rows
        row = tuple_type("Row", table.column_names)
        rows = list(map(row._make, zip(*map(user_values, table.columns), strict=True)))
        return rows, self._grouped.starts.tolist(), self._newest()

    def _rows(self, keys: list[Any]) -> None:
        rows, starts, newest = self._input()
        process, context, handles = self._process.process, self._context, self._handles
        out, end = self.emitted.rows, self.emitted.ends.append
        extend = out.extend
        for number in range(len(starts) - 1):
            for handle in handles:
                handle.i = number
            own = rows[starts[number] : starts[number + 1]]
            if len(own) > 1:
                own = Rows(own)
            context.event_time = newest[number]
            try:
                made = process(keys[number], own, context)
                if made is not None:
                    extend(made)
                end(len(out))
            except Exception as error:
                self._blame(error, keys[number], own)

    def _timer(self, key: Any, at_ms: int) -> None:
        try:
            made = self._process.on_timer(key, at_ms, self._context)
            if made is not None:
                self.emitted.rows.extend(made)
        except Exception as error:
            self._blame(error, key, [], at_ms)

    def _blame(self, error: Exception, key: Any, rows: list[Any], timer_ms: int | None = None) -> NoReturn:
        if not is_users_fault(error):
            raise error
        at = failed_at(rows)
        row, among = (None, 1) if not rows else (rows[0], len(rows)) if at is None else (rows[at], 1)
        name, epoch = self._operator.name, self._context.epoch
        raise UserError.of(name, epoch, key, row, error, among=among, timer_ms=timer_ms) from error

    def _newest(self) -> list[int | None]:
        count = len(self._grouped.starts) - 1
        if self._operator.event_time is None or not count:
            return [self._context.watermark] * count
        event_ms = as_ms(self._grouped.rows.column(self._operator.event_time))
        values = pc.fill_null(event_ms, self._context.watermark_ms).to_numpy()
        newest: list[int | None] = np.maximum.reduceat(values, self._grouped.starts[:-1]).tolist()
        return [None if at == NONE_MS else at for at in newest] if event_ms.null_count else newest


CLOCKS = (0, 1)
"""Event time, then processing time."""


class Portion(NamedTuple):
    """Some keys of a task, which are processed together."""

    numbers: np.ndarray
    """Those of its keys among all keys of the task, ascending."""
    caller: PerKeyCaller


def call_portions(portions: Iterable[Portion], emitted: Emitted, sides: SideOutputs) -> pa.Table:
    """As one call for all keys, except that rows are processed portion by portion, as the iterator yields them.

    Timers fire after all rows, in the same order as in one call, and all outputs are in the same order.
    """
    called: list[Portion] = []
    for portion in portions:
        portion.caller.call_rows()
        called.append(portion)
    emitted.gather(called)
    sides.sort()
    for portion in called:
        portion.caller.emitted = emitted
    for clock in CLOCKS:
        attached = None
        for at_ms, number, own_number, caller in heapq.merge(*(_firing(portion, clock) for portion in called)):
            if caller is not attached:
                caller.attach()
                attached = caller
            caller.call_timer(own_number, at_ms)
            emitted.timer_ends.append((len(emitted.rows), number, at_ms))
    return emitted.table()


def _firing(portion: Portion, clock: int) -> Iterator[tuple[int, int, int, PerKeyCaller]]:
    """Sorted by time, then by the number of the key among all of the task: no two are equal in both."""
    for number, at_ms in portion.caller.firing(clock):
        yield at_ms, int(portion.numbers[number]), number, portion.caller


def keys_of(operator: KeyedOperator, grouped: Grouped) -> list[Any]:
    """The keys of a task as named tuples."""
    key = tuple_type("Key", list(operator.keys))
    return list(map(key._make, zip(*map(user_values, grouped.space.keys.columns), strict=True)))
