"""A test kit: drive a whole pipeline without Spark, with time in your hands and crashes where you want them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.clock import ManualClock, SeededChance
from floodplain.errors import BadInput
from floodplain.eventtime.measure import seen_in, timed
from floodplain.eventtime.options import time_ms
from floodplain.eventtime.watermarks import Seen, WatermarkRule
from floodplain.keys import hash_columns, normalize_keys
from floodplain.metrics import Counters
from floodplain.operators.combining import Combiner
from floodplain.settings import StoreSettings
from floodplain.spark import checkpoint
from floodplain.spark.contract import Place
from floodplain.spark.dry import dry_schemas
from floodplain.spark.epochs import EpochProgress, Epochs
from floodplain.spark.explain_text import Form
from floodplain.spark.kit_expressions import evaluated, holds, rest
from floodplain.spark.kit_faults import Captured, CountedBlobs, Crashed, CrashPoint, Steps, crash
from floodplain.spark.onepass import OnePass, Part
from floodplain.spark.plan import Input, Plan, Rest
from floodplain.spark.stream import SOURCE, Output, StartOptions, Stream
from floodplain.spark.worker import Job, Staged, StageJob, TaskReport, Work, read_staged, run_task, stage_task
from floodplain.state.forms import rows_in_form
from floodplain.state.types import as_fields
from floodplain.store.store import Store
from floodplain.store.task import Ticket
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.versions.assignment import slot_of_each_group, slots_of
from floodplain.versions.edit import Assignment, SourcePosition
from floodplain.versions.history import History

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table


@dataclass(frozen=True)
class Columns:
    """Stands for a DataFrame where a pipeline is described: it has columns and no rows."""

    schema: pa.Schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def withWatermark(self, column: str, delay: str) -> "Columns":  # noqa: ARG002, N802 — as Spark calls it
        """Watermarks are given with each epoch."""
        return self


@dataclass(frozen=True)
class KitEpoch:
    """One call of ``PipelineKit.epoch``, as a value."""

    rows: Rows = ()
    watermark_ms: int | None = None
    now_ms: int | None = None
    broadcast: Mapping[str, Rows] | None = None
    slots: int | None = None


class PipelineKit:
    """A pipeline on a store in memory.

    ``build`` takes a stream and returns it with its sinks, just as on Spark; what the sinks would publish is kept here.
    ``rows`` declares the input as Spark writes it, or several inputs by name. ``broadcasts`` declares broadcast inputs; each
    is given to ``build`` by name. Steps in Spark (``transform``) cannot run here: ``transforms`` has for each of them, in
    order, a function on Arrow tables.
    """

    def __init__(
        self,
        build: Callable[..., Output],
        *,
        rows: str | Mapping[str, str],
        broadcasts: Mapping[str, str] | None = None,
        transforms: Sequence[Callable[[pa.Table], pa.Table]] = (),
        slots: int = 2,
        settings: StoreSettings | None = None,
    ) -> None:
        given = {"": rows} if isinstance(rows, str) else dict(rows)
        self._sources = {tag: Columns(pa.schema(as_fields(columns).items())) for tag, columns in given.items()}
        frames = {name: Columns(pa.schema(as_fields(columns).items())) for name, columns in (broadcasts or {}).items()}
        self._broadcast_names = {id(frame): name for name, frame in frames.items()}
        self.steps = Steps()
        self.sinks: dict[str, Captured] = {}
        self._transforms = list(transforms)
        self._slots = slots
        self._settings = settings or StoreSettings(key_groups=16)
        self._clock, self._chance, self._space = ManualClock(0), SeededChance(7), Space()
        self._watermark_ms = 0
        self._pending: tuple[dict[str, pa.Table], SourcePosition, int, int] | None = None
        self._batch_id = -1
        build(Stream(self, self._sources, Input(), {}), **frames).start(state="memory://kit")

    def start(self, stream: Stream, plan: Plan, options: StartOptions) -> None:  # noqa: ARG002
        """Called by the pipeline that ``build`` describes."""
        self._about = stream.about
        self._plan = Plan(
            [replace(outlet, sink=self._captured(outlet.name)) for outlet in plan.outlets], plan.event_time, plan.watermark
        )
        inputs = {"": self._merged_schema(), **{tag: frame.schema for tag, frame in stream.broadcasts.items()}}
        self._inputs = inputs
        self._tag_of = {self._broadcast_names.get(id(frame), tag): tag for tag, frame in stream.broadcasts.items()}
        self.restart()

    def _captured(self, name: str) -> Captured:
        return self.sinks.setdefault(name, Captured(name, self.steps))

    def _merged_schema(self) -> pa.Schema:
        if "" in self._sources:
            return self._sources[""].schema
        merged = pa.unify_schemas([columns.schema for columns in self._sources.values()])
        return merged.append(pa.field(SOURCE, pa.string()))

    def schemas_of(self, stream: Stream, plan: Plan) -> dict[str, pa.Schema]:
        """Called by a stream that is asked for its schema."""
        inputs = {"": self._merged_schema(), **{tag: frame.schema for tag, frame in stream.broadcasts.items()}}
        empty = {tag: schema.empty_table() for tag, schema in inputs.items()}
        return dry_schemas(plan, LocalEngine(self._transforms, plan), empty)

    def restart(self) -> None:
        """A new driver process on the same state. Input that is not in the state yet is given to it again."""
        self.steps.revive()
        blobs = CountedBlobs(MemoryBlobs("memory://kit", Counters(), self._space), self.steps)
        history = History.create(
            blobs, self._settings.key_groups, settings=self._settings, clock=self._clock, chance=self._chance
        )
        self.store = Store(history, Counters())
        writer = self.store.writer(f"kit_{self._chance.nonce()}", force=True)
        place = Place(self.store, writer, "memory://kit", self._settings, {}, blobs)
        self._epochs = Epochs(place, self._plan, LocalEngine(self._transforms, self._plan), self._slots)
        self._epochs.prepare({tag: schema.empty_table() for tag, schema in self._inputs.items()})
        if self._pending is not None:
            self._deliver()

    def epoch(
        self,
        rows: Rows = (),
        *,
        watermark_ms: int | None = None,
        now_ms: int | None = None,
        broadcast: Mapping[str, Rows] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """One batch of input at these times, processed, committed and published; returns what each sink got.

        With several inputs each row says its own in ``source``. Where the pipeline's watermark is not Spark's, it follows from
        the rows and is not to be given.
        """
        if watermark_ms is not None and self._plan.watermark is not None:
            raise BadInput("this pipeline computes its watermark from its rows: do not give one")
        inputs = {"": _table(rows, self._inputs[""])}
        for name, tag in self._tag_of.items():
            inputs[tag] = _table((broadcast or {}).get(name, ()), self._inputs[tag])
        self._batch_id += 1
        self._watermark_ms = max(self._watermark_ms, watermark_ms or 0)
        self._clock.advance_ms(max((now_ms or 0) - self._clock.now_ms(), 0))
        position = SourcePosition("kit", self._batch_id, f"v1\n{{}}\n{self._batch_id}")
        self._pending = (inputs, position, self._clock.now_ms(), self._watermark_ms)
        self._deliver()
        number = self.store.head.epoch
        return {name: rows_in_form(sink.epochs[number]) for name, sink in self.sinks.items()}

    def _deliver(self) -> None:
        assert self._pending is not None
        inputs, position, now_ms, watermark_ms = self._pending
        self._epochs.publish()
        if not checkpoint.is_replay(self.store.head.source, position):
            self._epochs.run(inputs, position, now_ms, watermark_ms)
        self._pending = None

    def tick(self, *, now_ms: int) -> bool:
        """Time passes and no data comes: an epoch without rows if timers are due; whether there was one."""
        self._clock.advance_ms(max(now_ms - self._clock.now_ms(), 0))
        watermark_ms = self._epochs.time.watermark_ms(self._watermark_ms, now_ms)
        if not self._epochs.due(watermark_ms, now_ms):
            return False
        self._epochs.run(None, None, now_ms, self._watermark_ms)
        return True

    def explain(self, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
        """As ``Query.explain``."""
        return self._epochs.explain(self._about, format)

    def heartbeat(self, at: int | datetime, source: str | None = None) -> None:
        """As ``Query.heartbeat``."""
        self._epochs.heartbeat(source, time_ms(at))

    def rescale(self, slots: int) -> None:
        self._slots = slots
        self._epochs.rescale(slots)

    def crash_at(self, point: CrashPoint, action: Callable[[], object] = crash) -> None:
        """Raise ``Crashed`` at this point (or do something else there: let another driver take over)."""
        self.steps.plan(point, action)

    def play(self, script: Sequence[KitEpoch]) -> None:
        """All steps of a script; a crash is followed by a restart, and the script goes on."""
        for step in script:
            if step.slots is not None:
                self.rescale(step.slots)
            try:
                self.epoch(step.rows, watermark_ms=step.watermark_ms, now_ms=step.now_ms, broadcast=step.broadcast)
            except Crashed:
                self.restart()

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of what each sink gets."""
        return {outlet.name: self._epochs.schema_of(outlet) for outlet in self._plan.outlets}

    def state(self, table: str) -> list[dict[str, Any]]:
        return rows_in_form(self.store.snapshot().table(table).to_arrow())

    @property
    def progress(self) -> list[EpochProgress]:
        return list(self._epochs.progress)

    def outcome(self) -> dict[str, Counter[str]]:
        """All that was published and all that is in the state, in a form to compare."""
        found = {f"sink {name}": _bag(*sink.epochs.values()) for name, sink in self.sinks.items()}
        snapshot = self.store.snapshot()
        return found | {f"table {table}": _bag(snapshot.table(table).to_arrow()) for table in self.store.head.schemas}


