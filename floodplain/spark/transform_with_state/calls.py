"""One task of a ``StatefulProcessor``: its callbacks in Spark's order, for the keys of the task."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from floodplain.errors import UserError
from floodplain.eventtime.times import as_us
from floodplain.operators.kernel.context import Context
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.spark.transform_with_state.errors import EVENT, NO_TIME, Phase, emitted_too_old
from floodplain.spark.transform_with_state.metrics import DELETED, EXPIRED, TIMER_MS, CountingHandle
from floodplain.spark.transform_with_state.types import Codec


class Calls:
    """``init``; for each key its initial state and its rows; timers that are due; ``close``."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        process: Any = operator.process
        self._operator = operator
        self._process = process
        self._processor = process.processor
        self._epoch = context.epoch
        self._grouped = grouped
        self._watermark_ms = -1 if process.static else max(context.watermark_ms, 0) if process.has_watermark else 0
        self._until_ms = self._watermark_ms if process.time_mode == EVENT else context.processing_time
        self._states = {name: handles[place] for name, place in process.table_names.items()}
        self._timers = handles[process.timers]
        self._pointed = [*self._states.values(), self._timers]
        self._times = _times(process.time_mode, context.processing_time, self._watermark_ms)
        self._flavour = process.flavour(process, grouped)
        self._context = context

    def run(self) -> pa.Table:
        process = self._process
        handle = CountingHandle(process.time_mode, process.declared, self._timers)
        self._guarded(None, None, lambda: self._processor.init(handle))
        handle.attach(self._states)
        self._rows()
        handle.phase = Phase.DATA_PROCESSED
        if process.time_mode != NO_TIME:
            self._measured_expired(handle.counts)
        handle.detach()
        self._guarded(None, None, self._processor.close)
        handle.phase = Phase.CLOSED
        self._context.measures.update(handle.measures())
        output = self._output()
        self._check_event_times(output)
        return output

    def _output(self) -> pa.Table:
        try:
            made: pa.Table = self._flavour.output()
        except Exception as error:
            self._blame(error, None)
        return made

    def _rows(self) -> None:
        pointed, times, flavour = self._pointed, self._times, self._flavour
        handle_input_rows, take = self._processor.handleInputRows, flavour.take
        initial = flavour.initial()
        for number, (key, calls) in enumerate(flavour.groups()):
            for handle in pointed:
                handle.i = number
            if initial is not None:
                for state in initial[number]:
                    self._guarded(key, state, partial(self._processor.handleInitialState, key, state, times))
            for rows in calls:
                try:
                    take(handle_input_rows(key, rows, times))
                except Exception as error:
                    self._blame(error, key, *flavour.first(number))

    def _measured_expired(self, counts: Counter[str]) -> None:
        """As in Spark, a timer that has fired counts as deleted."""
        began_s = self._context.stopwatch_s()
        fired = self._expired()
        counts.update({EXPIRED: fired, DELETED: fired, TIMER_MS: int((self._context.stopwatch_s() - began_s) * 1000)})

    def _expired(self) -> int:
        """What is due now fires by time, whatever callbacks do to it; what they set for the past waits for the next epoch.
        Returns how many fired."""
        due = self._timers.waiting(self._until_ms)
        if not due:
            return 0
        keys = _named_keys(self._grouped, self._process.shape)
        for at_ms, number in due:
            for handle in self._pointed:
                handle.i = number
            key = keys(number)
            try:
                self._fire(key, at_ms)
            except Exception as error:
                self._blame(error, key, timer_ms=at_ms)
            self._timers.delete(at_ms)
        return len(due)

    def _fire(self, key: Any, at_ms: int) -> None:
        made = self._processor.handleExpiredTimer(key=key, timerValues=self._times, expiredTimerInfo=ExpiredTimerInfo(at_ms))
        self._flavour.take(made)

    def _guarded(self, key: Any, row: Any, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            self._blame(error, key, row)

    def _blame(self, error: Exception, key: Any, row: Any = None, among: int = 1, timer_ms: int | None = None) -> NoReturn:
        # What we refuse in Spark's words is raised by us, too.
        if not (isinstance(error, PySparkException) or is_users_fault(error)):
            raise error
        raise UserError.of(self._operator.name, self._epoch, key, row, error, among=among, timer_ms=timer_ms) from error

    def _check_event_times(self, output: pa.Table) -> None:
        column = self._process.shape.event_time_output
        if not column or not len(output):
            return
        # As in Spark, by the watermark of the epoch before: timers give out rows with the time at which they are due.
        before_ms = max(self._context.late_ms, 0) if self._process.has_watermark else 0
        oldest = pc.min(as_us(output.column(column))).as_py()
        if oldest is not None and oldest <= before_ms * 1000 and not self._process.static:
            raise PySparkRuntimeError(emitted_too_old(before_ms, oldest))


def _times(time_mode: str, processing_ms: int, watermark_ms: int) -> TimerValues:
    return TimerValues(-1, -1) if time_mode == NO_TIME else TimerValues(processing_ms, watermark_ms)


def _named_keys(grouped: Grouped, shape: Any) -> Callable[[int], Any]:
    """A key by its number as timers get it: with the names of its columns, and times as the JVM sends them."""
    codec = Codec(StructType([shape.rows[name] for name in shape.keys]))
    columns = [column.to_pylist() for column in grouped.space.keys.columns]
    if len(columns) == 1:
        return lambda number: codec.row(columns[0][number])
    return lambda number: codec.row({name: column[number] for name, column in zip(shape.keys, columns, strict=True)})
