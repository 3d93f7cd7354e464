"""A pipeline on Spark: started, running, stopped."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from floodplain.cost.report import CostReport
from floodplain.errors import BadInput
from floodplain.eventtime.options import time_ms
from floodplain.pipeline.explain.running import explain_running
from floodplain.pipeline.explain.text import Form
from floodplain.pipeline.same_input import replacement
from floodplain.pipeline.stream import Output, StartOptions, Stream
from floodplain.plan.nodes import Input, Plan
from floodplain.prices import Prices
from floodplain.runtime.checkpoint import spark_checkpoint
from floodplain.runtime.compatibility.migration import StartChanges
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.lease_takeover import take_over
from floodplain.runtime.live.operation import ControlOperation, Update
from floodplain.runtime.progress import EpochProgress
from floodplain.runtime.schema_inference import dry_schemas
from floodplain.scratch import Scratch
from floodplain.sinks.base import Sink
from floodplain.spark.active_queries import ActiveQueries
from floodplain.spark.driver import Driver
from floodplain.spark.engine import SparkEngine, union_of
from floodplain.spark.environment import check_classic, prepare_workers
from floodplain.spark.foreach_batch import ForeachBatchSink
from floodplain.spark.maintenance import Maintenance
from floodplain.spark.session_conf import SPARKS, runs_without_data, start_light
from floodplain.spark.termination import Termination
from floodplain.spark.watermark_observer import with_event_time
from floodplain.spark.workers_engine import WorkersEngine
from floodplain.state.durations import to_ms
from floodplain.store.read.snapshot import TableView
from floodplain.store.store import Store
from floodplain.tiers.files.modes import Modes
from floodplain.tiers.files.plain import check_tree
from floodplain.tiers.open import folder_of
from floodplain.versions.records.assignment import checked_counts
from floodplain.versions.records.edit import Update as Record
from floodplain.versions.records.frame import MAX_BYTES
from floodplain.versions.records.manifest import Manifest


def stream(rows: DataFrame | None = None, /, **sources: DataFrame) -> Stream:
    """A pipeline over a DataFrame of any source, streaming or static.

    Pass several sources by name: ``stream(clicks=clicks, impressions=impressions)``. They become one stream with the columns of
    all of them, null where a source has none, and a column ``source`` with the name. One epoch covers all sources.
    """
    if (rows is None) == (not sources):
        raise BadInput("stream takes one DataFrame, or several by name: stream(clicks=…, impressions=…)")
    named = {"": rows} if rows is not None else dict(sources)
    check_classic(named.values())
    return Stream(SparkRuntime(), named, Input(), {})


class SparkRuntime:
    """Starts pipelines on the Spark session of their input."""

    def schemas_of(self, stream: Stream, plan: Plan) -> dict[str, pa.Schema]:
        main = union_of(stream.sources)
        engine = SparkEngine(main.sparkSession, key_groups=1)
        empty = {tag: engine.empty(engine.schema(rows)) for tag, rows in {"": main, **stream.broadcasts}.items()}
        return dry_schemas(with_event_time(plan, main), engine, empty)

    def foreach_batch_sink(self, stream: Stream, function: Callable[[DataFrame, int], None]) -> Sink:
        session = next(iter(stream.sources.values())).sparkSession
        return ForeachBatchSink(function, session)

    def start(self, stream: Stream, plan: Plan, options: StartOptions) -> "Query":
        main = union_of(stream.sources)
        inputs = {"": main, **stream.broadcasts}
        streaming = {rows.isStreaming for rows in inputs.values()}
        if len(streaming) > 1:
            raise BadInput("some inputs of this pipeline are streaming and some are static: make them all the one or the other")
        if main.isStreaming:
            _check_fires(plan)
        _check_shared(options.state)
        prepare_workers(main.sparkSession)
        store = Store.open(options.state, create=True, settings=options.settings, options=options.options)
        if options.slots is not None:
            checked_counts(options.slots, [operator.name for operator in plan.operators], store.head.key_groups)
        ending = ACTIVE.get(store.head.store)
        if ending is not None and not options.force:
            ending.await_release()
        writer = take_over(store, f"driver_{store.history.randomness.nonce()}", force=options.force)
        with ExitStack() as undo:
            undo.callback(writer.close)
            for outlet in plan.outlets:
                undo.callback(outlet.sink.close)
            place = StateLocation(store, writer, options.state, options.settings, options.options)
            engine = _engine(main.sparkSession, store.head, options)
            undo.callback(engine.close)
            maintenance = Maintenance()
            driver = Driver(
                *(place, with_event_time(plan, main), engine, options.slots, list(inputs), maintenance),
                default_slots=min(main.sparkSession.sparkContext.defaultParallelism, store.head.key_groups),
                without_data=runs_without_data(main.sparkSession),
            )
            driver.prepare(inputs, options.changes)
            query = self._run(driver, maintenance, Output(stream, plan.outlets), inputs, options)
            undo.pop_all()
        return query

    def _run(
        self,
        driver: Driver,
        maintenance: Maintenance,
        pipeline: Output,
        inputs: dict[str, DataFrame],
        options: StartOptions,
    ) -> "Query":
        if not inputs[""].isStreaming:
            driver.launch(options.name or options.state)
            driver.run_static(inputs, options.batch, pipeline.stream.delay_ms, options.finish)
            return Query(None, driver, maintenance, pipeline)
        state_folder = folder_of(options.state)
        with ExitStack() as passing:
            # Spark needs a file system for its checkpoint: the folder of a directory store, else a temporary one of this machine.
            folder = (
                passing.enter_context(Scratch("checkpoint")) if state_folder is None else state_folder.resolve() / "checkpoint"
            )
            followed = _follow(driver, inputs, options, folder)
            ends = "availableNow" in (options.trigger or {})
            query = Query(followed, driver, maintenance, pipeline, ends=ends)
            query.then(passing.pop_all().close)
        return query


def _engine(session: SparkSession, head: Manifest, options: StartOptions) -> SparkEngine:
    if options.workers is None:
        return SparkEngine(session, head.key_groups)
    state_bytes = sum(run.length for runs in head.runs.values() for run in runs)
    return WorkersEngine(session, head.key_groups, options.workers, state_bytes)


def _follow(driver: Driver, inputs: dict[str, DataFrame], options: StartOptions, folder: Path) -> StreamingQuery:
    head = driver.store.head
    check_tree(folder, MAX_BYTES)
    modes = Modes(options.settings.mode)
    if options.settings.mode is not None:
        modes.make_folder(folder)
    spark_checkpoint.agree(folder, head.source, spark_checkpoint.noted_watermark(head.watermarks), head.left, driver.seen)
    modes.set_all(folder)
    rows = driver.follow(folder, inputs, pushdown=options.pushdown)
    driver.launch(options.name or options.state)
    writing = rows.writeStream.foreachBatch(driver.on_batch).option("checkpointLocation", str(folder))
    if options.name is not None:
        writing = writing.queryName(options.name)
    trigger = {"processingTime": "0 seconds"} if not options.trigger else dict(options.trigger)
    if isinstance(interval := trigger.get("processingTime"), timedelta):
        trigger["processingTime"] = f"{to_ms(interval, 'trigger interval')} milliseconds"
    return start_light(writing.trigger(**trigger), rows.sparkSession)


class Query:
    """A running pipeline, or one over static input that has run."""

    def __init__(
        self,
        query: StreamingQuery | None,
        driver: Driver,
        maintenance: Maintenance,
        pipeline: Output,
        *,
        ends: bool = False,
    ) -> None:
        """``ends``: it ends by itself, and timers that are due then fire."""
        self._query = query
        self._driver = driver
        self._pipeline = pipeline
        self._maintenance = maintenance
        maintenance.attach(driver, self._runs, self._end_spark)
        self._termination: Termination | None = None
        if query is None:
            self._maintenance.tidy()
            driver.close()
            return
        self._termination = Termination(query, driver, self._maintenance, last_timers=ends)
        ACTIVE.add(driver.store.head.store, self)
        self._termination.then(lambda: ACTIVE.remove(driver.store.head.store, self))
        self._maintenance.start()
        self._termination.start()

    def _runs(self) -> bool:
        """Whether Spark runs it. If Spark does not answer any more, the query has ended with it."""
        try:
            return self._query is not None and bool(self._query.isActive)
        except (*SPARKS, OSError):
            return False

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query: the same after a restart. None over static input."""
        return None if self._query is None else str(self._query.id)

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or Spark has begun to end it, of which it tells before it is done."""
        try:
            return not self._runs() or (self._query is not None and self._query.exception() is not None)
        except (*SPARKS, OSError):
            return True

    def await_release(self) -> None:
        """If it is ending, wait until it has released the lease on its state."""
        if self._termination is not None and self.is_ending:
            self._termination.wait_released()

    def _end_spark(self) -> None:
        with suppress(*SPARKS, OSError):
            if self._query is not None:
                self._query.stop()

    def then(self, call: Callable[[], object]) -> None:
        """Call this function when the query ends or fails; at once if it has ended."""
        if self._termination is None:
            call()
        else:
            self._termination.then(call)

    @property
    def worker_pids(self) -> dict[int, int]:
        """With ``engine="workers"``: worker → its process. Empty otherwise."""
        return self._driver.worker_pids

    @property
    def sinks(self) -> dict[str, Sink]:
        """Its sinks, by name."""
        return {outlet.name: outlet.sink for outlet in self._pipeline.outlets}

    @property
    def sink(self) -> Sink:
        """The first of its sinks."""
        return next(iter(self.sinks.values()))

    def await_termination(self, seconds: float | None = None) -> bool:
        """Wait until the query has ended; returns whether it has. Raises the error that ended it, if it failed.

        A query with the trigger ``availableNow`` first runs epochs until no timer is due. When this returns true, the query has
        released its lease.
        """
        if self._termination is None:
            return True
        ended = self._termination.wait(seconds)
        if ended and self._termination.failure is not None:
            raise self._termination.failure
        return ended

    def process_all_available(self) -> None:
        """Wait until all input that is available now is processed and no timer is due. Raises the error that ended the query,
        if it failed."""
        if self._query is None or self._termination is None:
            return
        try:
            self._query.processAllAvailable()
        except SPARKS:
            if self.is_ending:
                self.await_termination()
            raise
        self._fire()
        if self._termination.failure is not None:
            raise self._termination.failure

    def _fire(self) -> None:
        try:
            while self._driver.tick():
                pass
        except Exception as error:
            self._maintenance.fail(error)
            raise

    def stop(self) -> None:
        """Finish the running epoch, commit and publish it, and release the lease. No further epoch begins and no timer fires.

        You may call it again, and from any thread. Inside an epoch it raises ``BadInput``.
        """
        if self._query is None or self._termination is None:
            return
        self._driver.drain()
        if not self._termination.over:
            self._end_spark()
        self._termination.wait()

    @property
    def status(self) -> dict[str, Any]:
        """Spark's own status: ``message``, ``isDataAvailable`` and ``isTriggerActive``."""
        if self._query is None:
            return {"message": "done", "isDataAvailable": False, "isTriggerActive": False}
        return dict(self._query.status)

    @property
    def is_active(self) -> bool:
        """Whether the query runs. If not, it has released its lease."""
        return self._termination is not None and not self._termination.over

    @property
    def progress(self) -> list[EpochProgress]:
        """The last hundred epochs, oldest first."""
        return list(self._driver.epochs.progress.epochs)

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Operator → drop reason → rows dropped since the state was created, over all restarts. Reasons: ``late``, and
        ``ignored`` as in ``progress.ignored_by``."""
        return self._driver.epochs.progress.totals

    def cost(self, prices: Prices | None = None, every: str | timedelta | None = None) -> CostReport:
        """What the retained epochs have cost: requests, bytes and waits by operator and tier, per epoch and month, and what would
        lower it. Lists what is stored. ``prices``: not those of the settings. ``every``: as if an epoch came so often."""
        return self._driver.epochs.cost(prices, every)

    @property
    def exception(self) -> Exception | None:
        """The error that ended the query; while it runs, the error of its compaction or garbage collection, which is retried.
        None if there is none or the query was stopped."""
        return None if self._termination is None else self._termination.failure or self._maintenance.failure

    def explain(self, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
        """The dataflow and how it runs now, with slots and tables, as text or as a picture (``"mermaid"``, ``"svg"``)."""
        return explain_running(self._driver.epochs, self._pipeline.stream.about, format)

    def update(
        self,
        pipeline: Output,
        *,
        tag: str | None = None,
        drop: Sequence[str] = (),
        reset: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        evolve: Mapping[str, Callable[[Any], Any] | None] | None = None,
    ) -> int:
        """Run another pipeline on the same input from the next epoch on, while the query runs. Returns the epoch that it begins
        with: an epoch of its own, without rows.

        It waits for the running epoch. The pipeline is compared with the state as at a start, and ``drop``, ``reset``,
        ``rename`` and ``evolve`` are those of ``start``. ``tag``: a name under which the epoch before is kept. Raises
        ``BadInput`` (``IncompatibleChange`` for what the state cannot follow) if the pipeline cannot take over; then nothing was
        written, and the running one goes on.
        """
        changes, onward = StartChanges.of(drop, reset, rename, evolve), self._onward(pipeline)
        epoch = self._driver.update(onward.plan, changes, tag)
        self._pipeline = onward
        return epoch

    def control(self, operation: ControlOperation, *, run: str | None = None) -> Any:
        """Run a control operation at the next boundary of epochs, and do what it decides. Returns the decision: None,
        ``Rescale``, ``Tag``, ``Update``, or plain data.

        It waits for the running epoch, and no epoch begins meanwhile. The decision and what follows from it are one edit.
        ``run`` names this run: if the log has it already, what it decided is returned, and nothing is run.
        """

        def switch(decision: Update, records: Sequence[Record]) -> None:
            onward = self._onward(decision.pipeline)
            self._driver.take_over(onward.plan, decision.changes, decision.tag, records)
            self._pipeline = onward

        return self._driver.control(operation, run, switch)

    def _onward(self, pipeline: Output) -> Output:
        onward = replacement(self._pipeline, pipeline, DataFrame.sameSemantics)
        _check_fires(onward.plan)
        return onward

    def rescale(self, slots: int | Mapping[str, int]) -> None:
        """Use this many slots from the next epoch on, while the query runs: for all operators, or for some by the names that
        ``explain`` shows, as in ``{"parse": 2, "join": 8}``. No state moves.

        The fewest key groups change their slot that balance the rows of the last epochs. An operator that has so many slots
        already is balanced anew. Raises ``BadInput`` for an unknown operator or an impossible number; then nothing changes.
        """
        self._driver.epochs.rescale(slots)

    def heartbeat(self, at: int | datetime, source: str | None = None) -> None:
        """Advance the watermark without rows: all events of this source, or of all sources, up to ``at`` have come.

        It waits for the running epoch, and is part of the state when it returns.
        """
        self._driver.heartbeat(source, time_ms(at))

    @property
    def manifest(self) -> Manifest:
        """The manifest of the last committed epoch."""
        return self._driver.store.head

    def state(self, table: str) -> TableView:
        """A table as of the last committed epoch."""
        return self._driver.store.snapshot().table(table)


ACTIVE: ActiveQueries[Query] = ActiveQueries()


def _check_fires(plan: Plan) -> None:
    for operator in plan.operators:
        if operator.traits.needs_end:
            raise BadInput(
                f"operator {operator.name}: the global window of a stream never ends, so nothing would come out: say when it "
                "gives results, as in window(fp.global_window(), early=fp.every_epoch())"
            )


def _check_shared(location: str) -> None:
    if location.startswith("memory://"):
        raise BadInput(
            f"the state at {location} would be in the memory of this process, and the tasks of Spark run in others: use a "
            "directory, which may be temporary, or an object store. fp.PipelineKit runs a pipeline in memory, without Spark"
        )
