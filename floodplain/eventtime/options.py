"""Options of ``watermark``, validated and turned into a ``WatermarkRule``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from floodplain.errors import BadInput
from floodplain.eventtime.watermarks import Policy, Slack, WatermarkRule
from floodplain.expressions.identifiers import Path
from floodplain.state.durations import to_ms
from floodplain.state.row_expressions import parse_paths

Delay: TypeAlias = str | timedelta | int
"""Of one source: a length of time, or a number of rows."""


@dataclass(frozen=True, slots=True)
class IngestionTime:
    """Event time is ingestion time."""

    column: str = "ingestion_time"


def ingestion_time(column: str = "ingestion_time") -> IngestionTime:
    """For ``watermark``: the event time of a row is the processing time of its epoch, in a new column of this name. No row is
    late, and the watermark advances when no data comes."""
    return IngestionTime(column)


@dataclass(frozen=True, slots=True)
class WatermarkOptions:
    """The options of ``watermark``."""

    delay: str | timedelta | None = None
    slack_rows: int | None = None
    idle: str | timedelta | None = None
    policy: Policy | None = None
    punctuation: str | None = None
    heartbeat: str | None = None
    sources: Mapping[str, Delay] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it asks for no more than Spark's own watermark does."""
        return self.delay is not None and self == WatermarkOptions(delay=self.delay)


def ingestion_rule(time: IngestionTime, options: WatermarkOptions, columns: Mapping[str, Sequence[str]]) -> WatermarkRule:
    """``columns``: source → its columns."""
    if options != WatermarkOptions():
        raise BadInput("watermark: ingestion time needs no further option, because no row is late and no source is waited for")
    taken = [source for source, names in columns.items() if time.column in names]
    if taken:
        raise BadInput(
            f"watermark: there is a column {time.column} already: give the ingestion time another name, as in "
            "ingestion_time('came_at')"
        )
    return WatermarkRule(time.column, {}, ingestion=True)


def source_rule(column: str, options: WatermarkOptions, columns: Mapping[str, Sequence[str]]) -> WatermarkRule:
    """``columns``: source → its columns. Those that have no event time are not waited for."""
    timed = [source for source, names in columns.items() if column in names]
    delays = options.sources or {}
    for source in delays:
        if source not in timed:
            there = ", ".join(filter(None, timed)) or "one without a name"
            raise BadInput(f"watermark: there is no source {source!r} with a column {column}; there are: {there}")
    usual = Slack(_ms(options.delay, "delay"), options.slack_rows)
    marked = options.punctuation is not None or options.heartbeat is not None
    slacks = {source: _slack(delays[source]) if source in delays else usual for source in timed}
    if not marked and not all(slack.kept for slack in slacks.values()):
        raise BadInput(
            "watermark: nothing moves it: give a delay ('10 seconds'), slack_rows, or the column of a punctuation or heartbeat"
        )
    return WatermarkRule(
        column,
        slacks,
        options.policy or "min",
        _ms(options.idle, "idle"),
        _path("punctuation", options.punctuation, columns),
        _path("heartbeat", options.heartbeat, columns),
    )


def time_ms(at: int | datetime) -> int:
    """A point in time as milliseconds; one without a time zone is in UTC."""
    if isinstance(at, datetime):
        aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)
    if isinstance(at, bool) or not isinstance(at, int):
        raise BadInput(f"{at!r} is not a point in time: give milliseconds since 1970 or a datetime")
    return at


def _slack(delay: Delay) -> Slack:
    if isinstance(delay, bool):
        raise BadInput(f"watermark: a delay is a length of time or a number of rows, not {delay}")
    return Slack(rows=delay) if isinstance(delay, int) else Slack(_ms(delay, "delay"))


def _ms(duration: str | timedelta | None, what: str) -> int | None:
    return None if duration is None else to_ms(duration, f"watermark {what}")


def _path(what: str, text: str | None, columns: Mapping[str, Sequence[str]]) -> Path | None:
    """A column, or a field of a struct: more than that is a column made by Spark before the rows come."""
    if text is None:
        return None
    paths = parse_paths(text)
    known = sorted({name for names in columns.values() for name in names})
    if len(paths) != 1 or paths[0][0] not in known:
        raise BadInput(f"watermark: {what}={text!r} is not one of the columns: {', '.join(known)}")
    return paths[0]
