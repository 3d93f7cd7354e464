"""Contexts of process functions: times, timers and side outputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from floodplain.errors import BadInput
from floodplain.eventtime.points import point_ms
from floodplain.eventtime.times import EpochTimes, known_ms
from floodplain.operators.kernel.outputs import RowLike, SideOutputs
from floodplain.state.frames import FrameLike, as_table, is_frame
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS, TimersHandle


@dataclass(frozen=True, slots=True)
class OpenContext:
    """The argument of ``open``, which is called outside of keys and epochs."""

    operator: str
    """The operator's name."""


class EpochContext:
    """The part of the context that all keys of an epoch share. Times are milliseconds since 1970."""

    def __init__(self, epoch: int, times: EpochTimes, resource: Any = None) -> None:
        self.epoch: int = epoch
        self.processing_time: int = times.processing_ms
        self.watermark: int | None = known_ms(times.watermark_ms)
        """None before the first watermark, and at the end of a static input."""
        self.watermark_ms, self.late_ms = times.watermark_ms, times.late_ms
        """For built-in operators: the watermarks of this epoch and of the one before, ``NONE_MS`` and ``END_MS`` included."""
        self.resource: Any = resource
        """What ``open`` of the process function returned in this process."""
        self._times = times


class Context(EpochContext):
    """The context of a ``KeyedProcess``: times, side outputs, and the timers of the current key."""

    def __init__(
        self,
        epoch: int,
        times: EpochTimes,
        timers: Mapping[str, TimersHandle],
        sides: SideOutputs,
        resource: Any = None,
        *,
        naive: bool = False,
        stopwatch_s: Callable[[], float] = lambda: 0.0,
        numbers: np.ndarray | None = None,
    ) -> None:
        """``naive``: event times have no zone. ``stopwatch_s``: a clock that only goes on, for how long work takes. ``numbers``:
        those of its keys among all keys of the task, if it has a part of them."""
        super().__init__(epoch, times, resource)
        self.event_time: int | None = self.watermark
        """The latest event time among the rows of this key in this epoch; the timer's time in ``on_timer``. None if no row has
        one and there is no watermark yet."""
        self._event, self._processing = timers[EVENT_TIMERS], timers[PROCESSING_TIMERS]
        self.naive = naive
        self.sides = sides
        self._numbers = numbers
        self.ignored = 0
        self.stopwatch_s = stopwatch_s
        self.measures: dict[str, int] = {}
        """What a caller of its own has counted in this task, by name."""

    def ignore(self, rows: int) -> None:
        """Count rows that this operator ignores, in ``progress.ignored_by``."""
        self.ignored += rows

    def emit(self, side: str, rows: RowLike) -> None:
        """Emit one row, as a tuple or a dict, or an Arrow table of rows, to a declared side output."""
        number = self._event.i
        self.sides.emit(side, rows, number if self._numbers is None else int(self._numbers[number]))

    def timer(self, at: int | datetime) -> None:
        """Call ``on_timer`` for this key once the watermark reaches this time, in milliseconds or with a time zone."""
        self._event.add(at if type(at) is int else point_ms(at, naive=self.naive))

    def processing_timer(self, at: int | datetime) -> None:
        """Call ``on_timer`` for this key once processing time reaches this time, even without input."""
        self._processing.add(at if type(at) is int else point_ms(at))

    def delete_timer(self, at: int | datetime) -> None:
        """Delete the event-time timer of this key at a time; one that is not registered is ignored."""
        self._event.delete(at if type(at) is int else point_ms(at, naive=self.naive))

    def delete_processing_timer(self, at: int | datetime) -> None:
        """Delete the processing-time timer of this key at a time; one that is not registered is ignored."""
        self._processing.delete(at if type(at) is int else point_ms(at))

    def timers(self) -> list[int]:
        """The times of the registered event-time timers of this key, ascending."""
        return self._event.all()


class BatchContext(EpochContext):
    """The context of a ``KeyedBatchProcess``: times and side outputs. Timers are set through the batch."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.epoch, context._times, context.resource)
        self._context = context

    def ignore(self, rows: int) -> None:
        """Count rows that this operator ignores, in ``progress.ignored_by``."""
        self._context.ignore(rows)

    def measure(self, name: str, count: int) -> None:
        """Add to a count of a built-in operator, for the progress of the epoch."""
        self._context.measures[name] = self._context.measures.get(name, 0) + count

    def emit(self, side: str, rows: RowLike | FrameLike) -> None:
        """Emit rows to a declared side output, in any form that ``process`` may return."""
        self._context.emit(side, as_table(rows) if is_frame(rows) else rows)

    if not TYPE_CHECKING:  # else a checker would take every attribute for Any

        def __getattr__(self, name: str) -> NoReturn:
            if "timer" in name or name == "event_time":
                raise BadInput(
                    f"ctx.{name} is for one key: in a batch process use the methods of the batch, as batch.timer(times, key_of)"
                )
            raise AttributeError(f"the context of a batch process has no attribute {name!r}")
