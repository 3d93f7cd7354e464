"""Per-source watermarks and their combination. No clock, no Spark.

All that a rule needs of the past is in the manifest, as times that only advance, so a restart continues with the same watermark.
An epoch's watermark follows from the rows before it; its own rows count for the next one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS, check_time
from floodplain.expressions.identifiers import Path
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.row_expressions import evaluate
from floodplain.state.tables import safe_names

Policy: TypeAlias = Literal["min", "max"]
MOST_ROWS = 100_000
"""The most rows of slack: that many times are kept for each source and written with each epoch."""
_LONGEST_NAME = 50
NEWEST = "__newest_times"
"""The table that has the newest event times of sources with slack in rows. No operator's table can be called so."""


@dataclass(frozen=True, slots=True)
class Slack:
    """How far a source's watermark stays behind its newest rows; if both are given, behind both. With neither, rows do not
    move it: punctuations and heartbeats do."""

    time_ms: int | None = None
    """The newest event time less this."""
    rows: int | None = None
    """The newest event time that has this many newer ones: of ``rows + 1`` times, the oldest. It does not depend on the order
    in which rows come, or on how they fall into epochs."""

    @property
    def kept(self) -> int:
        """The number of newest times that it needs."""
        return 0 if self.time_ms is None and self.rows is None else (self.rows or 0) + 1

    def mark_ms(self, newest: tuple[int, ...]) -> int:
        """The watermark by these event times, newest first."""
        marks = [] if self.time_ms is None else [newest[0] - self.time_ms if newest else NONE_MS]
        if self.rows is not None:
            marks.append(newest[self.rows] if len(newest) > self.rows else NONE_MS)
        return min(marks, default=NONE_MS)


@dataclass(frozen=True, slots=True)
class SourceObservation:
    """The event times of a source in one epoch."""

    rows: int = 0
    newest: tuple[int, ...] = ()
    """The newest event times of its rows, newest first: as many as the slack needs, or all."""
    promised_ms: int = NONE_MS
    """The latest time named by a punctuation or heartbeat: all events up to it have come."""
    ignored: int = 0
    """Heartbeats with further values, which are dropped."""


_ALIVE = "alive_"


@dataclass(frozen=True)
class WatermarkRule:
    """How the watermark of a pipeline follows from its sources."""

    column: str
    """The column that has the event time."""
    sources: Mapping[str, Slack]
    policy: Policy = "min"
    """``min``: the slowest source counts; ``max``: the fastest."""
    idle_ms: int | None = None
    """A source without rows for this long does not hold the others back until it has some again."""
    punctuation: Path | None = None
    heartbeat: Path | None = None
    ingestion: bool = False
    """Event time is the time of the epoch, in a column that is made for it; no row is ever late."""

    def __post_init__(self) -> None:
        if self.policy not in ("min", "max"):
            raise BadInput(f"watermark: policy={self.policy!r} is not known: use 'min' or 'max'")
        for source, slack in self.sources.items():
            if slack.rows is not None and not 1 <= slack.rows <= MOST_ROWS:
                raise BadInput(f"watermark: a slack of {slack.rows} rows is not possible: use 1 to {MOST_ROWS}")
            if len(source) > _LONGEST_NAME:
                raise BadInput(f"watermark: the name of source {source!r} is too long: use up to {_LONGEST_NAME} characters")

    def check(self, rows: pa.Schema) -> None:
        """Raises ``BadInput`` unless the columns that it goes by are times."""
        for path in () if self.ingestion else ((self.column,), self.punctuation, self.heartbeat):
            if path is not None:
                check_time("watermark", ".".join(path), evaluate(path, rows.empty_table()).type)

    @property
    def counts_rows(self) -> bool:
        return any(slack.rows is not None for slack in self.sources.values())

    def watermark_ms(self, before: Mapping[str, int], now_ms: int, started_ms: int = NONE_MS) -> int:
        """The watermark of an epoch at this time, given the times in the manifest; never below the one that is there.

        ``started_ms``: when the driver started. A time-out begins anew then: nobody has looked at the sources before.
        """
        floor = before.get(EVENT_TIME, NONE_MS)
        if self.ingestion:
            return max(floor, now_ms - 1)  # an epoch in the same millisecond may still follow
        names = self._names()
        marks = {source: before.get(_mark(name), NONE_MS) for source, name in names.items()}
        active = [source for source, name in names.items() if not self._idle(before.get(_alive(name)), now_ms, started_ms)]
        pick = min if self.policy == "min" and active else max
        return max(floor, pick((marks[source] for source in active or marks), default=NONE_MS))

    def _idle(self, alive_ms: int | None, now_ms: int, started_ms: int) -> bool:
        return self.idle_ms is not None and alive_ms is not None and now_ms - max(alive_ms, started_ms) >= self.idle_ms

    def advanced(self, before: Mapping[str, int], seen: Mapping[str, SourceObservation], now_ms: int) -> dict[str, int]:
        """The times that an epoch moves, for its edit. ``seen`` has, of a source with slack in rows, the newest of all epochs.

        ``now_ms``: when the epoch ends, so that a long one does not make a source idle that had rows in it.
        """
        moved: dict[str, int] = {}
        for source, name in self._names().items():
            observation = seen.get(source, SourceObservation())
            mark_ms = max(
                before.get(_mark(name), NONE_MS), self.sources[source].mark_ms(observation.newest), observation.promised_ms
            )
            if mark_ms > NONE_MS:
                moved[_mark(name)] = mark_ms
            if observation.rows or observation.promised_ms > NONE_MS or _alive(name) not in before:
                moved[_alive(name)] = max(before.get(_alive(name), now_ms), now_ms)
        return moved

    def by_clock(self, name: str) -> bool:
        """Whether the time of this name in a manifest is by processing time."""
        return name.startswith(_ALIVE) or (self.ingestion and name == EVENT_TIME)

    def _names(self) -> dict[str, str]:
        """Source → its name in the manifest."""
        return {"": "input"} if "" in self.sources else safe_names(self.sources)


def newest_of(known: tuple[int, ...], more: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The newest of both, newest first."""
    return tuple(sorted((*known, *more), reverse=True)[:count])


def _mark(name: str) -> str:
    """The watermark of one source."""
    return f"mark_of_{name}"


def _alive(name: str) -> str:
    """When a source last had rows, in processing time."""
    return f"{_ALIVE}{name}"
