"""A test kit: runs a whole pipeline without Spark, with times as arguments and crashes at chosen steps."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import BadInput, FloodplainError
from floodplain.eventtime.options import time_ms
from floodplain.eventtime.times import NONE_MS, as_ms
from floodplain.lossless import cast_table
from floodplain.metrics import Counters
from floodplain.pipeline.explain.running import explain_running
from floodplain.pipeline.explain.text import Form
from floodplain.pipeline.same_input import replacement
from floodplain.pipeline.stream import Output
from floodplain.plan.nodes import Plan
from floodplain.runtime.checkpoint import spark_checkpoint
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.runtime.live.control import Run, control
from floodplain.runtime.live.operation import ControlOperation, Update
from floodplain.runtime.live.update import PlanUpdate, update
from floodplain.runtime.progress import EpochProgress
from floodplain.runtime.static_input import run_static
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.python_values import user_rows
from floodplain.state.value_check import table_of
from floodplain.store.store import Store
from floodplain.testing.described import Columns, Described, DescribingKit, Transforms, timed_by
from floodplain.testing.faults import CapturedSink, CountedBlobs, Crashed, CrashPoint, Steps, crash, with_checked_sinks
from floodplain.testing.local_engine import LocalEngine
from floodplain.testing.local_watermark import RowWatermark
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.versions.log.history import History
from floodplain.versions.records.edit import SourcePosition
from floodplain.versions.records.edit import Update as Record

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table


@dataclass(frozen=True)
class KitEpoch:
    """One entry of a script: a call of ``PipelineKit.epoch``, ``tick`` or ``static``, as a value."""

    rows: Rows | None = ()
    """None: no input, as in ``tick``."""
    watermark_ms: int | None = None
    now_ms: int | None = None
    broadcast: Mapping[str, Rows] | None = None
    slots: int | Mapping[str, int] | None = None
    batch: str | None = None
    """If set, the rows are static input with this batch name, as in ``static``."""
    finish: bool = True
    update: Callable[..., Output] | None = None
    """If set, no rows: the pipeline that takes over, as in ``update``."""
    tag: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What ``update`` is to do with the state."""
    control: ControlOperation | None = None
    """If set, no rows: the control operation that runs, as in ``control``."""


@dataclass(frozen=True)
class _Requested:
    """A pipeline that is to take over while another one runs."""

    described: Described
    epoch: int
    """The last one before."""


