"""Window assigners and triggers as users declare them."""

from dataclasses import dataclass
from datetime import timedelta
from math import gcd
from typing import Literal, TypeAlias, get_args

import numpy as np

from floodplain.errors import BadInput
from floodplain.eventtime.times import END_MS
from floodplain.state.descriptors import TimeKind
from floodplain.state.durations import duration, to_ms

Duration: TypeAlias = str | timedelta
Firing: TypeAlias = Literal["accumulating", "discarding", "retracting"]


@dataclass(frozen=True)
class TimeWindows:
    """Windows ``[start, start + size)`` that start every ``slide``. A pane is the longest interval that no window cuts."""

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.slide_ms <= self.size_ms:
            raise BadInput(f"windows of {self.size_ms} ms every {self.slide_ms} ms are not possible: use 0 < slide <= size")

    @property
    def pane_ms(self) -> int:
        return gcd(self.size_ms, self.slide_ms)

    @property
    def per_pane(self) -> int:
        """The number of windows that a pane is in."""
        return -(-self.size_ms // self.slide_ms)

    def pane_of(self, times_ms: np.ndarray) -> np.ndarray:
        """The start of the pane that each time is in."""
        return _floor(times_ms, self.pane_ms, self.offset_ms)

    def last_of(self, times_ms: np.ndarray) -> np.ndarray:
        """The start of the last window that each time is in."""
        return _floor(times_ms, self.slide_ms, self.offset_ms)

    def starts(self, times_ms: np.ndarray) -> np.ndarray:
        """Which of these times are starts of windows."""
        return (times_ms - self.offset_ms) % self.slide_ms == 0

    @property
    def is_global(self) -> bool:
        return self.size_ms == END_MS


def _floor(times_ms: np.ndarray, step_ms: int, offset_ms: int) -> np.ndarray:
    return np.zeros_like(times_ms) if step_ms == END_MS else times_ms - (times_ms - offset_ms) % step_ms


@dataclass(frozen=True)
class SessionWindows:
    """Rows of a key that are at most ``gap`` apart; the window ends ``gap`` after the last."""

    gap_ms: int

    def __post_init__(self) -> None:
        if self.gap_ms <= 0:
            raise BadInput("a session needs a gap")


@dataclass(frozen=True)
class CountWindows:
    """``size`` rows of a key, every ``slide`` rows."""

    size: int
    slide: int

    def __post_init__(self) -> None:
        _check_count("count_window", self.size, self.slide)
        if not 0 < self.slide <= self.size:
            raise BadInput(f"windows of {self.size} rows every {self.slide} rows are not possible: use 0 < slide <= size")


def _check_count(what: str, *counts: int) -> None:
    for number in counts:
        if not isinstance(number, int):
            raise BadInput(f"{what}: {number!r} is no number of rows: give an int")


Windows: TypeAlias = TimeWindows | SessionWindows | CountWindows


def windows_text(windows: Windows) -> str:
    """The windows as ``explain`` shows them."""
    match windows:
        case CountWindows(size=size, slide=slide):
            return f"windows of {size} rows" + ("" if slide == size else f" every {slide}")
        case SessionWindows(gap_ms=gap):
            return f"sessions with a gap of {duration(gap)}"
        case TimeWindows(is_global=True):
            return "one window for all rows"
        case TimeWindows(size_ms=size, slide_ms=slide, offset_ms=offset):
            moved = f", offset {duration(offset)}" if offset else ""
            kind = f"tumbling windows of {duration(size)}" if size == slide else f"sliding windows of {duration(size)}"
            return kind + ("" if size == slide else f" every {duration(slide)}") + moved


GLOBAL = TimeWindows(END_MS, END_MS)
"""One window for all rows, which ends with the input."""


def tumbling(size: Duration, *, offset: Duration = "0 seconds") -> TimeWindows:
    """Windows that do not overlap. They start at multiples of ``size`` since 1970, shifted by ``offset``."""
    size_ms = to_ms(size, "window size")
    return TimeWindows(size_ms, size_ms, to_ms(offset, "window offset"))


def sliding(size: Duration, slide: Duration, *, offset: Duration = "0 seconds") -> TimeWindows:
    """Windows of this size that start every ``slide``. They share panes. With ``early=``, ``late=``, or a ``firing=`` that
    discards or retracts, each window has its own state."""
    return TimeWindows(to_ms(size, "window size"), to_ms(slide, "window slide"), to_ms(offset, "window offset"))


def session(gap: Duration) -> SessionWindows:
    """Rows of a key at most ``gap`` apart, as in Spark. A row that bridges two windows merges them."""
    return SessionWindows(to_ms(gap, "session gap"))


def count_window(size: int, slide: int | None = None) -> CountWindows:
    """``size`` rows of a key, every ``slide`` rows. Within an epoch rows are in the order of event time, if they have one."""
    return CountWindows(size, size if slide is None else slide)


def global_window() -> TimeWindows:
    """One window for all rows of a key, with or without a time. It fires as ``early=`` says. Without ``early=`` it fires at the
    end of the input: a static DataFrame has one, and on a stream ``start`` refuses it."""
    return GLOBAL


@dataclass(frozen=True)
class Trigger:
    """When a window fires besides at its end; only if it has rows since its last firing."""

    rows: int = 1
    interval_ms: int = 0
    clock: TimeKind = "processing"

    @property
    def each_epoch(self) -> bool:
        return self.rows == 1 and not self.interval_ms

    def __str__(self) -> str:
        if self.interval_ms:
            return f"every {duration(self.interval_ms)} of {self.clock} time"
        return "in every epoch" if self.each_epoch else f"every {self.rows} rows"


EACH_EPOCH = Trigger()


def every(interval: Duration, clock: TimeKind = "processing") -> Trigger:
    """Fire at multiples of the interval: of processing time, or of event time (when the watermark passes them)."""
    interval_ms = to_ms(interval, "trigger interval")
    if not interval_ms or clock not in get_args(TimeKind):
        raise BadInput(f"every({interval!r}, {clock!r}): give an interval above 0, and 'processing' or 'event'")
    return Trigger(interval_ms=interval_ms, clock=clock)


def every_rows(rows: int) -> Trigger:
    """Fire when a window has this many rows since its last firing. Checked once per epoch."""
    _check_count("every_rows", rows)
    if rows < 1:
        raise BadInput(f"every_rows({rows}): give a number of rows from 1 on")
    return Trigger(rows=rows)


def every_epoch() -> Trigger:
    """Fire in each epoch that brings rows."""
    return EACH_EPOCH


def check_windows(windows: object) -> None:
    """Raises unless these are windows."""
    if not isinstance(windows, TimeWindows | SessionWindows | CountWindows):
        size = windows if isinstance(windows, str) else "10 seconds"
        raise BadInput(f"window: {windows!r} is no kind of windows: give one, as in window(fp.tumbling({size!r}))")


def check_trigger(name: str, trigger: object) -> None:
    """Raises unless it is a trigger. ``name``: the argument that it was given for."""
    if not isinstance(trigger, Trigger):
        interval = trigger if isinstance(trigger, str) else "1 second"
        raise BadInput(
            f"window: {name}={trigger!r} is no trigger: give one, as in {name}=fp.every({interval!r}), fp.every_rows(100) or "
            "fp.every_epoch()"
        )
