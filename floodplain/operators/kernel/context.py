"""What a process function may ask for besides its state."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from floodplain.eventtime.points import point_ms
from floodplain.eventtime.times import EpochTimes, known_ms
from floodplain.operators.kernel.operator import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.operators.kernel.outputs import Sides
from floodplain.state.timers import TimersHandle


class EpochContext:
    """What is the same for all keys of an epoch. Times are milliseconds since 1970."""

    def __init__(self, epoch: int, times: EpochTimes, resource: Any = None) -> None:
        self.epoch = epoch
        self.processing_time = times.processing_ms
        self.watermark = known_ms(times.watermark_ms)
        """None as long as there is none, and once all of a static input has come."""
        self.watermark_ms, self.late_ms = times.watermark_ms, times.late_ms
        """For operators of our own: the watermarks of this epoch and of the one before, ``NONE_MS`` and ``END_MS`` included."""
        self.resource = resource
        """What ``open`` of the process function returned in this process."""


class Context(EpochContext):
    """What a process function may ask for besides its state."""

    def __init__(
        self,
        epoch: int,
        times: EpochTimes,
        timers: Mapping[str, TimersHandle],
        sides: Sides,
        resource: Any = None,
        *,
        naive: bool = False,
    ) -> None:
        """``naive``: event times have no zone."""
        super().__init__(epoch, times, resource)
        self.event_time = self.watermark
        """The latest event time among the rows of this key in this epoch; the timer's time in ``on_timer``. None where no row
        has one, and there is no watermark yet."""
        self._event, self._processing = timers[EVENT_TIMERS], timers[PROCESSING_TIMERS]
        self.naive = naive
        self.sides = sides
        self.ignored = 0

    def ignore(self, rows: int) -> None:
        """So many rows say nothing to this operator: they are counted, in ``progress.ignored_by``."""
        self.ignored += rows

    def emit(self, side: str, rows: Any) -> None:
        """Give out one row, as a tuple or a dict, or an Arrow table of rows, through a declared side output."""
        self.sides.emit(side, rows, self._event.i)

    def timer(self, at: int | datetime) -> None:
        """Call ``on_timer`` for this key once the watermark reaches this time, in milliseconds or with a time zone."""
        self._event.add(at if type(at) is int else point_ms(at, naive=self.naive))

    def processing_timer(self, at: int | datetime) -> None:
        """Call ``on_timer`` for this key once processing time reaches this time, whether or not data comes."""
        self._processing.add(at if type(at) is int else point_ms(at))

    def delete_timer(self, at: int | datetime) -> None:
        self._event.delete(at if type(at) is int else point_ms(at, naive=self.naive))

    def delete_processing_timer(self, at: int | datetime) -> None:
        self._processing.delete(at if type(at) is int else point_ms(at))

    def timers(self) -> list[int]:
        """The event times set for this key, ascending."""
        return self._event.all()
