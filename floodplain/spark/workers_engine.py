"""The engine of workers that stay: slots keep their process, rows reach it as Arrow, and Spark runs no shuffle."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import BadInput, FloodplainError, NotNative
from floodplain.eventtime.watermarks import SourceObservation, WatermarkRule
from floodplain.operators.kernel.traits import Combiner
from floodplain.plan.nodes import Input, Keyed, Node, Plan, Side, parents
from floodplain.plan.single_scan import OnePass
from floodplain.runtime.binder import BoundPlan
from floodplain.runtime.engine import TryFailed
from floodplain.runtime.live.slots import ControlJob, SlotReport
from floodplain.runtime.pieces import Piece
from floodplain.runtime.staging import Staged
from floodplain.runtime.task import Job, StageJob, TaskReport
from floodplain.runtime.task_errors import FINAL
from floodplain.settings import Workers
from floodplain.sources.event_times import EventTimes
from floodplain.sources.parquet import InputFile, file_ranges
from floodplain.spark.bridge import bridged
from floodplain.spark.engine import SparkEngine, combine
from floodplain.spark.exchange import hashed
from floodplain.spark.foreach_batch import ForeachBatchSink
from floodplain.spark.native_input import NativeInput, native_input, observe
from floodplain.spark.worker_jobs import SparkLauncher
from floodplain.spark.worker_settings import check_settings, free_task_slots, release, reserved
from floodplain.store.rows.layout import HASH
from floodplain.store.store import Store
from floodplain.versions.records.edit import Assignment, RunRef, SourcePosition
from floodplain.workers.channel import Credentials, new_secret
from floodplain.workers.pool import Wiring, WorkerPool

BRIDGE = "bridge: Spark computes the rows, and its tasks hand them to the workers"
NATIVE = "native: workers read the files of each batch themselves"
BROADCAST = "collected: Spark computes the rows, and they travel with the commands"
_dumps: Callable[[Any], bytes] = cloudpickle.dumps
_loads: Callable[[bytes], Any] = cloudpickle.loads
RANGES_PER_WORKER = 2
"""So that workers that read faster than others are not done long before them."""


@dataclass
class NativeRows:
    """The rows of a micro-batch that workers read themselves. Its frame is Spark's way to them, for steps that need Spark."""

    frame: DataFrame
    input: NativeInput
    files: Sequence[InputFile]
    schema: pa.Schema
    read: "_ReadByWorkers"
    combine: bool = False

    def for_spark(self) -> DataFrame:
        """From here on Spark itself computes what it observes of the batch."""
        self.read.by_spark = True
        return self.frame


@dataclass
class _ReadByWorkers:
    """What workers have read of a batch."""

    rows: int = 0
    event_times: EventTimes = field(default_factory=EventTimes)
    by_spark: bool = False
    """Whether a job of Spark reads it, too."""
    given_up: bool = False
    """Whether a file of it has to be left to Spark."""


