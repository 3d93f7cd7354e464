"""The API that users write pipelines with: a stream, its steps, its sinks. It only describes; a runtime runs it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain, count
from typing import Any, Literal, Protocol

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.options import Delay, IngestionTime, WatermarkOptions, ingestion_rule, source_rule
from floodplain.eventtime.watermarks import Policy, WatermarkRule
from floodplain.expressions.columns import Given, computed, name_of, named
from floodplain.expressions.identifiers import quoted
from floodplain.operators.kernel.event_order import InOrder, parse_in_order
from floodplain.operators.kernel.late_rows import LATE, parse_lateness
from floodplain.operators.kernel.operator import OnError, check_on_error, check_process
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.reserved_columns import check_not_reserved
from floodplain.operators.kernel.traits import traits_of
from floodplain.pipeline.explain.graph import About, dataflow_graph
from floodplain.pipeline.explain.text import Form, explained
from floodplain.pipeline.operators import Operations
from floodplain.pipeline.pyspark_methods import SparkNames, no_attribute, trigger_of
from floodplain.pipeline.pyspark_renames import OUTPUT, STREAM
from floodplain.pipeline.writer import StreamWriter
from floodplain.plan.changelog_checks import check_passed_on, check_unweighted, taken
from floodplain.plan.nodes import MAIN, Extend, Input, Keyed, Node, Outlet, Plan, Select, Side, Transform
from floodplain.runtime.compatibility.migration import StartChanges
from floodplain.settings import StoreSettings, Workers
from floodplain.sinks.base import Sink
from floodplain.sinks.memory import MemorySink
from floodplain.sinks.registry import open_sink
from floodplain.state.durations import to_ms
from floodplain.tiers.open import folder_of
from floodplain.tiers.paths import checked_name

SOURCE = "source"
"""The column that tells rows of several sources apart."""


@dataclass(frozen=True)
class StartOptions:
    """The arguments of ``start``, checked."""

    state: str = field(repr=False)
    slots: int | Mapping[str, int] | None
    trigger: Mapping[str, Any] | None
    force: bool
    changes: StartChanges
    batch: str | None
    finish: bool
    settings: StoreSettings
    options: Mapping[str, str] = field(repr=False)
    name: str | None = None
    workers: Workers | None = None
    """None: Spark runs a task for each slot in each epoch."""
    pushdown: bool = True
    """Whether the first stateless steps become part of Spark's streaming query."""


class Runtime(Protocol):
    """Runs the pipeline that a stream describes: Spark, or the test kit."""

    def start(self, stream: "Stream", plan: Plan, options: StartOptions) -> Any: ...
    def schemas_of(self, stream: "Stream", plan: Plan) -> dict[str, pa.Schema]:
        """The schema of the rows that each outlet would get, by its name."""

    def foreach_batch_sink(self, stream: "Stream", function: Callable[[Any, int], None]) -> Sink:
        """The sink that calls ``function(df, epoch)``."""


