"""The driver side on Spark: micro-batches become epochs, and epochs come also when no data does."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.errors import BadInput, Conflict
from floodplain.eventtime.times import NONE_MS
from floodplain.plan.nodes import Plan
from floodplain.plan.same_steps import counterpart
from floodplain.runtime.checkpoint import spark_checkpoint
from floodplain.runtime.checkpoint.known_files import SeenReader
from floodplain.runtime.compatibility.migration import NO_CHANGES, StartChanges
from floodplain.runtime.drain_lock import DrainLock
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.runtime.live.control import Run, Switch, control
from floodplain.runtime.live.operation import ControlOperation
from floodplain.runtime.live.update import PlanUpdate, update
from floodplain.runtime.static_input import run_static
from floodplain.spark.engine import SparkEngine, tagged
from floodplain.spark.pushdown import hashed_by, push_down
from floodplain.spark.session_conf import SPARKS
from floodplain.store.rows.layout import HASH
from floodplain.versions.records.edit import RunRef, Update

NOTING_S = 5.0
"""How long a stop waits for Spark to note the last batch. That takes it some milliseconds."""
STOPPING_S = 10.0
"""How long a batch that is turned away waits for the stop to reach Spark, which follows at once."""


class Interrupted(Exception):
    """Ends a batch so that Spark takes it for one that its stop has interrupted.

    Spark goes by the text. It runs out of stack on long ones, as those of its own errors are with their traces.
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling on_batch: java.lang.InterruptedException")


class DriverListener(Protocol):
    """The query that a driver works for: the driver tells it what happens, and asks whether it goes on."""

    def is_running(self) -> bool:
        """Whether the query runs; one that is being started does."""

    def concern(self) -> str | None:
        """What is wrong in the background, as a warning in the progress of epochs."""

    def epoch_done(self) -> None:
        """An epoch of rows is committed and published."""

    def lease_lost(self, error: Exception) -> None:
        """Called by the thread that renews the lease: why it cannot be kept."""