class PipelineKit(DescribingKit):
    """A pipeline on a store in memory.

    ``build`` takes a stream and returns it with its sinks, as on Spark. The kit replaces the sinks and captures the rows that
    they would publish. ``rows`` declares the input columns as Spark DDL, or several inputs by name. ``broadcasts`` declares
    broadcast inputs; ``build`` gets each as a keyword argument. ``transform`` steps need Spark and cannot run here:
    ``transforms`` has, for each of them in order, an equivalent function on Arrow tables.
    """

    def __init__(
        self,
        build: Callable[..., Output],
        *,
        rows: str | Mapping[str, str],
        broadcasts: Mapping[str, str] | None = None,
        transforms: Transforms = (),
        slots: int | Mapping[str, int] = 2,
        settings: StoreSettings | None = None,
    ) -> None:
        super().__init__(rows, broadcasts)
        self.steps = Steps()
        self.sinks: dict[str, CapturedSink] = {}
        self._first_slots = slots
        self._operators: set[str] = set()
        """Of this pipeline and those before it on the same state."""
        self._settings = settings or StoreSettings(key_groups=16)
        self._engine: LocalEngine | None = None
        self._started = self._described(build, transforms, {})
        self.wipe()
        self._begin()

    def _adopt(self, described: Described) -> None:
        """This is the pipeline that runs, or is about to."""
        self._running, stream, plan = described, described.pipeline.stream, described.pipeline.plan
        self._transforms = described.transforms
        self._delay_ms = stream.delay_ms
        self._timed_by = timed_by(plan, self._sources)
        self._plan = Plan(
            [replace(outlet, sink=self._captured_sink(outlet.name)) for outlet in plan.outlets], plan.event_time, plan.watermark
        )
        self._inputs = {"": self._merged_schema(), **{tag: frame.schema for tag, frame in stream.broadcasts.items()}}
        self._tag_of = {self._broadcast_names.get(id(frame), tag): tag for tag, frame in stream.broadcasts.items()}

    @property
    def _outlets(self) -> list[str]:
        """The sinks of the current pipeline. ``sinks`` also has those of earlier versions of it, with their rows."""
        return [outlet.name for outlet in self._plan.outlets]

    def _captured_sink(self, name: str) -> CapturedSink:
        return self.sinks.setdefault(name, CapturedSink(name, self.steps))

    def wipe(self) -> None:
        """Deletes state and output, and sets the clock and the watermark to 0. ``restart`` starts the pipeline again, as it was
        before any ``update``."""
        self._adopt(self._started)
        self._clock, self._randomness, self._space = ManualClock(0), SeededRandomness(7), Space()
        self._slots, self._watermark_ms, self._batch_id = self._first_slots, 0, -1
        self._row_watermark = RowWatermark()
        self._pending: Callable[[], object] | None = None
        self._requested: _Requested | None = None
        self._runs = 0
        self.steps.reset()
        for sink in self.sinks.values():
            sink.epochs.clear()

    def stop(self) -> None:
        """As ``Query.stop``: records what was published and releases the lease. ``restart`` continues."""
        self._epochs.close()

    def restart(self, build: Callable[..., Output] | None = None, **changes: Any) -> None:
        """Start a new driver process on the same state, with a changed pipeline if ``build`` is given. Input that the last driver
        was processing when it crashed is replayed. ``changes``: ``drop``, ``reset``, ``rename`` and ``evolve`` of ``start``."""
        if build is not None:
            self._started = self._described(build, self._transforms, changes)
            self._adopt(self._started)
            if self._requested is not None:
                self._requested = self._pending = None
        self._begin()

    def update(
        self,
        build: Callable[..., Output],
        *,
        tag: str | None = None,
        transforms: Transforms = (),
        **changes: Any,
    ) -> int:
        """As ``Query.update``. ``transforms``: of the new pipeline, as for the first. After a crash the next driver starts with
        the new pipeline if its edit is in the log; else with the old one, and the update is repeated."""
        try:
            described = self._described(build, transforms, changes)
            onward = replacement(self._running.pipeline, described.pipeline, Columns.__eq__)
            self._requested = _Requested(replace(described, pipeline=onward), self.store.head.epoch)
            epoch: int = self._do(partial(self._switch, self._requested.described, tag))
        except FloodplainError:
            self._transforms, self._pending, self._requested = self._running.transforms, None, None
            raise
        self._requested = None
        return epoch

    def control(self, operation: ControlOperation, *, run: str | None = None) -> Any:
        """As ``Query.control``. The pipeline of an ``Update`` may be a function as ``build``. After a crash it is repeated,
        unless its decision is in the log."""
        self._runs += 1
        try:
            return self._do(partial(self._control, Run(operation, f"kit_{self._runs}" if run is None else run)))
        except FloodplainError:
            self._pending = None
            raise

    def _control(self, run: Run) -> Any:
        assert self._engine is not None
        return control(self._epochs, run, self._engine.look, self._follow)

    def _follow(self, decision: Update, records: Sequence[Record]) -> None:
        described = Described(decision.pipeline, decision.changes, ())
        if not isinstance(decision.pipeline, Output):
            described = replace(self._described(decision.pipeline, (), {}), changes=decision.changes)
        onward = replacement(self._running.pipeline, described.pipeline, Columns.__eq__)
        self._requested = _Requested(replace(described, pipeline=onward), self.store.head.epoch)
        self._switch(self._requested.described, decision.tag, records)
        self._requested = None

    def _switch(self, described: Described, tag: str | None, also: Sequence[Record] = ()) -> int:
        sinks = {outlet.name: outlet.sink for outlet in self._epochs.bound.plan.outlets}
        outlets = [replace(outlet, sink=sinks[outlet.name]) for outlet in described.pipeline.outlets]
        plan = described.pipeline.plan
        assert self._engine is not None
        self._engine.learn(described.transforms, plan)
        plan = Plan(outlets, plan.event_time, plan.watermark)
        epoch = update(self._epochs, PlanUpdate(plan, described.changes, tag), also)
        self._adopt(described)
        return epoch

    def close(self) -> None:
        """End the task processes: closes the resources that ``open`` of process functions returned. The next epoch or ``restart``
        opens them anew."""
        if self._engine is not None:
            self._engine.close()

    def _begin(self) -> None:
        self.close()
        self.steps.revive()
        self._counters = Counters()
        blobs = CountedBlobs(self._blobs(), self.steps)
        history = History.create(
            blobs, self._settings.key_groups, settings=self._settings, clock=self._clock, randomness=self._randomness
        )
        store = Store(history, self._counters)
        if self._requested is not None and store.head.epoch > self._requested.epoch:
            self._adopt(self._requested.described)
            self._requested = self._pending = None
        writer = store.writer(f"kit_{self._randomness.nonce()}", force=True)
        self.store = store  # not before: another driver may start while this one takes the lease
        place = StateLocation(store, writer, self._location, self._settings, {}, blobs)
        self._engine = self._new_engine()
        log = History.open(blobs, settings=self._settings, clock=self._clock, randomness=SeededRandomness(0))
        self._epochs = EpochRunner(
            place, with_checked_sinks(self._plan, log, writer.token), self._engine, self._start_slots(), default_slots=2
        )
        self._epochs.prepare({tag: schema.empty_table() for tag, schema in self._inputs.items()}, self._running.changes)
        self._engine.start(self._epochs.bound)
        if self._pending is not None:
            self._do(self._pending)

    def _start_slots(self) -> int | Mapping[str, int]:
        """Those of operators that a changed pipeline no longer has are forgotten."""
        slots, names = self._slots, {operator.name for operator in self._plan.operators}
        gone = self._operators - names
        self._operators |= names
        return {name: count for name, count in slots.items() if name not in gone} if isinstance(slots, Mapping) else slots

    def _new_engine(self) -> LocalEngine:
        """What runs the steps of the pipeline, until the driver's process ends."""
        return LocalEngine(self._transforms, self._plan)

    _location = "memory://kit"
    """Where the state is, as other processes are told."""

    def _blobs(self) -> Blobs:
        """Where the state is."""
        return MemoryBlobs("memory://kit", self._counters, self._space)

    def _do(self, work: Callable[[], Any]) -> Any:
        """Run work that is replayed to the next driver if this one crashes."""
        self._pending = work
        result = work()
        self._pending = None
        return result

    def epoch(
        self,
        rows: Rows = (),
        *,
        watermark_ms: int | None = None,
        now_ms: int | None = None,
        broadcast: Mapping[str, Rows] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """Process, commit and publish one batch of input at these times; returns the rows that each sink got.

        With several inputs, the column ``source`` of each row names its input. As on Spark, the watermark is computed from the
        rows of earlier epochs: the newest event time minus the delay; with several inputs, that of the slowest. Once
        ``watermark_ms`` is passed, rows no longer advance the watermark; only the argument does. It must be omitted if the
        pipeline has a watermark rule of its own.
        """
        self._move_time(now_ms, watermark_ms)
        inputs = self._tables(rows, broadcast or {})
        if self._timed_by is not None:
            self._row_watermark.observe(inputs[""], *self._timed_by)
        self._batch_id += 1
        position = SourcePosition("kit", self._batch_id, f"v1\n{{}}\n{self._batch_id}")
        self._do(partial(self._deliver, inputs, position, self._clock.now_ms(), self._watermark_ms))
        number = self.store.head.epoch
        return {name: user_rows(self.sinks[name].epochs[number]) for name in self._outlets}

    def _tables(self, rows: Rows, broadcast: Mapping[str, Rows]) -> dict[str, pa.Table]:
        tagged = {"": rows, **{tag: broadcast.get(name, ()) for name, tag in self._tag_of.items()}}
        return {tag: _table(of_input, self._inputs[tag]) for tag, of_input in tagged.items()}

    def _deliver(self, inputs: dict[str, pa.Table], position: SourcePosition, now_ms: int, watermark_ms: int) -> None:
        if spark_checkpoint.is_replay(self.store.head.source, position):
            self._epochs.publisher.publish()
        else:
            self._epochs.run(inputs, position, now_ms, watermark_ms)

    def static(
        self, rows: Rows, *, batch: str | None = None, finish: bool = True, now_ms: int | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """Process these rows as a static DataFrame, as ``start`` does; returns the rows that each sink got."""
        self._move_time(now_ms, None)
        inputs, before = self._tables(rows, {}), self.store.head.epoch
        self._do(lambda: run_static(self._epochs, inputs, batch, partial(self._newest_ms, inputs[""]), finish=finish))
        new = range(before + 1, self.store.head.epoch + 1)
        return {name: [row for epoch in new for row in user_rows(self.sinks[name].epochs[epoch])] for name in self._outlets}

    def _newest_ms(self, rows: pa.Table) -> int:
        """The watermark after static rows: their newest event time minus the delay."""
        times = pa.array([]) if self._plan.event_time is None else as_ms(rows.column(self._plan.event_time))
        newest = pc.max(times).as_py()
        return NONE_MS if newest is None else int(newest) - self._delay_ms

    def tick(self, *, now_ms: int, watermark_ms: int | None = None) -> bool:
        """Advance time without input: runs an epoch if timers are due, and returns whether it did.

        ``watermark_ms``: as in ``epoch``.
        """
        self._move_time(now_ms, watermark_ms)
        return bool(self._do(lambda: self._epochs.tick(self._watermark_ms, self._clock.now_ms())))

    def _move_time(self, now_ms: int | None, watermark_ms: int | None) -> None:
        if watermark_ms is not None and self._plan.watermark is not None:
            raise BadInput("this pipeline computes its watermark from its rows: omit watermark_ms")
        self._row_watermark.manual |= watermark_ms is not None
        of_rows_ms = 0 if self._timed_by is None else self._row_watermark.watermark_ms(self._delay_ms, self._timed_by[1])
        self._watermark_ms = max(self._watermark_ms, watermark_ms or 0, of_rows_ms)
        self._clock.advance_ms(max((now_ms or 0) - self._clock.now_ms(), 0))

    def explain(self, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
        """As ``Query.explain``."""
        return explain_running(self._epochs, self._running.pipeline.stream.about, format)

    def heartbeat(self, at: int | datetime, source: str | None = None) -> None:
        """As ``Query.heartbeat``."""
        self._epochs.heartbeat(source, time_ms(at))

    def rollback(self, epoch: int, build: Callable[..., Output] | None = None, **changes: Any) -> None:
        """Roll back to an epoch and restart, as after ``floodplain rollback``. Later input must be passed to ``epoch`` again.
        Further arguments: as of ``restart``."""
        self.restart()
        self.store.rollback(epoch, force=True)
        head = self.store.head
        self._batch_id, self._watermark_ms = head.source.batch_id, max(head.watermarks.get(EVENT_TIME, 0), 0)
        self.restart(build, **changes)

    def rescale(self, slots: int | Mapping[str, int]) -> None:
        """Use this many slots from the next epoch on, for all operators or for some by name."""
        self._epochs.rescale(slots)
        self._slots = self._epochs.parallelism.wanted if isinstance(slots, Mapping) else slots

    def crash_at(self, point: CrashPoint, action: Callable[[], object] = crash) -> None:
        """Raise ``Crashed`` at this point, or run another ``action`` there (for example, let another driver take over)."""
        self.steps.plan(point, action)

    def play(self, script: Sequence[KitEpoch]) -> list[range]:
        """Run a whole script; after a crash, restart and continue. Returns the steps of each entry (after a crash: of the
        restart). Raises ``AssertionError`` if an entry leaves a committed epoch unpublished."""
        return [self._play(entry) for entry in script]

    def _play(self, entry: KitEpoch) -> range:
        before = self.store.head.epoch
        steps = self.until_done(partial(self._act, entry))
        for epoch in range(before + 1, self.store.head.epoch + 1) if entry.update is None and entry.control is None else ():
            if unpublished := [name for name in self._outlets if epoch not in self.sinks[name].epochs]:
                raise AssertionError(f"epoch {epoch} is committed, but not published before the next epoch: {unpublished}")
        return steps

    def until_done(self, act: Callable[[], object]) -> range:
        """Run it; after a crash, restart until a restart completes. Returns the steps of the run that completed."""
        while True:
            first = len(self.steps.taken)
            try:
                act()
            except Crashed:
                act = self.restart
            else:
                return range(first, len(self.steps.taken))

    def _act(self, entry: KitEpoch) -> None:
        if entry.slots is not None:
            self.rescale(entry.slots)
        if entry.control is not None:
            self.control(entry.control)
        elif entry.update is not None:
            self.update(entry.update, tag=entry.tag, **entry.changes)
        elif entry.rows is None:
            self.tick(now_ms=entry.now_ms or 0, watermark_ms=entry.watermark_ms)
        elif entry.batch is not None:
            self.static(entry.rows, batch=entry.batch, finish=entry.finish, now_ms=entry.now_ms)
        else:
            self.epoch(entry.rows, watermark_ms=entry.watermark_ms, now_ms=entry.now_ms, broadcast=entry.broadcast)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The schema of the rows that each sink gets."""
        return {outlet.name: self._epochs.bound.schema_of(outlet) for outlet in self._plan.outlets}

    def state(self, table: str) -> list[dict[str, Any]]:
        return user_rows(self.store.snapshot().table(table).to_arrow())

    @property
    def progress(self) -> list[EpochProgress]:
        return list(self._epochs.progress.epochs)

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """As ``Query.totals``."""
        return self._epochs.progress.totals

    def outcome(self) -> dict[str, Counter[str]]:
        """All published rows and all state, as multisets to compare."""
        published = {f"sink {name}": _multiset(*sink.epochs.values()) for name, sink in self.sinks.items()}
        snapshot = self.store.snapshot()
        return published | {f"table {table}": _multiset(snapshot.table(table).to_arrow()) for table in self.store.head.schemas}


def survives_every_crash(make: Callable[[], PipelineKit], script: Sequence[KitEpoch], *, crashes: int = 1) -> int:
    """Play a script without crashes, then again with a crash at each point in turn; returns the number of runs with crashes.

    Crash points are before each step, and after the last step of the start and of each entry of the script. (A crash after any
    other step is equal to one before the next.) ``crashes=2`` adds, to each of these, a second crash at each point of the
    recovery. Raises ``AssertionError`` with the crash points after which output or state differ from the run without crashes.
    """
    kit = make()
    points = [point for steps in _play(kit, script, ()) for point in _points(kit, steps)]
    expected = kit.outcome()
    return sum(_survives(kit, script, (point,), crashes, expected) for point in points)


def _survives(
    kit: PipelineKit, script: Sequence[KitEpoch], points: tuple[CrashPoint, ...], crashes: int, expected: dict[str, Counter[str]]
) -> int:
    played = _play(kit, script, points)
    outcome = kit.outcome()
    different = [name for name, rows in expected.items() if outcome.get(name) != rows]
    if different:
        where = " and ".join(f"{point.when} step {point.step} ({kit.steps.taken[point.step]})" for point in points)
        raise AssertionError(f"after a crash {where}: {different} differ")
    if len(points) == crashes:
        return 1
    recovery = _points(kit, next(steps for steps in played if steps.start > points[-1].step))
    return 1 + sum(_survives(kit, script, (*points, point), crashes, expected) for point in recovery)


def _play(kit: PipelineKit, script: Sequence[KitEpoch], points: Sequence[CrashPoint]) -> list[range]:
    kit.wipe()
    for point in points:
        kit.crash_at(point)
    return [kit.until_done(kit.restart), *kit.play(script)]


def _points(kit: PipelineKit, steps: range) -> list[CrashPoint]:
    # Objects written by probes of the store are never read again, so crashes there cannot matter.
    chosen = [step for step in steps if paths.PROBES not in kit.steps.taken[step]]
    return [*(CrashPoint(step, "before") for step in chosen), *(CrashPoint(step, "after") for step in chosen[-1:])]


def _table(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Requires: a table has all columns of the schema."""
    return cast_table(rows, schema) if isinstance(rows, pa.Table) else table_of(list(rows), schema, "rows of the kit")


def _multiset(*tables: pa.Table) -> Counter[str]:
    return Counter(repr(row) for table in tables for row in table.to_pylist())