@dataclass(frozen=True)
class Stream(Operations, SparkNames):
    """An immutable description of a pipeline so far. Each method returns a new one with one more step."""

    runtime: Runtime
    sources: Mapping[str, Any]
    """Tag → rows. A single input has the empty tag; several have their names."""
    node: Node
    broadcasts: Mapping[str, Any]
    """Operator → its broadcast input, whose rows all its tasks see."""
    event_time: str | None = None
    delay_ms: int = 0
    rule: WatermarkRule | None = None
    """How the watermark is computed from the rows; None for Spark's own."""
    keys: tuple[str, ...] = ()
    changes: bool = False
    """Whether the stream is a changelog: rows with ``weight`` -1 retract earlier ones."""

    def watermark(
        self,
        column: Given | IngestionTime,
        delay: str | timedelta | None = None,
        *,
        slack_rows: int | None = None,
        idle: str | timedelta | None = None,
        policy: Policy | None = None,
        punctuation: str | None = None,
        heartbeat: str | None = None,
        sources: Mapping[str, Delay] | None = None,
    ) -> "Stream":
        """Event time is in ``column``, and rows may be ``delay`` late; or ``fp.ingestion_time()``.

        With several sources the watermark is the minimum over them, or the maximum (``policy="max"``). With only a delay, the
        watermark is Spark's.

        ``slack_rows``: a row may arrive after this many newer ones. ``sources``: the delay per source, by its name, as a duration
        or a number of rows. ``idle``: a source without rows for this long no longer holds back the watermark. ``punctuation``:
        a column that, where it is not null, says up to which time the source is complete. ``heartbeat``: the same, in rows that
        have no data and are not processed.
        """
        if not isinstance(self.node, Input):
            raise BadInput("watermark describes the input: call it before the first step")
        options = WatermarkOptions(delay, slack_rows, idle, policy, punctuation, heartbeat, sources)
        columns = {tag: rows.columns for tag, rows in self.sources.items()}
        if isinstance(column, IngestionTime):
            return replace(self, event_time=column.column, rule=ingestion_rule(column, options, columns))
        column = name_of(column, "watermark")
        having = [tag for tag, names in columns.items() if column in names]
        if not having:
            raise BadInput(f"watermark: there is no column {column}; there are: {', '.join(self._columns())}")
        if not options.is_plain:
            return replace(self, event_time=column, rule=source_rule(column, options, columns))
        assert delay is not None
        delay_ms = to_ms(delay, "watermark delay")
        threshold = f"{delay_ms} milliseconds"
        with_watermark = {
            tag: rows.withWatermark(column, threshold) if tag in having else rows for tag, rows in self.sources.items()
        }
        return replace(self, sources=with_watermark, event_time=column, delay_ms=delay_ms)

    def _columns(self) -> list[str]:
        return sorted({name for rows in self.sources.values() for name in rows.columns})

    def transform(self, function: Callable[[Any], Any]) -> "Stream":
        """A stateless step in Spark: ``function`` takes and returns a DataFrame."""
        return replace(self, node=Transform(self.node, function, self.changes))

    def select(self, *columns: Given, **made: Any) -> "Stream":
        """These columns, and computed ones by name: Spark expressions, as text or as a ``Column``.

        ``select("user", w="price * 2")``. An expression may have an alias: ``"price * 2 as w"``, ``F.expr(…).alias("w")``.
        """
        chosen = named(columns, "select", made)
        check_not_reserved("select", [name for name, _ in chosen])
        if not chosen:
            raise BadInput("select needs at least one column")
        if self.changes:
            check_passed_on(chosen)
        return replace(self, node=Select(self.node, tuple(chosen)))

    def with_column(self, name: str, made: Any) -> "Stream":
        """All columns, with one added or replaced by an expression, as in ``select``."""
        check_not_reserved("with_column", [name])
        if self.changes:
            self._check_made({name: made})
        return replace(self, node=Extend(self.node, ((name, made),)))

    def where(self, condition: Any) -> "Stream":
        """The rows that meet the condition: ``where("price > 10")``, or a ``Column``."""
        if self.changes:
            check_unweighted("where", condition)
        return replace(self, node=Extend(self.node, where=condition))

    def _check_made(self, made: Mapping[str, Any]) -> None:
        for name, expression in made.items():
            for each in (name, expression):
                check_unweighted(f"column {name}", each)

    def as_rows(self) -> "Stream":
        """Treat a changelog as plain rows: downstream, a retraction is an ordinary row and ``weight`` an ordinary column."""
        return replace(self, changes=False)

    def schema(self) -> pa.Schema:
        """The schema of the rows at this point. Raises what ``start`` would raise on an empty state."""
        return self.to(MemorySink()).schema

    def source(self, name: str) -> "Stream":
        """The rows of one of several sources, with its own columns."""
        if name not in self.sources or not name:
            raise BadInput(f"there is no source {name!r}; there are: {', '.join(filter(None, self.sources)) or 'no named ones'}")
        if not isinstance(self.node, Input):
            raise BadInput("source picks rows of the input: call it before the first step")
        columns = tuple((column, quoted(column)) for column in self.sources[name].columns)
        return replace(self, node=Select(self.node, columns, (SOURCE, name)))

    @property
    def time(self) -> str | None:
        """The event-time column at this point; None if there is none, or if it is not known before the start."""
        node = self.node
        while isinstance(node, Transform | Select | Extend):
            node = node.parent
        if isinstance(node, Keyed):
            return node.process.output_time
        return self.event_time if isinstance(node, Input) else None

    def key_by(self, *columns: Given, **made: Any) -> "Stream":
        """Key the stream by these columns and by computed ones: ``key_by("auction", day="date(ts)")``, as in ``select``."""
        chosen = named(columns, "key_by", made)
        if not chosen:
            raise BadInput("key_by needs at least one column")
        check_not_reserved("key_by", [name for name, _ in chosen])
        if self.changes:
            self._check_made(dict(chosen))
        new = (*computed(chosen[: len(columns)]), *made.items())
        node = Extend(self.node, new, for_keys=True) if new else self.node
        return replace(self, node=node, keys=tuple(name for name, _ in chosen))

    def process(
        self,
        process: Process,
        *,
        name: str | None = None,
        on_error: OnError = "raise",
        broadcast: Any = None,
        in_order: bool | InOrder = False,
        lateness: str | timedelta = "0 seconds",
    ) -> "Stream":
        """A stateful step. ``name`` names its state; the default is the name of the class.

        ``on_error="dead_letter"`` puts a row on which the function raises into a side table and continues. ``broadcast`` is a
        streaming DataFrame whose rows every task sees, in ``on_broadcast``. ``in_order``: rows of a key are processed in
        event-time order, each once the watermark has passed it; ``fp.in_order(rows=…, time=…)`` bounds how many are buffered.
        ``lateness``: rows up to this much behind the watermark are still processed. The step's own watermark
        (``ctx.watermark``, timers, expiry of its state) is behind by as much, so no row comes for a time whose timers have fired.
        """
        if not self.keys:
            raise BadInput("process needs keys: call key_by before it")
        name = name or _snake(getattr(process, "__name__", type(process).__name__))
        check_process(name, process)
        check_on_error(on_error, process)
        order = parse_in_order(in_order)
        process = taken(process, name, self.changes, order)
        broadcasts = self.broadcasts if broadcast is None else {**self.broadcasts, name: broadcast}
        tag = None if broadcast is None else Input(name)
        late_ms = parse_lateness(name, lateness, in_order=in_order)
        step = Keyed(self.node, name, self.keys, process, on_error, tag, in_order=order, lateness_ms=late_ms)
        return replace(self, node=step, broadcasts=broadcasts, keys=(), changes=traits_of(process).gives_changes)

    def side(self, output: str) -> "Stream":
        """A side output of the stateful step just before, as a stream of its own."""
        if not isinstance(self.node, Keyed):
            raise BadInput("side outputs are those of a stateful step: call side right after process")
        declared = self.node.process.side_outputs
        if output not in declared and not self.node.traits.depends_on_input:
            raise BadInput(f"{self.node.name} has no side output {output!r}; it declares: {', '.join(declared) or 'none'}")
        return replace(self, node=Side(self.node, output), changes=False)

    def late(self) -> "Stream":
        """The late rows that the stateful step just before dropped: the columns of its input, and the drop ``reason``."""
        if not isinstance(self.node, Keyed):
            raise BadInput("late rows are those of a stateful step: call late right after it")
        return replace(self, node=Side(self.node, LATE), changes=False)

    def write(self, format: str, *, name: str = "output", **options: Any) -> "Output":  # noqa: A002 — as Spark calls it
        """Write the rows to a sink. ``name`` identifies it among the sinks of a pipeline: 1 to 64 of a-z, 0-9 and _.

        ``parquet`` (path=, storage_options=, partition_by=), ``delta`` (path=, storage_options=, merge_schema=), ``kafka``
        (servers=, topic=, key=, value=, headers=, config=, marker_topic=), ``memory``, ``console`` (rows=, truncate=).
        """
        return self._to(open_sink(format, options), name, dict(options))

    def writing(self) -> StreamWriter:
        """As ``writeStream``."""
        return StreamWriter(self)

    def foreach_batch(self, function: Callable[[Any, int], None], *, name: str = "output") -> "Output":
        """Call ``function(df, epoch)`` for each epoch, at least once."""
        return self.to(self.runtime.foreach_batch_sink(self, function), name=name)

    @property
    def about(self) -> About:
        """What ``explain`` shows of the input."""
        plain = self.event_time is not None and self.rule is None
        return About(tuple(filter(None, self.sources)), self.delay_ms if plain else None)

    def explain(self, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
        """The logical dataflow and the physical plan up to here, as text or as a picture (``"mermaid"``, ``"svg"``)."""
        return explained(dataflow_graph(Plan((), self.event_time, self.rule), self.about, self.node), format)

    def to(self, sink: Sink, *, name: str = "output") -> "Output":
        """Write the rows to a sink object of your own."""
        return self._to(sink, name)

    def _to(self, sink: Sink, name: str, options: Mapping[str, Any] | None = None) -> "Output":
        return Output(self, (Outlet(checked_name("sink", name), self.node, sink, options),))


@dataclass(frozen=True)
class Output:
    """A stream with its sinks, ready to start."""

    stream: Stream
    outlets: tuple[Outlet, ...]

    def __getattr__(self, name: str) -> Any:
        no_attribute(self, name, OUTPUT, STREAM)

    def also(self, other: "Output") -> "Output":
        """Add the sinks of another branch of the same pipeline: of a side output, or of any step on the way.

        Both branches must have the same input and the same watermark.
        """
        self.stream.check_same_input(other.stream, "also")
        merged = replace(self.stream, broadcasts={**self.stream.broadcasts, **other.stream.broadcasts})
        outlets = list(self.outlets)
        for outlet in other.outlets:
            outlets.append(replace(outlet, name=_unique_name(outlet, {each.name for each in outlets})))
        return Output(merged, tuple(outlets))

    @property
    def plan(self) -> Plan:
        return Plan(self.outlets, self.stream.event_time, self.stream.rule)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The schema of the rows that each sink will get, known before the start."""
        return self.stream.runtime.schemas_of(self.stream, self.plan)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the first sink."""
        return self.schemas[self.outlets[0].name]

    def explain(self, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
        """The logical dataflow and the physical plan, as text or as a picture (``"mermaid"``, ``"svg"``)."""
        return explained(dataflow_graph(self.plan, self.stream.about), format)

    def start(
        self,
        *,
        state: str | os.PathLike[str],
        slots: int | Mapping[str, int] | None = None,
        trigger: str | timedelta | Mapping[str, Any] | None = None,
        force: bool = False,
        drop: Sequence[str] = (),
        reset: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        evolve: Mapping[str, Callable[[Any], Any] | None] | None = None,
        batch: str | None = None,
        finish: bool = True,
        settings: StoreSettings | None = None,
        options: Mapping[str, str] | None = None,
        name: str | None = None,
        engine: Literal["tasks", "workers"] | Workers = "tasks",
        pushdown: bool = True,
    ) -> Any:
        """Run the pipeline on the state at this location, from its last committed epoch; returns a ``Query``.

        ``slots``: parallel tasks of each operator, up to the number of key groups, or of some operators by name, as in
        ``{"parse": 2, "join": 8}``; by default as many as in the last run, or as Spark has cores.
        ``trigger``: ``"availableNow"``, an interval such as ``"1 second"``, or an argument of Spark's ``trigger``, such as
        ``{"availableNow": True}``. ``force`` takes the lease from a driver that still holds it.
        ``name``: the name of the query in Spark: in its UI, in ``spark.streams.active`` and in the events of its listeners. Two
        running queries cannot have the same.

        ``engine``: ``"tasks"`` runs a Spark task for each slot in each epoch. ``"workers"``, or ``Workers(…)`` with its settings,
        keeps slots in long-running tasks, each of which holds a core.

        ``pushdown``: whether the steps before the first operator become part of Spark's streaming query. False keeps them out,
        so that ``Query.update`` can change them; then Spark analyses them in each epoch, and reads columns that they drop.

        Migrations of the state of a changed pipeline. Each is done once; repeated at a later start, it has no effect. States and
        aggregates may be qualified by their operator, as in ``"visits.total"``. ``drop``: operators, states and aggregates that
        the pipeline no longer has and whose state is to be deleted. ``reset``: operators that start with empty state.
        ``rename``: operators, states and aggregates with a new name, old → new. ``evolve``: for a state whose value type has
        changed, a function from the old value to the new one; for one whose default or TTL has changed, None.

        A static DataFrame is processed in one epoch, before this returns. ``batch`` names it: a batch that is already in the
        state is not processed again. ``finish``: no input follows, so all event-time timers fire.
        """
        changes = StartChanges.of(drop, reset, rename, evolve)
        start_options = StartOptions(
            _absolute(os.fspath(state)),
            slots,
            trigger_of(trigger),
            force,
            changes,
            batch,
            finish,
            settings or StoreSettings(),
            options or {},
            name,
            _workers_of(engine),
            pushdown,
        )
        return self.stream.runtime.start(self.stream, self.plan, start_options)


def _absolute(state: str) -> str:
    """An absolute path for a local folder: tasks may run in another working directory and as another user."""
    folder = folder_of(state)
    return state if folder is None else str(folder)


def _workers_of(engine: str | Workers) -> Workers | None:
    match engine:
        case Workers():
            return engine
        case "workers":
            return Workers()
        case "tasks":
            return None
    raise BadInput(f'engine={engine!r} is not known: use "tasks", "workers" or Workers(count=…)')


def _unique_name(outlet: Outlet, used: set[str]) -> str:
    if outlet.name not in used:
        return outlet.name
    base = "_".join(part for part in outlet.staged_as if part != MAIN)
    numbered = (f"{base}_{number}" for number in count(len(used)))
    return checked_name("sink", next(name for name in chain([base], numbered) if name not in used))


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")
