"""A test kit: drive a whole pipeline without Spark, with time in your hands and crashes where you want them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import BadInput
from floodplain.eventtime.options import time_ms
from floodplain.eventtime.times import NONE_MS, as_ms
from floodplain.lossless import cast_table
from floodplain.metrics import Counters
from floodplain.pipeline.explain.running import explain_running
from floodplain.pipeline.explain.text import Form
from floodplain.pipeline.stream import SOURCE, Output, StartOptions, Stream
from floodplain.plan.nodes import Input, Plan
from floodplain.runtime.checkpoint import spark_checkpoint
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.runtime.progress import EpochProgress
from floodplain.runtime.schema_inference import dry_schemas
from floodplain.runtime.static_input import run_static
from floodplain.settings import StoreSettings
from floodplain.sinks.base import Sink
from floodplain.sinks.memory import MemorySink
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.python_values import rows_in_form
from floodplain.state.types import as_fields
from floodplain.state.value_check import table_of
from floodplain.store.store import Store
from floodplain.testing.faults import Captured, CountedBlobs, Crashed, CrashPoint, Steps, crash, witnessed
from floodplain.testing.local_engine import LocalEngine
from floodplain.testing.local_watermark import RowWatermark
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.versions.log.history import History
from floodplain.versions.records.edit import SourcePosition

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table


@dataclass(frozen=True)
class Columns:
    """Stands for a DataFrame where a pipeline is described: it has columns and no rows."""

    schema: pa.Schema
    sparkSession: None = None  # noqa: N815 — as Spark calls it
    """The kit runs without a session."""

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def withWatermark(self, column: str, delay: str) -> "Columns":  # noqa: ARG002, N802 — as Spark calls it
        """The kit keeps it."""
        return self


@dataclass(frozen=True)
class KitEpoch:
    """One step of a script: a call of ``PipelineKit.epoch``, ``tick`` or ``static``, as a value."""

    rows: Rows | None = ()
    """None: no data comes, as in ``tick``."""
    watermark_ms: int | None = None
    now_ms: int | None = None
    broadcast: Mapping[str, Rows] | None = None
    slots: int | None = None
    batch: str | None = None
    """Its rows are static input of this name, as in ``static``."""
    finish: bool = True


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
        self._frames = {name: Columns(pa.schema(as_fields(columns).items())) for name, columns in (broadcasts or {}).items()}
        self._broadcast_names = {id(frame): name for name, frame in self._frames.items()}
        self.steps = Steps()
        self.sinks: dict[str, Captured] = {}
        self._transforms = list(transforms)
        self._first_slots = slots
        self._settings = settings or StoreSettings(key_groups=16)
        self._engine: LocalEngine | None = None
        self.wipe()
        self._describe(build)

    def start(self, stream: Stream, plan: Plan, options: StartOptions) -> None:
        """Called by the pipeline that ``build`` describes."""
        self._changes = options.changes
        self._about, self._delay_ms = stream.about, stream.delay_ms
        self._timed_by = _timed_by(plan, self._sources)
        self._plan = Plan(
            [replace(outlet, sink=self._captured(outlet.name)) for outlet in plan.outlets], plan.event_time, plan.watermark
        )
        inputs = {"": self._merged_schema(), **{tag: frame.schema for tag, frame in stream.broadcasts.items()}}
        self._inputs = inputs
        self._tag_of = {self._broadcast_names.get(id(frame), tag): tag for tag, frame in stream.broadcasts.items()}
        self._begin()

    @property
    def _outlets(self) -> list[str]:
        """The sinks of the pipeline as it is; those of one before are kept with what they got."""
        return [outlet.name for outlet in self._plan.outlets]

    def _captured(self, name: str) -> Captured:
        return self.sinks.setdefault(name, Captured(name, self.steps))

    def _merged_schema(self) -> pa.Schema:
        if "" in self._sources:
            return self._sources[""].schema
        merged = pa.unify_schemas([columns.schema for columns in self._sources.values()])
        return merged.append(pa.field(SOURCE, pa.string()))

    def foreach_batch_sink(self, stream: Stream, function: Callable[[Any, int], None]) -> Sink:  # noqa: ARG002
        """What would be published is kept by the kit: the function is not called."""
        return MemorySink()

    def schemas_of(self, stream: Stream, plan: Plan) -> dict[str, pa.Schema]:
        """Called by a stream that is asked for its schema."""
        inputs = {"": self._merged_schema(), **{tag: frame.schema for tag, frame in stream.broadcasts.items()}}
        empty = {tag: schema.empty_table() for tag, schema in inputs.items()}
        return dry_schemas(plan, LocalEngine(self._transforms, plan), empty)

    def wipe(self) -> None:
        """As if it had never run: no state, no output, no time has passed. ``restart`` starts it."""
        self._clock, self._randomness, self._space = ManualClock(0), SeededRandomness(7), Space()
        self._slots, self._watermark_ms, self._batch_id = self._first_slots, 0, -1
        self._rows_time = RowWatermark()
        self._pending: Callable[[], object] | None = None
        self.steps.reset()
        for sink in self.sinks.values():
            sink.epochs.clear()

    def stop(self) -> None:
        """As ``Query.stop``: what was published is noted, and the state let go. ``restart`` goes on."""
        self._epochs.close()

    def restart(self, build: Callable[..., Output] | None = None, **changes: Any) -> None:
        """A new driver process on the same state, with a changed pipeline if one is given. What the one before was at when it
        died is given to it again. ``changes``: ``drop``, ``reset``, ``rename`` and ``evolve``, as ``start`` takes them."""
        if build is None:
            self._begin()
        else:
            self._describe(build, **changes)

    def _describe(self, build: Callable[..., Output], **changes: Any) -> None:
        build(Stream(self, self._sources, Input(), {}), **self._frames).start(state="memory://kit", **changes)

    def close(self) -> None:
        """The processes that run tasks end: what ``open`` of process functions returned is closed. A further epoch opens it anew,
        and so does a ``restart``."""
        if self._engine is not None:
            self._engine.resources.close()

    def _begin(self) -> None:
        self.close()
        self.steps.revive()
        blobs = CountedBlobs(self._blobs(), self.steps)
        history = History.create(
            blobs, self._settings.key_groups, settings=self._settings, clock=self._clock, randomness=self._randomness
        )
        self.store = Store(history, Counters())
        writer = self.store.writer(f"kit_{self._randomness.nonce()}", force=True)
        place = StateLocation(self.store, writer, "memory://kit", self._settings, {}, blobs)
        self._engine = LocalEngine(self._transforms, self._plan)
        log = History.open(blobs, settings=self._settings, clock=self._clock, randomness=SeededRandomness(0))
        self._epochs = EpochRunner(place, witnessed(self._plan, log, writer.token), self._engine, self._slots)
        self._epochs.prepare({tag: schema.empty_table() for tag, schema in self._inputs.items()}, self._changes)
        if self._pending is not None:
            self._do(self._pending)

    def _blobs(self) -> Blobs:
        """Where the state is."""
        return MemoryBlobs("memory://kit", Counters(), self._space)

    def _do(self, work: Callable[[], Any]) -> Any:
        """Work that a new driver is given again if this one dies."""
        self._pending = work
        done = work()
        self._pending = None
        return done

    def epoch(
        self,
        rows: Rows = (),
        *,
        watermark_ms: int | None = None,
        now_ms: int | None = None,
        broadcast: Mapping[str, Rows] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """One batch of input at these times, processed, committed and published; returns what each sink got.

        With several inputs each row says its own in ``source``. The watermark of an epoch follows from the rows of those before,
        as on Spark: the newest event time less the delay, of several inputs that of the slowest. If ``watermark_ms`` is given, it
        is that, and from then on it moves only as it is given. Where it is by a rule of the pipeline's own it is not to be given.
        """
        self._move_time(now_ms, watermark_ms)
        inputs = self._tables(rows, broadcast or {})
        if self._timed_by is not None:
            self._rows_time.see(inputs[""], *self._timed_by)
        self._batch_id += 1
        position = SourcePosition("kit", self._batch_id, f"v1\n{{}}\n{self._batch_id}")
        self._do(partial(self._deliver, inputs, position, self._clock.now_ms(), self._watermark_ms))
        number = self.store.head.epoch
        return {name: rows_in_form(self.sinks[name].epochs[number]) for name in self._outlets}

    def _tables(self, rows: Rows, broadcast: Mapping[str, Rows]) -> dict[str, pa.Table]:
        tagged = {"": rows, **{tag: broadcast.get(name, ()) for name, tag in self._tag_of.items()}}
        return {tag: _table(given, self._inputs[tag]) for tag, given in tagged.items()}

    def _deliver(self, inputs: dict[str, pa.Table], position: SourcePosition, now_ms: int, watermark_ms: int) -> None:
        self._epochs.publisher.publish()
        if not spark_checkpoint.is_replay(self.store.head.source, position):
            self._epochs.run(inputs, position, now_ms, watermark_ms)

    def static(
        self, rows: Rows, *, batch: str | None = None, finish: bool = True, now_ms: int | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """A static DataFrame of these rows, as ``start`` runs it; returns what each sink got."""
        self._move_time(now_ms, None)
        inputs, before = self._tables(rows, {}), self.store.head.epoch
        self._do(lambda: run_static(self._epochs, inputs, batch, partial(self._newest_ms, inputs[""]), finish=finish))
        new = range(before + 1, self.store.head.epoch + 1)
        return {name: [row for epoch in new for row in rows_in_form(self.sinks[name].epochs[epoch])] for name in self._outlets}

    def _newest_ms(self, rows: pa.Table) -> int:
        """The watermark that static rows give."""
        times = pa.array([]) if self._plan.event_time is None else as_ms(rows.column(self._plan.event_time))
        newest = pc.max(times).as_py()
        return NONE_MS if newest is None else int(newest) - self._delay_ms

    def tick(self, *, now_ms: int, watermark_ms: int | None = None) -> bool:
        """Time passes and no data comes: an epoch without rows if timers are due; whether there was one.

        ``watermark_ms``: as in ``epoch``.
        """
        self._move_time(now_ms, watermark_ms)
        return bool(self._do(lambda: self._epochs.tick(self._watermark_ms, self._clock.now_ms())))

    def _move_time(self, now_ms: int | None, watermark_ms: int | None) -> None:
        if watermark_ms is not None and self._plan.watermark is not None:
            raise BadInput("this pipeline computes its watermark from its rows: do not give one")
        self._rows_time.by_hand |= watermark_ms is not None
        moved_ms = 0 if self._timed_by is None else self._rows_time.watermark_ms(self._delay_ms, self._timed_by[1])
        self._watermark_ms = max(self._watermark_ms, watermark_ms or 0, moved_ms)
        self._clock.advance_ms(max((now_ms or 0) - self._clock.now_ms(), 0))

    def explain(self, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
        """As ``Query.explain``."""
        return explain_running(self._epochs, self._about, format)

    def heartbeat(self, at: int | datetime, source: str | None = None) -> None:
        """As ``Query.heartbeat``."""
        self._epochs.heartbeat(source, time_ms(at))

    def rollback(self, epoch: int, build: Callable[..., Output] | None = None, **changes: Any) -> None:
        """Go back to an epoch and start anew, as after ``floodplain rollback``. What came after it is to be given again. Further
        arguments as of ``restart``."""
        self.restart()
        self.store.rollback(epoch, force=True)
        head = self.store.head
        self._batch_id, self._watermark_ms = head.source.batch_id, max(head.watermarks.get(EVENT_TIME, 0), 0)
        self.restart(build, **changes)

    def rescale(self, slots: int) -> None:
        """Use this many slots from the next epoch on."""
        self._epochs.rescale(slots)
        self._slots = slots

    def crash_at(self, point: CrashPoint, action: Callable[[], object] = crash) -> None:
        """Raise ``Crashed`` at this point (or do something else there: let another driver take over)."""
        self.steps.plan(point, action)

    def play(self, script: Sequence[KitEpoch]) -> list[range]:
        """All of a script; a crash is followed by a restart, and the script goes on. Returns the steps that each part of it took,
        those of the restart if there was one. Raises ``AssertionError`` if a part left an epoch unpublished."""
        return [self._played(part) for part in script]

    def _played(self, part: KitEpoch) -> range:
        before = self.store.head.epoch
        steps = self.through(partial(self._act, part))
        for epoch in range(before + 1, self.store.head.epoch + 1):
            if left := [name for name in self._outlets if epoch not in self.sinks[name].epochs]:
                raise AssertionError(f"epoch {epoch} is committed and not published when the next one may begin: {left}")
        return steps

    def through(self, act: Callable[[], object]) -> range:
        """Do it, or restart until it is done; returns the steps that it took in the end."""
        while True:
            first = len(self.steps.taken)
            try:
                act()
            except Crashed:
                act = self.restart
            else:
                return range(first, len(self.steps.taken))

    def _act(self, part: KitEpoch) -> None:
        if part.slots is not None:
            self.rescale(part.slots)
        if part.rows is None:
            self.tick(now_ms=part.now_ms or 0, watermark_ms=part.watermark_ms)
        elif part.batch is not None:
            self.static(part.rows, batch=part.batch, finish=part.finish, now_ms=part.now_ms)
        else:
            self.epoch(part.rows, watermark_ms=part.watermark_ms, now_ms=part.now_ms, broadcast=part.broadcast)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of what each sink gets."""
        return {outlet.name: self._epochs.bound.schema_of(outlet) for outlet in self._plan.outlets}

    def state(self, table: str) -> list[dict[str, Any]]:
        return rows_in_form(self.store.snapshot().table(table).to_arrow())

    @property
    def progress(self) -> list[EpochProgress]:
        return list(self._epochs.progress.epochs)

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """As ``Query.totals``."""
        return self._epochs.progress.totals

    def outcome(self) -> dict[str, Counter[str]]:
        """All that was published and all that is in the state, in a form to compare."""
        found = {f"sink {name}": _bag(*sink.epochs.values()) for name, sink in self.sinks.items()}
        snapshot = self.store.snapshot()
        return found | {f"table {table}": _bag(snapshot.table(table).to_arrow()) for table in self.store.head.schemas}


