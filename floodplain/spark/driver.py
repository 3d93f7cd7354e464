"""The driver side of an epoch: plan it, run one job per stateful operator, commit, publish."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from floodplain.errors import BadInput, Conflict
from floodplain.eventtime.times import NONE_MS, EpochTimes
from floodplain.operators.operator import EVENT_TIMERS, PROCESSING_TIMERS, KeyedOperator
from floodplain.operators.process import Process
from floodplain.settings import StoreSettings
from floodplain.spark import checkpoint
from floodplain.spark.exchange import even, groups_of, to_slots
from floodplain.spark.sinks import Sink, read_staged
from floodplain.spark.worker import REPORT_SCHEMA, Job, TaskReport, worker
from floodplain.state import tables
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.tables import define
from floodplain.store.epoch import Epoch
from floodplain.store.layout import HASH
from floodplain.store.store import Store, Writer
from floodplain.tiers import paths
from floodplain.versions.commit import commit
from floodplain.versions.edit import AdvancePublished, Assignment, SetAssignment, SourcePosition, Update
from floodplain.versions.requirements import RequireLease
from floodplain.versions.schema import PROCESSING_TIME


@dataclass(frozen=True)
class Transform:
    """A stateless step, in Spark."""

    function: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Keyed:
    """A stateful step."""

    name: str
    keys: tuple[str, ...]
    process: Process


Step = Transform | Keyed


@dataclass
class EpochProgress:
    """What the last epoch did."""

    epoch: int
    batch_id: int
    rows: int
    late: int
    output_rows: int
    duration_ms: int
    watermark_ms: int
    slots: int
    busy_ms: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """The state that a pipeline runs on, opened and leased, and how its tasks open it."""

    store: Store
    writer: Writer
    location: str
    settings: StoreSettings
    options: Mapping[str, str]


class Driver:
    """Runs epochs one at a time under one lock. Made by ``Stream.start``."""

    def __init__(
        self, place: Place, steps: Sequence[Step], event_time: str | None, sink: Sink, slots: int, checkpoint_dir: Path
    ) -> None:
        self.store = place.store
        self.writer = place.writer
        self._place = place
        self._steps = list(steps)
        self._event_time = event_time
        self._sink = sink
        self._checkpoint = checkpoint_dir
        self._wanted_slots = slots
        self._lock = threading.Lock()
        self._empty: DataFrame | None = None
        self._timers: list[tuple[tables.Place, str]] = []
        self._outputs: dict[str, pa.Schema] = {}
        self.progress: list[EpochProgress] = []

    def rescale(self, slots: int) -> None:
        """Use this many slots from the next epoch on. No state moves."""
        if slots < 1 or slots > self.store.head.key_groups:
            raise BadInput(f"{slots} slots are not possible: use 1 to {self.store.head.key_groups}")
        self._wanted_slots = slots

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        """Before the first epoch: define the tables, publish what a driver that died had committed, clear up what it had not.

        Raises before anything runs if a step does not fit its input or what is in the state.
        """
        # A relation that Spark knows to be empty is optimised away, and its tasks with it; timers need them.
        session = spark.newSession()
        session.conf.set("spark.sql.adaptive.enabled", "false")
        self._empty = session.createDataFrame(spark.sparkContext.emptyRDD(), schema)
        self._define(self._empty)
        head = self.store.head
        self._sink.prepare(head.store, head.epoch, self._output)
        self.publish()
        blobs = self.store.history.blobs
        blobs.delete([info.name for info in blobs.list(paths.STAGED)])

    def on_batch(self, rows: DataFrame, batch_id: int) -> None:
        """What Spark calls for each micro-batch."""
        with self._lock:
            rows.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
            entry = checkpoint.batch_entry(self._checkpoint, batch_id, self.store.head.source)
            self.publish()
            if not checkpoint.is_replay(self.store.head.source, entry.position):
                self._run(rows, entry.position, entry.timestamp_ms, entry.watermark_ms)

    def tick(self) -> bool:
        """An epoch without rows if timers are due, else a renewal of the lease; whether there was an epoch.

        Spark calls us only when data comes. It leaves the watermark that the next batch would have in its commit log.
        """
        with self._lock:
            head = self.store.head
            watermark_ms = checkpoint.next_watermark(self._checkpoint, head.source.batch_id)
            now_ms = self.store.history.clock.now_ms()
            if self._empty is not None and self._due(watermark_ms, now_ms):
                self._run(self._empty, None, now_ms, watermark_ms)
                return True
            lease_ms = self.store.history.settings.lease_ms
            if head.lease.expires_ms - now_ms < lease_ms * 2 // 3:
                commit(self.store.history, [AdvancePublished(head.published)], token=self.writer.token)
            return False

    def _due(self, watermark_ms: int, now_ms: int) -> bool:
        snapshot = self.store.snapshot()
        for place, kind in self._timers:
            until_ms = watermark_ms if kind == EVENT_TIMERS else now_ms
            if next(snapshot.table(place.table).scan(times=(-(1 << 63), until_ms + 1)), None) is not None:
                return True
        return False

    def _run(self, rows: DataFrame, position: SourcePosition | None, timestamp_ms: int, watermark_ms: int) -> None:
        clock = self.store.history.clock
        started = clock.monotonic_s()
        before = self.store.head.watermarks
        times = EpochTimes(
            processing_ms=max(timestamp_ms, before.get(PROCESSING_TIME, 0)),
            late_ms=before.get(EVENT_TIME, NONE_MS),
            watermark_ms=max(watermark_ms or NONE_MS, before.get(EVENT_TIME, NONE_MS)),
        )
        watermarks = {EVENT_TIME: times.watermark_ms} if times.watermark_ms > NONE_MS else {}
        epoch = self.writer.epoch(now_ms=times.processing_ms, watermarks=watermarks)
        assignment, changes = self._assignment()
        reports, last = self._run_steps(rows, epoch, times, assignment)
        outputs = [report.output for report in last if report.output]
        epoch.commit([report.state for report in reports], source=position, outputs=outputs, also=changes)
        between = {report.output for report in reports if report.output}.difference(outputs)
        self.store.history.blobs.delete(sorted(between))
        self.publish()
        self.progress.append(
            EpochProgress(
                epoch=epoch.number,
                batch_id=self.store.head.source.batch_id,
                rows=sum(report.rows for report in reports),
                late=sum(report.late for report in reports),
                output_rows=sum(report.output_rows for report in last),
                duration_ms=int((clock.monotonic_s() - started) * 1000),
                watermark_ms=times.watermark_ms,
                slots=assignment.slots,
                busy_ms=[report.busy_ms for report in reports],
            )
        )
        del self.progress[:-100]

    def _run_steps(
        self, rows: DataFrame, epoch: Epoch, times: EpochTimes, assignment: Assignment
    ) -> tuple[list[TaskReport], list[TaskReport]]:
        """One job per stateful operator; returns all reports, and those of the last operator."""
        reports: list[TaskReport] = []
        last: list[TaskReport] = []
        current = rows
        for step in self._steps:
            if isinstance(step, Transform):
                current = step.function(current)
                continue
            last = self._run_operator(step, current, epoch, times, assignment)
            reports += last
            if step is not self._steps[-1]:
                staged = [report.output for report in last if report.output]
                table = read_staged(staged, self.store.history.blobs, self._outputs[step.name])
                current = rows.sparkSession.createDataFrame(table, from_arrow_schema(table.schema))
        return reports, last

    def _assignment(self) -> tuple[Assignment, list[Update]]:
        head = self.store.head
        if head.assignment is not None and head.assignment.slots == self._wanted_slots:
            return head.assignment, []
        version = head.assignment.version + 1 if head.assignment else 1
        assignment = even(self._wanted_slots, head.key_groups, version)
        return assignment, [SetAssignment(assignment)]

    def _operator(self, step: Keyed, rows: pa.Schema) -> KeyedOperator:
        keys = {name: rows.field(name).type for name in step.keys}
        event_time = self._event_time if self._event_time in rows.names else None
        return KeyedOperator(step.name, step.process, keys, event_time)

    def _define(self, current: DataFrame) -> None:
        """The tables of all operators; ``current`` has the columns of the input and no rows."""
        for step in self._steps:
            if isinstance(step, Transform):
                current = step.function(current)
            else:
                operator = self._operator(step, _arrow_schema(current))
                define(self.writer, operator.tables)
                self._timers += [(operator.tables.places[name], name) for name in (EVENT_TIMERS, PROCESSING_TIMERS)]
                self._outputs[step.name] = operator.output
                current = current.sparkSession.createDataFrame([], from_arrow_schema(operator.output))

    def _run_operator(
        self, step: Keyed, rows: DataFrame, epoch: Epoch, times: EpochTimes, assignment: Assignment
    ) -> list[TaskReport]:
        head = self.store.head
        slotted = to_slots(rows, step.keys, assignment, head.key_groups)
        schema = _arrow_schema(slotted)
        job = Job(
            location=self._place.location,
            settings=self._place.settings,
            options=dict(self._place.options),
            ticket=msgspec.msgpack.encode(epoch.ticket),
            manifest=msgspec.msgpack.encode(head),
            operator=self._operator(step, schema),
            times=times,
            slots=groups_of(assignment, head.key_groups),
            rows=schema.serialize().to_pybytes(),
        )
        found = slotted.mapInArrow(worker(job), REPORT_SCHEMA).collect()
        reports = [msgspec.msgpack.decode(row.report, type=TaskReport) for row in found]
        if sorted(report.slot for report in reports) != list(range(assignment.slots)):
            raise Conflict(
                f"operator {step.name}: Spark ran {len(reports)} tasks for {assignment.slots} slots; the epoch is given up"
            )
        return reports

    @property
    def _output(self) -> pa.Schema:
        return list(self._outputs.values())[-1]

    def publish(self) -> None:
        """Publish the last committed epoch unless that was done, under the lease."""
        head = self.store.history.refresh()
        if head.published >= head.epoch:
            return
        RequireLease(self.writer.token).check(head)
        self._sink.publish(head.epoch, head.outputs, self.store.history.blobs, self._output)
        commit(self.store.history, [AdvancePublished(head.epoch)], token=self.writer.token)
        self.store.history.blobs.delete(head.outputs)


def _arrow_schema(rows: DataFrame) -> pa.Schema:
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    return pa.schema(
        [pa.field(f.name, f.type) for f in schema if f.name != HASH]
        + ([pa.field(HASH, pa.int64())] if HASH in schema.names else [])
    )