class WorkersEngine(SparkEngine):
    """Runs operators on workers. What has no state runs on Spark and comes to them over the bridge, or is read by them."""

    keeps_rows = True

    def __init__(self, session: SparkSession, key_groups: int, options: Workers, state_bytes: int = 0) -> None:
        """``state_bytes``: of the runs that workers will map."""
        super().__init__(session, key_groups)
        check_settings(session.sparkContext, state_bytes)
        self._home = session
        self._options = options
        self._credentials = Credentials(new_secret(SystemRandomness()))
        self._pool: WorkerPool | None = None
        self._store: Store | None = None
        self._native: NativeInput | str = "the input is not a stream"
        self._front: Node | None = None
        self._read: _ReadByWorkers | None = None
        self._query: StreamingQuery | None = None
        self._workers = 0
        self._input_ways: dict[str, str] = {}

    def follow(self, rows: DataFrame, front: Node, tags: Sequence[str]) -> None:
        self._native = native_input(rows) if len(tags) == 1 else "it is one of several inputs"
        self._front = front

    @property
    def description(self) -> str:
        return f"workers (long-running tasks of Spark): {self._workers}"

    def input_ways(self) -> dict[str, str]:
        return self._input_ways

    def goes_on_from(self, plan: Plan, front: Node, *, rehash: bool) -> None:
        super().goes_on_from(plan, front, rehash=rehash)
        self._front = front
        self._input_ways = self._ways(plan)

    def _ways(self, plan: Plan) -> dict[str, str]:
        if self._rehash:
            way = f"{BRIDGE}; its first operator has other keys than at the start"
        else:
            way = _way(plan, self._front) if isinstance(self._native, NativeInput) else f"{BRIDGE}; {self._native}"
        return {node.tag: BROADCAST if node.tag else way for node in plan.nodes if isinstance(node, Input)}

    def start(self, bound: BoundPlan, slots: int, name: str) -> None:
        spark_free = isinstance(self._native, NativeInput) and runs_without_spark(bound, self._front)
        plan = reserved(self._context, self._options, slots, 0 if spark_free else 1, self._credentials.secret)
        self._credentials = replace(self._credentials, certificates=plan.certificates)
        self._workers = plan.workers
        self._input_ways = self._ways(bound.plan)
        silent_s = self._options.heartbeat_timeout_ms / 1000
        wiring = Wiring(self._credentials, plan.bind, lambda port: (plan.host, port), _dumps, _loads, silent_s)
        launcher = partial(SparkLauncher, self._context, name)
        self._store = bound.place.store
        self._pool = WorkerPool.launch(bound, wiring, plan.workers, launcher, SystemClock(), SystemRandomness())

    def successor(self, bound: BoundPlan, front: Node | None) -> Callable[[], None]:
        """Workers are ended and launched again with the new operators: code comes to them in no other way than from Spark."""
        tasks = super().successor(bound, front)
        if free_task_slots(self._context) < 1 and not runs_without_spark(bound, front):
            raise BadInput(
                "the new pipeline has steps that Spark runs, and workers hold all of its task slots: stop the query, and start "
                "it with fewer workers in Workers(count=…), or with a larger master"
            )
        workers = self._running.successor(bound)

        def switch() -> None:
            tasks()
            workers()

        return switch

    def look(self, job: ControlJob) -> list[SlotReport]:
        """Beside the workers, which get code with their launch only."""
        if free_task_slots(self._context) < 1:
            raise BadInput(
                f"control operation {job.operation.name} runs as a job of Spark, and workers hold all of its task slots: start "
                "with fewer workers in Workers(count=…), or with a larger master"
            )
        return super().look(job)

    def prefetch(self, runs: Sequence[RunRef]) -> None:
        if self._pool is not None and self._store is not None and self._store.history.blobs.derived is not None:
            self._pool.prefetch(runs, self._store)

    def give_up(self) -> None:
        if self._pool is not None:
            self._pool.coordinator.give_up()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        release(self._credentials.secret)

    @property
    def pids(self) -> dict[int, int]:
        return {} if self._pool is None else self._pool.pids

    def concern(self) -> str | None:
        return None if self._pool is None else self._pool.coordinator.concern()

    def inputs(self, batch: DataFrame, tags: Sequence[str], position: SourcePosition, before: SourcePosition) -> dict[str, Any]:
        self._read = None
        native = self._native
        files = native.files(position, before) if isinstance(native, NativeInput) else native
        if self._rehash or isinstance(files, str) or not isinstance(native, NativeInput):
            return super().inputs(batch, tags, position, before)
        self._read = _ReadByWorkers()
        return {tags[0]: NativeRows(batch, native, files, self.schema(batch), self._read)}

    def batch_done(self, position: SourcePosition) -> None:
        """Spark has not run the batch, so it has not seen its rows."""
        read = self._read
        if read is not None and not read.by_spark:
            self._query = self._query or next(query for query in self._home.streams.active if str(query.id) == position.query_id)
            observe(self._query, read.event_times, read.rows)

    def schema(self, rows: DataFrame | NativeRows) -> pa.Schema:
        return rows.schema if isinstance(rows, NativeRows) else super().schema(rows)

    def transform(self, rows: DataFrame | NativeRows, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
        return super().transform(_frame(rows), function)

    def select(self, rows: DataFrame | NativeRows, columns: Sequence[tuple[str, Any]], only: tuple[str, str] | None) -> DataFrame:
        return super().select(_frame(rows), columns, only)

    def extend(self, rows: DataFrame | NativeRows, columns: Sequence[tuple[str, Any]], where: Any) -> DataFrame:
        return super().extend(_frame(rows), columns, where)

    def union(self, members: Sequence[DataFrame | NativeRows]) -> DataFrame:
        return super().union([_frame(member) for member in members])

    def parted(self, rows: DataFrame | NativeRows, parts: OnePass) -> DataFrame:
        return super().parted(_frame(rows), parts)

    def stage(self, rows: DataFrame | NativeRows, job: StageJob) -> list[TaskReport]:
        return super().stage(_frame(rows), job)

    def collect(self, rows: DataFrame | NativeRows) -> pa.Table:
        return super().collect(_frame(rows))

    def measure(
        self, rows: DataFrame | NativeRows, rule: WatermarkRule, now_ms: int
    ) -> tuple[DataFrame, Callable[[], Mapping[str, SourceObservation]]]:
        return super().measure(_frame(rows), rule, now_ms)

    def combined(self, rows: DataFrame | NativeRows, combiner: Combiner, slots: int) -> Any:  # noqa: ARG002 — no shuffle follows
        schema = self.schema(rows)
        made = combiner.schema(schema)
        if isinstance(rows, NativeRows) and not rows.read.given_up:
            return replace(rows, schema=made, combine=True)
        both = [each.serialize().to_pybytes() for each in (schema, made)]
        return _frame(rows).mapInArrow(partial(combine, combiner, *both), from_arrow_schema(made))

    def run(
        self,
        rows: DataFrame | NativeRows | Staged,
        keys: Sequence[str],
        assignments: Mapping[str, Assignment],
        job: Job,
        row_bytes: float | None,
    ) -> list[TaskReport]:
        pool = self._running
        pool.begin(job, assignments)
        self.moved_slots = pool.moved_slots
        if isinstance(rows, Staged):
            return pool.run(job, rows.pieces, rows)
        schema = pa.ipc.read_schema(pa.py_buffer(job.rows))
        if HASH not in schema.names:
            job = replace(job, rows=schema.append(pa.field(HASH, pa.int64())).serialize().to_pybytes())
        if isinstance(rows, NativeRows) and not rows.read.given_up:
            return pool.run(job, self._natively(rows, keys, job))
        frame = _frame(rows)
        row_bytes = None if self._has_python(job.operator.name, frame) else row_bytes
        frame = frame if HASH in schema.names else hashed(frame, keys)
        return pool.run(job, self._over_bridge(frame, keys, job, row_bytes))

    def _natively(self, rows: NativeRows, keys: Sequence[str], job: Job) -> list[Piece]:
        pool = self._running
        ranges = file_ranges(rows.files, RANGES_PER_WORKER * len(pool.peers))
        try:
            made = pool.read(job, keys, rows.input.scan, ranges, combine=rows.combine)
        except NotNative as error:
            rows.read.given_up = True
            raise TryFailed(error) from error
        # Each operator that reads the input sees all of it, and so does each try.
        rows.read.rows, rows.read.event_times = sum(each.rows for each in made), merged(each.event_times for each in made)
        return [piece for each in made for piece in each.pieces]

    def _over_bridge(self, rows: DataFrame, keys: Sequence[str], job: Job, row_bytes: float | None) -> list[Piece]:
        pool = self._running
        if free_task_slots(self._context) < 1:
            raise BadInput(
                "these rows come from jobs of Spark, and workers hold all of its task slots: start with fewer workers in "
                "Workers(count=…), or with a larger master"
            )
        order = pool.bridge(job, keys)
        try:
            with self._to_python.sending(rows.sparkSession, row_bytes):
                return bridged(rows, order)
        except FINAL:
            pool.abandon(wait=False)
            raise
        except FloodplainError as error:
            raise pool.failed(error) from error

    @property
    def _context(self) -> Any:
        return self._home.sparkContext

    @property
    def _running(self) -> WorkerPool:
        assert self._pool is not None, "start comes first"
        return self._pool

    def end_epoch(self) -> None:
        if self._pool is not None:
            self._pool.end_epoch()


def _way(plan: Plan, front: Node | None) -> str:
    """Which way the rows of an input take that workers can read: steps of Spark do not read it through them."""
    readers = [node for node in plan.nodes if front in parents(node)]
    steps = [type(node).__name__.lower() for node in readers if not isinstance(node, Keyed)]
    steps += ["a sink" for outlet in plan.outlets if outlet.node is front]
    if not steps:
        return NATIVE
    named = ", ".join(dict.fromkeys(steps))
    if any(isinstance(node, Keyed) for node in readers):
        return f"{NATIVE}; Spark reads them again for {named}"
    return f"{BRIDGE}; its rows go through {named} first"


def _frame(rows: DataFrame | NativeRows) -> DataFrame:
    return rows.for_spark() if isinstance(rows, NativeRows) else rows


def merged(times: Iterable[EventTimes]) -> EventTimes:
    return reduce(EventTimes.merged, times, EventTimes())


def runs_without_spark(bound: BoundPlan, front: Node | None) -> bool:
    """Whether no step of an epoch is a job of Spark, given that workers read the input and compute the steps up to ``front``."""
    plan = bound.plan
    if plan.watermark is not None or front is None:
        return False
    done, pending = {front}, [front]
    while pending:
        above = parents(pending.pop())
        done.update(above)
        pending += above
    stateful = all(node in done or (isinstance(node, Keyed | Side) and not _broadcasts(node)) for node in plan.nodes)
    outlets = [outlet for outlet in plan.outlets if isinstance(outlet.node, Keyed | Side)]
    return stateful and len(outlets) == len(plan.outlets) and not any(isinstance(o.sink, ForeachBatchSink) for o in outlets)


def _broadcasts(node: Node) -> bool:
    return isinstance(node, Keyed) and node.broadcast is not None