def survives_every_crash(make: Callable[[], PipelineKit], script: Sequence[KitEpoch], *, crashes: int = 1) -> int:
    """Play a script from the first start on, once as it is, then with a crash at each point in turn; returns how many.

    Points are before each step, and after the last one of the start and of each part of the script: after any other step a
    crash leaves behind what one before the next does. ``crashes=2``: with each of these also a second one, at each point of the
    recovery from the first. Raises ``AssertionError`` naming the points after which output or state was not the same.
    """
    kit = make()
    points = [point for part in _play(kit, script, ()) for point in _points(kit, part)]
    untouched = kit.outcome()
    return sum(_survives(kit, script, (point,), crashes, untouched) for point in points)


def _survives(
    kit: PipelineKit, script: Sequence[KitEpoch], points: tuple[CrashPoint, ...], crashes: int, untouched: dict[str, Counter[str]]
) -> int:
    parts = _play(kit, script, points)
    outcome = kit.outcome()
    different = [name for name, found in untouched.items() if outcome.get(name) != found]
    if different:
        told = " and ".join(f"{point.when} step {point.step} ({kit.steps.taken[point.step]})" for point in points)
        raise AssertionError(f"after a crash {told}: {different} differ")
    if len(points) == crashes:
        return 1
    recovery = _points(kit, next(part for part in parts if part.start > points[-1].step))
    return 1 + sum(_survives(kit, script, (*points, point), crashes, untouched) for point in recovery)


def _play(kit: PipelineKit, script: Sequence[KitEpoch], points: Sequence[CrashPoint]) -> list[range]:
    kit.wipe()
    for point in points:
        kit.crash_at(point)
    return [kit.through(kit.restart), *kit.play(script)]


def _points(kit: PipelineKit, part: range) -> list[CrashPoint]:
    # What probes of the store leave behind is not read again.
    steps = [step for step in part if paths.PROBES not in kit.steps.taken[step]]
    return [*(CrashPoint(step, "before") for step in steps), *(CrashPoint(step, "after") for step in steps[-1:])]


def _timed_by(plan: Plan, sources: Mapping[str, Columns]) -> tuple[str, list[str]] | None:
    """The column that moves the watermark, and the sources that have it; None where rows do not move it as on Spark."""
    if plan.event_time is None or plan.watermark is not None:
        return None
    return plan.event_time, [tag for tag, rows in sources.items() if plan.event_time in rows.columns]


def _table(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Requires: a table has all columns of the schema."""
    return cast_table(rows, schema) if isinstance(rows, pa.Table) else table_of(list(rows), schema, "rows of the kit")


def _bag(*tables: pa.Table) -> Counter[str]:
    return Counter(repr(row) for table in tables for row in table.to_pylist())
