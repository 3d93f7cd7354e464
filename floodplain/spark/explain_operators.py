"""Operators in words: what each does with its rows, as short facts, and whether rows are put together on the way to it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import singledispatch
from typing import Any, Literal

from floodplain.operators.aggregate import Aggregate
from floodplain.operators.combining import Combiner
from floodplain.operators.dedupe import Dedup
from floodplain.operators.firing import Rules
from floodplain.operators.join import Join
from floodplain.operators.join_asof import AsOfJoin
from floodplain.operators.join_bounds import Interval, Lasting, SameWindow, Unbounded
from floodplain.operators.join_columns import AT, RIGHT_SIDE
from floodplain.operators.last import Latest
from floodplain.operators.lookup import NOW, StateLookup
from floodplain.operators.pivot import Pivot
from floodplain.operators.process import Process
from floodplain.operators.reducing import Extreme, ExtremeBy
from floodplain.operators.reserved import PREFIX
from floodplain.operators.running import RunningAggregate
from floodplain.operators.top import Top
from floodplain.operators.windowing import WindowAggregate
from floodplain.operators.windowprocess import ALL
from floodplain.operators.windows import CountWindows, SessionWindows, TimeWindows, Trigger, Windows
from floodplain.spark.columns import written
from floodplain.spark.names import unquoted
from floodplain.spark.plan import Keyed, Rest, Select

LONGEST = 70
_SHOWN_FIELDS = ("k", "q", "rsd")
"""Of aggregates, besides their arguments."""


def operator_facts(step: Keyed) -> list[str]:
    """What it does, by which keys and by which time, as far as the pipeline says it."""
    made = dict(step.parent.columns) if isinstance(step.parent, Select) else {}
    found = [*_facts(step.process, made), keyed_by(step.keys)]
    if step.event_time == AT:
        times = getattr(step.process, "times", ())
        found.append(f"event time {' and '.join(dict.fromkeys(times))}")
    elif step.event_time is not None:
        found.append(f"event time {step.event_time}")
    return [short(fact) for fact in found]


def keyed_by(keys: tuple[str, ...]) -> str:
    return "as one group" if keys == (ALL,) else f"by {', '.join(keys)}"


@singledispatch
def _facts(process: Process, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    """``made``: the columns that were made for the operator, with their expressions."""
    return [_named(process)]


@_facts.register
def _(process: WindowAggregate, made: Mapping[str, Any]) -> list[str]:
    rules = [] if isinstance(process.windows, CountWindows) else _rules(process.rules)
    return [_windows(process.windows), *_aggregates(process.aggregates, made), *rules]


@_facts.register
def _(process: RunningAggregate, made: Mapping[str, Any]) -> list[str]:
    return ["of all rows so far", *_aggregates(process.aggregates, made), f"mode {process.mode}"]


@_facts.register
def _(process: Join, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    match process.bound:
        case Interval(low_ms=low, high_ms=high):
            bound = f"right time - left time from {duration(low)} to {duration(high)}"
        case SameWindow(windows=windows):
            bound = f"both in one of {_windows(windows)}"
        case Lasting(ttl_ms=ttl_ms):
            bound = f"rows wait for {duration(ttl_ms)} of event time"
        case Unbounded(ttl=ttl):
            bound = "rows wait for ever" if ttl is None else f"rows wait for {ttl} of processing time"
        case other:
            bound = _named(other)
    return [f"{process.how} join", bound]


@_facts.register
def _(process: AsOfJoin, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    return [f"{process.how} join", "with the newest right row that is not later"]


@_facts.register
def _(process: Top, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    ties = ["ties stay"] if process.ties else []
    until = [f"until {process.until}"] if process.until is not None else []
    return [f"top {process.count} by {process.by}", *ties, *until, f"mode {process.mode}"]


@_facts.register
def _(process: Latest, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    ttl = [f"forgotten after {process.ttl}"] if process.ttl is not None else []
    return [f"{process.keep} row by {process.by or 'event time'}", *ttl, f"mode {process.mode}"]


@_facts.register
def _(process: Dedup, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    within = [] if process.within_ms is None else [f"within {duration(process.within_ms)}"]
    return [f"first row by {process.by or 'event time'}", *within]


@_facts.register
def _(process: Pivot, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    by = f" by {process.by or 'event time'}" if process.repeats == "last" else ""
    names = ", ".join(name for _, name in process.kinds)
    return [f"{process.value} by {process.kind} as {names}", f"{process.repeats}{by}", f"mode {process.mode}"]


@_facts.register
def _(process: StateLookup, made: Mapping[str, Any]) -> list[str]:  # noqa: ARG001
    at = process.at if process.at == NOW else f"epoch {process.at}" if isinstance(process.at, int) else f"tag {process.at}"
    return [f"{process.how} lookup in {process.table}", f"state at {process.location}", f"as of {at}"]


def _windows(windows: Windows) -> str:
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


def _rules(rules: Rules) -> list[str]:
    early = [] if rules.early is None else [f"early results {_trigger(rules.early)}"]
    late = [] if rules.late.each_epoch else [f"late results {_trigger(rules.late)}"]
    return [f"lateness {duration(rules.lateness_ms)}", *early, *late, rules.firing]


def _trigger(trigger: Trigger) -> str:
    if trigger.interval_ms:
        return f"every {duration(trigger.interval_ms)} of {trigger.clock} time"
    return "in every epoch" if trigger.each_epoch else f"every {trigger.rows} rows"


def _aggregates(aggregates: Mapping[str, Aggregate], made: Mapping[str, Any]) -> Iterator[str]:
    for name, aggregate in aggregates.items():
        arguments = [expression(made.get(each, each)) for each in aggregate.arguments]
        arguments += [f"{each}={getattr(aggregate, each)}" for each in _SHOWN_FIELDS if hasattr(aggregate, each)]
        where = "" if aggregate.where is None else f" where {expression(made.get(aggregate.where, aggregate.where))}"
        yield f"{name} = {_function(aggregate)}({', '.join(arguments)}){where}"


def _function(aggregate: Aggregate) -> str:
    if isinstance(aggregate, Extreme | ExtremeBy):
        return ("max" if aggregate.greatest else "min") + ("_by" if isinstance(aggregate, ExtremeBy) else "")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(aggregate).__name__).lower()


def column_facts(columns: tuple[tuple[str, Any], ...], chosen: bool) -> list[str]:
    """The columns that a step makes, under the names that users gave."""
    sides = [f"{'right' if made == 'true' else 'left'} side" for name, made in columns if name == RIGHT_SIDE]
    told = [_column(name, made, chosen) for name, made in columns if name not in (RIGHT_SIDE, ALL)]
    return [*sides, short(", ".join(told))] if told else sides


def _column(name: str, made: Any, chosen: bool) -> str:
    if isinstance(made, Rest):
        return "all other columns" if made.but else "the whole row"
    text = expression(made)
    return text if text == name or name == AT or (chosen and name.startswith(PREFIX)) else f"{name} = {text}"


def expression(made: Any) -> str:
    """As the user wrote it; a name without quotes."""
    text = written(made)
    return str(made) if text is None else unquoted(text) or text


@dataclass(frozen=True)
class Together:
    """Whether rows of a key are put together on the way to an operator, before they are exchanged."""

    when: Literal["on", "auto", "off"]
    why: str = ""
    """Why they are not, or what is known of the next epoch."""
    exchanges: int | None = None
    """How many exchanges it takes besides that to the slots; None if that is known only once the columns are."""

    def __str__(self) -> str:
        by = {None: "", 0: ", where they are read", 1: ", by Spark with an exchange of its own"}[self.exchanges]
        return f"rows put together before the exchange: {self.when}{f' ({self.why})' if self.why else ''}{by}"


def together(step: Keyed, running: Process | None, hindered: str, now: bool | None) -> Together | None:
    """None for an operator that needs every row. ``running``: the process once its columns are known. ``hindered``: why rows
    come as they are though the operator could do without. ``now``: whether the next epoch does it, if that is known."""
    asked = getattr(step.process, "partial", None)
    if asked is None:
        return None
    combiner: Combiner | None = (step.process if running is None else running).combiner
    later = running is None and _combines_later(step.process)
    if not asked or hindered or (combiner is None and not later):
        return Together("off", hindered)
    known = "" if asked != "auto" or now is None else "in the next epoch" if now else "not in the next epoch"
    return Together("auto" if asked == "auto" else "on", known, None if combiner is None else int(combiner.sql() is not None))


def _combines_later(process: Process) -> bool:
    """Whether it will say how to put rows together once their columns are known."""
    return isinstance(process, RunningAggregate) or (
        isinstance(process, WindowAggregate) and isinstance(process.windows, TimeWindows)
    )


def _named(value: Any) -> str:
    """Its class, and what it was given that is not as usual."""
    if not is_dataclass(value):
        return type(value).__name__ if isinstance(value, Process) else str(value)
    given = [
        (item.name, getattr(value, item.name))
        for item in fields(value)
        if item.init and item.repr and not item.name.startswith("_") and getattr(value, item.name) != _default(item)
    ]
    parts = [f"{name}={', '.join(found) if isinstance(found, Mapping) else _named(found)}" for name, found in given]
    return f"{type(value).__name__}({', '.join(parts)})" if parts else type(value).__name__


def _default(item: Any) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def duration(time_ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if time_ms and time_ms % size == 0:
            return f"{time_ms // size} {unit}"
    return f"{time_ms} ms"


def short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