def survives_every_crash(make: Callable[[], PipelineKit], script: Sequence[KitEpoch]) -> int:
    """Play a script once as it is, then with a crash before and after each of its steps in turn; returns how many crashes.

    Raises ``AssertionError`` naming the point after which output or state was not the same.
    """
    untouched = make()
    first = len(untouched.steps.taken)
    untouched.play(script)
    points = [CrashPoint(step, when) for step in range(first, len(untouched.steps.taken)) for when in ("before", "after")]
    for point in points:
        kit = make()
        kit.crash_at(point)
        kit.play(script)
        different = [name for name, found in untouched.outcome().items() if kit.outcome().get(name) != found]
        if different:
            raise AssertionError(
                f"after a crash {point.when} step {point.step} ({kit.steps.taken[point.step]}): {different} differ"
            )
    return len(points)


class LocalEngine:
    """Runs the tasks of an epoch one after the other in this process."""

    def __init__(self, transforms: Sequence[Callable[[pa.Table], pa.Table]], plan: Plan) -> None:
        steps = [node.function for node in plan.nodes if hasattr(node, "function")]
        if len(steps) != len(transforms):
            raise BadInput(
                f"the pipeline has {len(steps)} transform steps in Spark: give as many Arrow functions as transforms=[…]"
            )
        self._functions = dict(zip(map(id, steps), transforms, strict=True))
        self._attempts = 0

    def schema(self, rows: pa.Table) -> pa.Schema:
        return rows.schema

    def empty(self, schema: pa.Schema) -> pa.Table:
        return schema.empty_table()

    def collect(self, rows: pa.Table) -> pa.Table:
        return rows

    def transform(self, rows: pa.Table, function: Callable[[Any], Any]) -> pa.Table:
        return self._functions[id(function)](rows)

    def select(self, rows: pa.Table, columns: Sequence[tuple[str, Any]], only: tuple[str, str] | None) -> pa.Table:
        if only is not None:
            rows = rows.filter(pc.field(only[0]) == only[1])
        made = {name: rest(made.but, rows) if isinstance(made, Rest) else evaluated(made, rows) for name, made in columns}
        return pa.table({name: column for name, column in made.items() if column is not None})

    def extend(self, rows: pa.Table, columns: Sequence[tuple[str, Any]], where: Any) -> pa.Table:
        if where is not None:
            rows = rows.filter(holds(where, rows))
        made = {name: evaluated(expression, rows) for name, expression in columns}
        return pa.table({name: rows.column(name) for name in rows.column_names} | made)

    def combined(self, rows: pa.Table, combiner: Combiner, slots: int) -> pa.Table:
        """As if so many tasks had read the rows."""
        ends = [len(rows) * number // slots for number in range(slots + 1)]
        return pa.concat_tables([combiner(rows.slice(start, end - start)) for start, end in pairwise(ends)])

    def union(self, members: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(members, promote_options="permissive")

    def parted(self, rows: pa.Table, parts: OnePass) -> pa.Table:
        return self.union([self._part_of(rows.filter(pc.field(parts.column) == part.value), part) for part in parts.parts])

    @staticmethod
    def _part_of(rows: pa.Table, part: Part) -> pa.Table:
        for condition in part.where:
            rows = rows.filter(holds(condition, rows))
        found = {}
        for name, made in part.columns:
            fields = pa.table(
                {field: evaluated(value, rows) for field, value in ([(name, made)] if isinstance(made, str) else made)}
            )
            found[name] = fields.column(0) if isinstance(made, str) else rest((), fields)
        return pa.table(found)

    def read(self, staged: Staged, place: Work) -> pa.Table:
        assert place.blobs is not None
        return read_staged(staged, place.blobs)

    def run(
        self,
        rows: pa.Table | Staged,
        keys: Sequence[str],
        assignment: Assignment,
        job: Job,
        row_bytes: float | None,  # noqa: ARG002
    ) -> list[TaskReport]:
        if isinstance(rows, Staged):
            return [run_task(job, slot, self._part(slot), ()) for slot in range(assignment.slots)]
        slot_of_group = slot_of_each_group(job.slots, msgspec.msgpack.decode(job.work.ticket, type=Ticket).key_groups)
        slots = slots_of(hash_columns(normalize_keys([rows.column(key) for key in keys])), slot_of_group)
        parts = [rows.filter(pa.array(slots == slot)) for slot in range(assignment.slots)]
        return [run_task(job, slot, self._part(slot), part.to_batches()) for slot, part in enumerate(parts)]

    def stage(self, rows: pa.Table, job: StageJob) -> list[TaskReport]:
        return [stage_task(job, 0, self._part(0), rows.to_batches())]

    def measure(self, rows: pa.Table, rule: WatermarkRule, now_ms: int) -> tuple[pa.Table, Callable[[], dict[str, Seen]]]:
        return timed(rows, rule, now_ms), partial(seen_in, rows, rule, SOURCE)

    def _part(self, slot: int) -> str:
        self._attempts += 1
        return f"{slot}-{self._attempts}"


def _table(rows: Rows, schema: pa.Schema) -> pa.Table:
    return rows.cast(schema) if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema)


def _bag(*tables: pa.Table) -> Counter[str]:
    return Counter(repr(row) for table in tables for row in table.to_pylist())