class Driver:
    """Runs epochs one at a time, until it is drained. Made by ``Output.start``."""

    def __init__(
        self,
        place: StateLocation,
        plan: Plan,
        engine: SparkEngine,
        slots: int | Mapping[str, int] | None,
        tags: Sequence[str],
        listener: DriverListener,
        *,
        default_slots: int,
        without_data: bool = True,
    ) -> None:
        """``without_data``: epochs come also when no data does."""
        self._without_data = without_data
        self._engine = engine
        self._listener = listener
        self.epochs = EpochRunner(place, plan, engine, slots, listener.concern, deferred=True, default_slots=default_slots)
        self.store = place.store
        self.seen = SeenReader(place.store.history.blobs, place.store.head.store)
        self._tags = tuple(tags)
        self._plan = plan
        self._drain_lock = DrainLock()
        self._turned_away = False
        self._given_up = False
        self._closed = False
        self._checkpoint: Path | None = None
        self._front_columns = pa.schema([])
        self._hashed_by: tuple[str, ...] | None = None
        """The keys that Spark has hashed already where rows come to an epoch; None if it has not."""
        self.failure: Exception | None = None
        """What ended the last batch, if it was no error of Spark itself. Spark hands it on as text, in an error of its own."""

    def prepare(self, inputs: dict[str, DataFrame], changes: StartChanges = NO_CHANGES) -> None:
        """Before the first epoch; raises if the pipeline does not fit its input or what is in the state.

        From here on the lease is renewed beside all that is done, while the query runs and while an epoch does.
        """
        self.epochs.writer.keep(lambda: self._drain_lock.busy or self._listener.is_running(), self._listener.lease_lost)
        self.epochs.prepare({tag: self._engine.empty(self._engine.schema(rows)) for tag, rows in inputs.items()}, changes)

    def follow(self, folder: Path, inputs: dict[str, DataFrame], *, pushdown: bool) -> DataFrame:
        """What the streaming query with this checkpoint is to hand over, batch by batch. Requires: ``prepare`` was called.

        ``pushdown``: computed up to the first step that it cannot compute, instead of as it comes.
        """
        self._checkpoint = folder
        operators = self.epochs.bound.operators
        self.epochs.front, rows = push_down(self._plan, self._engine, operators, inputs[""], steps=pushdown)
        schema = self._engine.schema(rows)
        if HASH in schema.names:
            self._front_columns = schema.remove(schema.get_field_index(HASH))
            self._hashed_by = hashed_by(self._plan, self.epochs.front, operators, self._front_columns)
        self._engine.follow(rows, self.epochs.front, self._tags)
        return tagged({**inputs, "": rows})

    def launch(self, name: str) -> None:
        """Have the engine start what runs the epochs. Requires: ``prepare`` was called, and ``follow`` for a stream."""
        self._engine.start(self.epochs.bound, self.epochs.slots, name)

    @property
    def worker_pids(self) -> dict[int, int]:
        """Worker → its process."""
        return self._engine.pids

    def on_batch(self, rows: DataFrame, batch_id: int) -> None:
        """What Spark calls for each micro-batch. Once the query is to stop, none begins: Spark will offer it again."""
        try:
            with self._drain_lock.alone() as may_begin:
                if may_begin:
                    self._run_unless_given_up(rows, batch_id)
            if not may_begin:
                self._turn_away()
        except Exception as error:
            self.failure = None if isinstance(error, (Interrupted, *SPARKS)) else error
            raise

    def _run_unless_given_up(self, rows: DataFrame, batch_id: int) -> None:
        try:
            self._run_batch(rows, batch_id)
        except Exception:
            if self._given_up:
                raise Interrupted from None
            raise

    def _run_batch(self, rows: DataFrame, batch_id: int) -> None:
        assert self._checkpoint is not None
        self._engine.use(rows.sparkSession)
        entry = spark_checkpoint.batch_entry(self._checkpoint, batch_id, self.store.head.source, self.seen)
        if spark_checkpoint.is_replay(self.store.head.source, entry.position):
            self.epochs.publisher.publish()
        else:
            inputs = self._engine.inputs(rows, self._tags, entry.position, self.store.head.source)
            self.epochs.run(inputs, entry.position, entry.timestamp_ms, entry.watermark_ms)
            self._engine.batch_done(entry.position)
            self._listener.epoch_done()

    def _turn_away(self) -> NoReturn:
        """Wait for the stop that is under way, and raise: a batch that returned would be processed, by Spark's checkpoint."""
        self._turned_away = True
        clock = self.store.history.clock
        until_s = clock.monotonic_s() + STOPPING_S
        while self._listener.is_running():
            if clock.monotonic_s() > until_s:
                raise Conflict("this query was to be stopped, so it took no further batch, and then was not: start it again")
            clock.sleep_s(0.01)
        raise Interrupted

    def tick(self) -> bool:
        """As ``EpochRunner.tick``: an epoch without rows if timers are due; whether there was one. None once it is to stop, nor
        if epochs come with data only.

        Spark calls us only when data comes. It leaves the watermark that the next batch would have in its commit log.
        """
        with self._drain_lock.alone() as may_begin:
            if not may_begin:
                return False
            now_ms = self.store.history.clock.now_ms()
            if not self._without_data:
                self.epochs.answer_requests()
                self.epochs.publisher.record_when_idle(now_ms)
                return False
            batch_id = self.store.head.source.batch_id
            given_ms = spark_checkpoint.next_watermark(self._checkpoint, batch_id) if self._checkpoint else 0
            return self.epochs.tick(given_ms, now_ms)

    def heartbeat(self, source: str | None, at_ms: int) -> None:
        """Once the running epoch is over."""
        with self._drain_lock.alone() as may_begin:
            if not may_begin:
                raise BadInput("a heartbeat is an epoch of its own, and this query has stopped: start it again")
            self.epochs.heartbeat(source, at_ms)

    def update(self, plan: Plan, changes: StartChanges, tag: str | None) -> int:
        """Run another plan, once the running epoch is over. Returns the epoch that it begins with."""
        with self._boundary("update changes", "start the new pipeline"):
            return self.take_over(plan, changes, tag)

    def control(self, operation: ControlOperation, run: str | None, switch: Switch) -> Any:
        """Run a control operation, once the running epoch is over. ``switch`` may call ``take_over``."""
        with self._boundary("a control operation looks at", "read its state with fp.open"):
            named = Run(operation, self.store.history.randomness.nonce() if run is None else run)
            return control(self.epochs, named, self._engine.look, switch)

    @contextmanager
    def _boundary(self, what: str, instead: str) -> Iterator[None]:
        """Between two epochs."""
        self.check_outside()
        with self._drain_lock.alone() as may_begin:
            if not may_begin:
                raise BadInput(f"{what} a query while it runs, and this one has ended: {instead}")
            yield

    def take_over(self, plan: Plan, changes: StartChanges, tag: str | None, also: Sequence[Update] = ()) -> int:
        """Run another plan from here on. Requires: it is called between two epochs. ``also``: what else its edit records."""
        front = self.epochs.front
        assert front is not None
        plan = Plan(plan.outlets, self._plan.event_time, plan.watermark)
        onward = counterpart(self._plan, front, plan)
        if onward is None:
            raise BadInput(
                "update: the steps before the first operator are computed in the streaming query of Spark, which goes on, "
                "and the new pipeline has others there. Start with start(pushdown=False) if they are to be updated; now "
                "call query.stop(), then start the new pipeline on the same state"
            )
        epoch = update(self.epochs, PlanUpdate(plan, changes, tag, onward), also)
        self._plan = plan
        operators = self.epochs.bound.operators
        rehash = self._hashed_by is not None and self._hashed_by != hashed_by(plan, onward, operators, self._front_columns)
        self._engine.goes_on_from(plan, onward, rehash=rehash)
        return epoch

    def prefetch(self, runs: Sequence[RunRef]) -> None:
        """As ``Engine.prefetch``."""
        self._engine.prefetch(runs)

    def check_outside(self) -> None:
        """Raises ``BadInput`` if the caller is inside an epoch, which would wait for itself."""
        self._drain_lock.check_outside()

    def give_up(self) -> None:
        """No epoch begins any more, and how the running one ends does not matter: why the query ends is known already."""
        self._given_up = True
        self._drain_lock.shut()
        self._engine.give_up()

    def drain(self) -> None:
        """No epoch begins any more, and the running one is through when this returns, in Spark's checkpoint, too.

        Without its own note Spark would offer the last batch again, and forget how far that moved the watermark.
        """
        self._drain_lock.drain()
        clock, batch_id = self.store.history.clock, self.store.head.source.batch_id
        until_s = clock.monotonic_s() + NOTING_S
        while self._checkpoint is not None and not spark_checkpoint.is_noted(self._checkpoint, batch_id):
            if self._turned_away or clock.monotonic_s() > until_s or not self._listener.is_running():
                return
            clock.sleep_s(0.01)

    def close(self) -> None:
        """Let go of the state, and of what the engine holds. Nothing is committed, published or renewed after it; may be called
        again."""
        self._drain_lock.drain()
        with ExitStack() as steps:
            steps.callback(self._engine.close)
            self.epochs.writer.rest()
            with self._drain_lock.alone():
                if not self._closed:
                    self.epochs.close()
                    self._closed = True

    def run_static(self, inputs: dict[str, DataFrame], batch: str | None, delay_ms: int, finish: bool) -> None:
        """As ``static.run_static``. The watermark is ``delay_ms`` behind the newest row."""
        with self._drain_lock.alone():
            for rows in inputs.values():
                self._engine.use(rows.sparkSession.newSession())
            run_static(self.epochs, inputs, batch, lambda: self._newest_ms(inputs[""]) - delay_ms, finish=finish)

    def _newest_ms(self, rows: DataFrame) -> int:
        if self._plan.event_time is None:
            return NONE_MS
        newest = rows.agg(F.max(F.unix_millis(F.col(self._plan.event_time).cast("timestamp")))).collect()[0][0]
        return NONE_MS if newest is None else int(newest)
