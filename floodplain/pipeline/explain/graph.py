"""The dataflow graph that ``explain`` shows: boxes and arrows with their logical and physical facts. Text and pictures are
rendered from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from floodplain.eventtime.watermarks import Slack, WatermarkRule
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import traits_of
from floodplain.pipeline.explain.operators import (
    PreAggregation,
    column_facts,
    operator_facts,
    preaggregation_of,
    short,
)
from floodplain.plan.definitions import expression, keyed_by
from floodplain.plan.nodes import (
    MAIN,
    Extend,
    Input,
    Keyed,
    Node,
    Outlet,
    Plan,
    Select,
    Side,
    Transform,
    Union,
    output_of,
    parents,
    some_of,
)
from floodplain.runtime.epoch_plan import read_directly, reads_in_slots
from floodplain.sinks.base import Sink
from floodplain.state.durations import duration
from floodplain.versions.records.definition import Definition
from floodplain.versions.records.edit import Assignment
from floodplain.versions.records.user_names import UserNames

Kind: TypeAlias = Literal["input", "step", "operator", "sink"]
Flow: TypeAlias = Literal["spark", "exchange", "staged", "files", "broadcast"]
"""How rows get from one box to the next: ``spark``: in the same Spark job; ``exchange``: by a shuffle, or to the workers that own
their slots; ``staged``: staged by slot of the next operator, or kept by workers, and read without a shuffle; ``files``: as staged
files that a sink publishes or Spark reads; ``broadcast``: collected and sent to all tasks."""


@dataclass(frozen=True)
class About:
    """Facts about a pipeline besides its plan. Those of its input are always known, the others once it runs."""

    sources: tuple[str, ...] = ()
    delay_ms: int | None = None
    """The delay of Spark's watermark; None with another watermark."""
    slots: int | None = None
    """The most that an operator has."""
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    """Operator → its slots."""
    key_groups: int | None = None
    location: str | None = None
    operators: Mapping[str, KeyedOperator] = field(default_factory=dict)
    schemas: Mapping[tuple[str, str], pa.Schema] = field(default_factory=dict)
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    """Operator → its definition recorded in the log."""
    preaggregates: Mapping[str, bool] = field(default_factory=dict)
    """Operator → whether its rows are pre-aggregated before the shuffle in the next epoch."""
    engine: str = ""
    """What the engine says of itself, once it runs."""
    input_ways: Mapping[str, str] = field(default_factory=dict)
    """Input → which way its rows take to workers that stay, and why; none without such workers."""


@dataclass(frozen=True)
class Box:
    """A step of the dataflow. ``lines`` are its logical facts; ``physical`` and ``preaggregation`` tell how it runs."""

    kind: Kind
    title: str
    lines: tuple[str, ...] = ()
    physical: tuple[str, ...] = ()
    preaggregation: PreAggregation | None = None
    slots: int | None = None
    """If operators differ in them."""

    @property
    def all_lines(self) -> tuple[str, ...]:
        """Its logical and physical facts, without the title."""
        slots = () if self.slots is None else (slots_text(self.slots),)
        return (*self.lines, *slots, *(() if self.preaggregation is None else (str(self.preaggregation),)), *self.physical)


@dataclass(frozen=True)
class Arrow:
    """An edge between two boxes, by their numbers."""

    start: int
    end: int
    flow: Flow
    label: str = ""


