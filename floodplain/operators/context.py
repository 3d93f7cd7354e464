"""What a process function may ask for besides its state."""

from collections.abc import Mapping
from typing import Any

from floodplain.eventtime.times import EpochTimes
from floodplain.operators.operator import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.operators.outputs import Sides
from floodplain.state.timers import TimersHandle


class EpochContext:
    """What is the same for all keys of an epoch. Times are milliseconds since 1970."""

    def __init__(self, epoch: int, times: EpochTimes) -> None:
        self.epoch = epoch
        self.processing_time = times.processing_ms
        self.watermark = times.watermark_ms
        self.late_ms = times.late_ms
        """The watermark of the epoch before, which rows are judged by."""


class Context(EpochContext):
    """What a process function may ask for besides its state."""

    def __init__(self, epoch: int, times: EpochTimes, timers: Mapping[str, TimersHandle], sides: Sides) -> None:
        super().__init__(epoch, times)
        self.event_time = times.watermark_ms
        """The latest event time among the rows of this key in this epoch; the timer's time in ``on_timer``."""
        self._event, self._processing = timers[EVENT_TIMERS], timers[PROCESSING_TIMERS]
        self.sides = sides
        self.ignored = 0

    def ignore(self, rows: int) -> None:
        """So many rows say nothing to this operator: they are counted, in ``progress.ignored_by``."""
        self.ignored += rows

    def emit(self, side: str, rows: Any) -> None:
        """Give out one row, as a tuple or a dict, or an Arrow table of rows, through a declared side output."""
        self.sides.emit(side, rows, self._event.i)

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
