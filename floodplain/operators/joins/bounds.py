"""Time bounds of a join: which rows match, and how long they are buffered: an interval, one window, a ttl, or no bound."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS, as_ms
from floodplain.eventtime.windows import TimeWindows, windows_text
from floodplain.operators.kernel.definition import ParameterSpec
from floodplain.state.descriptors import List, Type
from floodplain.state.durations import duration, to_ms

MOST_MS = 1000 * 366 * 86_400_000


class Bound(ABC):
    """Times are in microseconds. Ends are in milliseconds: the watermark at which a row expires, because no partner can come."""

    def described(self) -> ParameterSpec:
        """The recorded definition: which rows match, and how long they are buffered."""
        return ParameterSpec("bound", {"kind": type(self).__name__, **asdict(self)}, self.text)  # type: ignore[call-overload]

    @property
    @abstractmethod
    def text(self) -> str:
        """The bound as ``explain`` shows it."""

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        """Rows match if ``low <= right.on - left.on <= high``."""
        return 0

    @property
    def ends(self) -> bool:
        """Whether rows expire because no partner can come."""
        return True

    @property
    def dated(self) -> bool:
        """Whether the end of a row follows from its event time; rows without a time have no partners then."""
        return self.ends

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns that it adds to the output."""
        return ()

    def columns(self, ends: np.ndarray) -> list[pa.Array]:  # noqa: ARG002
        """The added columns, for rows with these ends."""
        return []

    @abstractmethod
    def spread(self, at: np.ndarray, side: str, late_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For rows of these times: row number, match value and end, once for each window that a row is in."""

    @abstractmethod
    def on(self, at: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The match values of buffered rows."""

    @abstractmethod
    def state(self, type_: Type) -> List:
        """The state that buffers rows."""

    @abstractmethod
    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array: ...


@dataclass(frozen=True)
class Interval(Bound):
    """``right.time - left.time`` within bounds."""

    low_ms: int
    high_ms: int

    def __post_init__(self) -> None:
        if self.low_ms > self.high_ms:
            raise BadInput(
                f"join: within=({self.low_ms} ms, {self.high_ms} ms) is empty: "
                "give the lower bound of right.time - left.time first"
            )
        if max(abs(self.low_ms), abs(self.high_ms)) > MOST_MS:
            raise BadInput("join: within is longer than a thousand years: omit it to join without bounds")

    @property
    def text(self) -> str:
        return f"right time - left time from {duration(self.low_ms)} to {duration(self.high_ms)}"

    @property
    def low(self) -> int:
        return self.low_ms * 1000

    @property
    def high(self) -> int:
        return self.high_ms * 1000

    def spread(self, at: np.ndarray, side: str, late_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # noqa: ARG002
        return np.arange(len(at)), at, (at + (self.high if side == "left" else -self.low)) // 1000

    def on(self, at: np.ndarray, ends: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return at

    def state(self, type_: Type) -> List:
        return List(type_, ttl=f"{max(self.high_ms - self.low_ms, 1)} ms", ttl_clock="event")

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        return pc.fill_null(pc.greater(as_ms(event_time), late_ms), True)


@dataclass(frozen=True)
class SameWindow(Bound):
    """Rows match in the same window. A row is buffered once for each window it is in, and matched by the window's end."""

    windows: TimeWindows

    def __post_init__(self) -> None:
        if not isinstance(self.windows, TimeWindows) or self.windows.size_ms > MOST_MS:
            raise BadInput(f"join: {self.windows} has no ends that both sides share: use tumbling or sliding windows")

    @property
    def text(self) -> str:
        return f"both in one of {windows_text(self.windows)}"

    def spread(self, at: np.ndarray, side: str, late_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # noqa: ARG002
        times = at // 1000
        ends = self._last_end(times)[:, None] - self.windows.slide_ms * np.arange(self.windows.per_pane)
        row, number = np.nonzero((ends > times[:, None]) & (ends > late_ms))
        return row, ends[row, number], ends[row, number]

    def on(self, at: np.ndarray, ends: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return ends

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return pa.field("window_start", _TIMESTAMP), pa.field("window_end", _TIMESTAMP)

    def columns(self, ends: np.ndarray) -> list[pa.Array]:
        none = ends == NONE_MS
        times = (np.where(none, 0, ends - self.windows.size_ms), np.where(none, 0, ends))
        return [pa.array(bound * 1000, pa.int64(), mask=none).cast(_TIMESTAMP) for bound in times]

    def state(self, type_: Type) -> List:
        return List(type_, ttl=f"{self.windows.size_ms} ms", ttl_clock="event")

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """A row is on time while one of its windows is open."""
        times = as_ms(event_time)
        open_ = self._last_end(times.fill_null(0).to_numpy()) > late_ms
        return pc.or_(pa.array(open_), times.is_null())

    def _last_end(self, times_ms: np.ndarray) -> np.ndarray:
        """The end of the last window that each time is in."""
        return self.windows.last_of(times_ms) + self.windows.size_ms


_TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Lasting(Bound):
    """An event-time ttl: rows of a key match while both live, each for ``ttl_ms`` after its own time, or after the watermark if
    it is late. So which rows on time match does not depend on the epochs."""

    ttl_ms: int

    def __post_init__(self) -> None:
        if not 0 < self.ttl_ms <= MOST_MS:
            raise BadInput(f"join: a ttl of {self.ttl_ms} ms is not possible: use 1 ms to a thousand years, or none")

    @property
    def text(self) -> str:
        return f"rows wait for {duration(self.ttl_ms)} of event time"

    @property
    def low(self) -> int:
        return -self.high

    @property
    def high(self) -> int:
        return self.ttl_ms * 1000 - 1

    @property
    def ends(self) -> bool:
        return False

    @property
    def dated(self) -> bool:
        return True

    def spread(self, at: np.ndarray, side: str, late_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # noqa: ARG002
        since = np.maximum(at, min(max(late_ms, -_MOST_AT_MS), _MOST_AT_MS) * 1000)
        return np.arange(len(at)), since, since // 1000 + self.ttl_ms

    def on(self, at: np.ndarray, ends: np.ndarray) -> np.ndarray:
        return np.maximum(at, (ends - self.ttl_ms) * 1000)

    def state(self, type_: Type) -> List:
        return List(type_, ttl=f"{self.ttl_ms} ms", ttl_clock="event")

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:  # noqa: ARG002
        return pa.repeat(True, len(event_time))


_MOST_AT_MS = (1 << 62) // 1000
"""The largest time that fits into microseconds, with room for a bound."""


@dataclass(frozen=True)
class Unbounded(Bound):
    """All rows of a key match, without an end or with a processing-time ttl."""

    ttl: str | timedelta | None = None

    def described(self) -> ParameterSpec:
        ttl_ms = None if self.ttl is None else to_ms(self.ttl, "ttl")
        return ParameterSpec("bound", {"kind": "Unbounded", "ttl_ms": ttl_ms}, self.text)

    @property
    def text(self) -> str:
        return "rows wait for ever" if self.ttl is None else f"rows wait for {self.ttl} of processing time"

    @property
    def ends(self) -> bool:
        return False

    def spread(self, at: np.ndarray, side: str, late_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # noqa: ARG002
        return np.arange(len(at)), np.zeros(len(at), np.int64), np.empty(0, np.int64)

    def on(self, at: np.ndarray, ends: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.zeros(len(at), np.int64)

    def state(self, type_: Type) -> List:
        return List(type_, ttl=self.ttl)

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:  # noqa: ARG002
        return pa.array(np.ones(len(event_time), bool))