@dataclass(frozen=True)
class Graph:
    """The boxes in topological order, and the arrows between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    about: About

    def into(self, number: int) -> list[Arrow]:
        """The arrows that end at a box."""
        return [arrow for arrow in self.arrows if arrow.end == number]


def dataflow_graph(plan: Plan, about: About, end: Node | None = None) -> Graph:
    """``end``: the last step of a stream that has no sink yet."""
    return _GraphBuilder(plan, about, end).build()


class _GraphBuilder:
    def __init__(self, plan: Plan, about: About, end: Node | None) -> None:
        self._plan = Plan([Outlet("", end, _NO_SINK)], plan.event_time, plan.watermark) if end is not None else plan
        self._about = about
        self._boxes: list[Box] = []
        self._arrows: list[Arrow] = []
        self._number: dict[Node, int] = {}

    def build(self) -> Graph:
        for node in self._plan.nodes:
            if isinstance(node, Side):
                self._number[node] = self._number[node.parent]
                continue
            self._number[node] = len(self._boxes)
            self._boxes.append(self._box(node))
            self._arrows += [self._arrow(parent, node) for parent in parents(node)]
        for outlet in self._plan.outlets:
            if outlet.sink is not _NO_SINK:
                self._outlet(outlet)
        return Graph(tuple(self._boxes), tuple(self._arrows), self._about)

    def _box(self, node: Input | Transform | Select | Extend | Union | Keyed) -> Box:
        match node:
            case Input(tag=""):
                return Box("input", "input", (*_sources(self._about), *_time(self._plan, self._about)))
            case Input(tag=tag):
                return Box("input", f"broadcast to {tag}")
            case Transform(function=function):
                name = getattr(function, "__name__", "")
                return Box("step", "transform", () if name in ("", "<lambda>") else (name,))
            case Select(only=only, chosen=chosen):
                rows = (f"rows of {only[1]}",) if only else ()
                return Box("step", "select", (*rows, *column_facts(self._plan.columns(node), chosen)))
            case Extend(columns=columns, where=where):
                facts = [f"{name} = {expression(made)}" for name, made in columns]
                facts += [] if where is None else [expression(where)]
                return Box("step", "with columns" if columns else "where", tuple(map(short, facts)))
            case Union():
                return Box("step", "union")
            case _:
                return self._operator(node)

    def _operator(self, step: Keyed) -> Box:
        bound = self._about.operators.get(step.name)
        process = bound.process if bound is not None else step.process
        lines = operator_facts(step, self._about.definitions.get(step.name))
        running = None if bound is None else bound.process
        preaggregation = preaggregation_of(step, running, self._hindrance(step), self._about.preaggregates.get(step.name))
        if preaggregation is not None and self._about.input_ways:
            preaggregation = replace(preaggregation, exchanges=0)
        return Box("operator", step.name, tuple(lines), tuple(_tables(bound, process)), preaggregation, self._slots(step.name))

    def _slots(self, operator: str) -> int | None:
        assignments = self._about.assignments
        counts = {assignment.slots for assignment in assignments.values()}
        return assignments[operator].slots if len(counts) > 1 else None

    def _hindrance(self, step: Keyed) -> str:
        """Why its rows cannot be pre-aggregated, whatever ``partial`` says; empty if they can."""
        if self._reads_staged(step.parent, step):
            return "no exchange"
        return "rows come in order" if step.in_order is not None else "late rows are read" if self._plan.wants_late(step) else ""

    def _arrow(self, parent: Node, node: Node) -> Arrow:
        start, end, named = self._number[parent], self._number[node], output_of(parent)
        if isinstance(node, Keyed) and parent is node.broadcast:
            return Arrow(start, end, "broadcast", "to all tasks")
        side = f"{named[1]}: " if named is not None and named[1] != MAIN else ""
        if isinstance(node, Keyed):
            staged, by = self._reads_staged(parent, node), keyed_by(node.keys)
            return Arrow(start, end, "staged" if staged else "exchange", f"{side}{self._exchange(named, staged=staged)} {by}")
        return Arrow(start, end, "spark" if named is None else "files", side.removesuffix(": "))

    def _exchange(self, named: tuple[str, str] | None, *, staged: bool) -> str:
        workers = bool(self._about.input_ways)
        if not staged:
            return "to workers" if workers else "shuffle"
        if not workers or named is None:
            return "staged"
        return "kept" if read_directly(self._plan, named, self._about.schemas[named], self._about.assignments) else "staged"

    def _reads_staged(self, parent: Node, reader: Keyed) -> bool:
        """Whether tasks read these rows from staged files, without a shuffle."""
        named, conditions = some_of(parent)
        if named is None or not reads_in_slots(self._plan, named, reader, self._about.assignments):
            return False
        columns = self._about.schemas.get(named)
        return columns is None or all(condition.fits(columns) for condition in conditions)

    def _outlet(self, outlet: Outlet) -> None:
        columns = self._about.schemas.get(outlet.staged_as)
        lines = (_sink(outlet.sink), *(() if columns is None else (short(columns_of(columns)),)))
        named = output_of(outlet.node)
        label = "" if named is None or named[1] == MAIN else named[1]
        self._arrows.append(Arrow(self._number[outlet.node], len(self._boxes), "files", label))
        self._boxes.append(Box("sink", outlet.name, lines))


class _NoSink(Sink):
    """The placeholder sink of a stream that has none yet."""

    def publish(self, epoch: int, files: Any, blobs: Any, schema: pa.Schema) -> None:
        raise NotImplementedError


_NO_SINK = _NoSink()


def _tables(bound: KeyedOperator | None, process: Process) -> list[str]:
    if bound is not None:
        names = UserNames({bound.name: bound.traits.described(str).recorded})
        return [f"table {names.table(schema.table)}" for schema in bound.tables.schemas]
    if traits_of(process).depends_on_input:
        return ["tables are known once it runs"]
    return [f"state {name}: {type(state).__name__}" for name, state in process.states().items()]


def _sources(about: About) -> tuple[str, ...]:
    return (short(", ".join(about.sources)),) if about.sources else ()


def _time(plan: Plan, about: About) -> list[str]:
    if plan.event_time is None:
        return []
    if plan.watermark is None:
        late = "" if about.delay_ms is None else f", {duration(about.delay_ms)} behind"
        return [f"event time {plan.event_time}", f"watermark: Spark's{late}"]
    return [f"event time {plan.event_time}", *_rule(plan.watermark)]


def _rule(rule: WatermarkRule) -> list[str]:
    if rule.ingestion:
        return ["watermark: processing time"]
    lines = [f"watermark: {rule.policy} of sources" if len(rule.sources) > 1 else "watermark: own rule"]
    lines += [f"{source or 'input'}: {_slack(slack)}" for source, slack in rule.sources.items()]
    lines += [f"idle after {duration(rule.idle_ms)}"] if rule.idle_ms is not None else []
    marks = {"punctuation": rule.punctuation, "heartbeat": rule.heartbeat}
    return lines + [f"{what} in {'.'.join(path)}" for what, path in marks.items() if path is not None]


def _slack(slack: Slack) -> str:
    parts = [duration(slack.time_ms)] if slack.time_ms is not None else []
    parts += [f"{slack.rows} rows"] if slack.rows is not None else []
    return f"{' and '.join(parts)} behind" if parts else "by punctuation or heartbeat"


def _sink(sink: Sink) -> str:
    kind = sink.kind
    return short(f"{kind} {sink.target}" if sink.target else kind)


def slots_text(slots: int) -> str:
    return f"{slots} slot{'' if slots == 1 else 's'}"


def columns_of(schema: pa.Schema) -> str:
    return ", ".join(f"{item.name} {item.type}" for item in schema)
