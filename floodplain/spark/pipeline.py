"""What users write on Spark: a stream, its steps, its sink."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from floodplain.errors import BadInput, LeaseHeld
from floodplain.operators.process import Process
from floodplain.settings import StoreSettings
from floodplain.spark import checkpoint
from floodplain.spark.driver import Driver, EpochProgress, Keyed, Place, Step, Transform
from floodplain.spark.housekeeper import Housekeeper
from floodplain.spark.sinks import ForeachBatchSink, Sink, open_sink
from floodplain.state.descriptors import EVENT_TIME
from floodplain.store.store import Store, Writer
from floodplain.store.view import TableView
from floodplain.versions.manifest import Manifest


def stream(rows: DataFrame) -> "Stream":
    """A pipeline over a streaming DataFrame of any source."""
    return Stream(rows)


@dataclass(frozen=True)
class Stream:
    """Steps so far; each method returns a new one."""

    rows: DataFrame
    steps: tuple[Step, ...] = ()
    event_time: str | None = None
    keys: tuple[str, ...] = ()

    def watermark(self, column: str, delay: str) -> "Stream":
        """Event time is in ``column``, and rows may be this late."""
        return replace(self, rows=self.rows.withWatermark(column, delay), event_time=column)

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> "Stream":
        """A stateless step in Spark."""
        return replace(self, steps=(*self.steps, Transform(function)))

    def key_by(self, *columns: str) -> "Stream":
        if not columns:
            raise BadInput("key_by needs at least one column")
        return replace(self, keys=columns)

    def process(self, process: Process, *, name: str | None = None) -> "Stream":
        """A stateful step. ``name`` names its state; by default the class does."""
        if not self.keys:
            raise BadInput("process needs keys: call key_by before it")
        step = Keyed(name or _snake(type(process).__name__), self.keys, process)
        if any(isinstance(other, Keyed) and other.name == step.name for other in self.steps):
            raise BadInput(f"two operators are called {step.name}: give one of them another name")
        return replace(self, steps=(*self.steps, step), keys=())

    def write(self, format: str, **options: Any) -> "Output":  # noqa: A002 — as Spark calls it
        """``parquet`` or ``delta`` (path=, storage_options=), ``kafka`` (servers=, topic=, key=, value=, headers=, config=,
        marker_topic=), ``memory``, ``console`` (rows=, truncate=).
        """
        return Output(self, open_sink(format, options))

    def foreach_batch(self, function: Callable[[DataFrame, int], None]) -> "Output":
        """Call ``function(df, epoch)`` for each epoch, at least once."""
        return Output(self, ForeachBatchSink(function, self.rows.sparkSession))


@dataclass(frozen=True)
class Output:
    stream: Stream
    sink: Sink

    def start(
        self,
        *,
        state: str | os.PathLike[str],
        slots: int | None = None,
        trigger: Mapping[str, Any] | None = None,
        force: bool = False,
        settings: StoreSettings | None = None,
        options: Mapping[str, str] | None = None,
    ) -> "Query":
        """Run it on the state at this place, from where that state left off.

        ``trigger`` is what Spark's ``trigger`` takes, as ``{"availableNow": True}``. ``force`` takes the state from a driver
        that still holds it.
        """
        steps = self.stream.steps
        if not steps or not isinstance(steps[-1], Keyed):
            raise BadInput("a pipeline ends with a stateful step: call process last")
        location = os.fspath(state)
        settings = settings or StoreSettings()
        store = Store.open(location, create=True, settings=settings, options=options)
        writer = _take_over(store, force)
        try:
            return self._started(Place(store, writer, location, settings, options or {}), slots, trigger)
        except BaseException:
            writer.close()
            raise

    def _started(self, place: Place, slots: int | None, trigger: Mapping[str, Any] | None) -> "Query":
        head = place.store.head
        folder = _checkpoint_folder(place.location)
        checkpoint.agree(folder, head.source, head.watermarks.get(EVENT_TIME, 0))
        spark = self.stream.rows.sparkSession
        count = slots or (head.assignment.slots if head.assignment else spark.sparkContext.defaultParallelism)
        driver = Driver(place, self.stream.steps, self.stream.event_time, self.sink, count, folder)
        driver.prepare(spark, self.stream.rows.schema)
        started = (
            self.stream.rows.writeStream.foreachBatch(driver.on_batch)
            .option("checkpointLocation", str(folder))
            .trigger(**dict(trigger or {"processingTime": "0 seconds"}))
            .start()
        )
        return Query(started, driver, self.sink)


class Query:
    """A running pipeline."""

    def __init__(self, query: StreamingQuery, driver: Driver, sink: Sink) -> None:
        self._query = query
        self._driver = driver
        self.sink = sink
        self._keeper = Housekeeper(driver, lambda: bool(query.isActive))
        self._keeper.start()

    def await_termination(self, seconds: int | None = None) -> bool:
        """Wait for the end; whether it came. A query over what is available ends with the epochs that timers still want."""
        ended = self._query.awaitTermination(seconds) if seconds is not None else self._query.awaitTermination() or True
        if ended and self._query.exception() is None:
            while self._driver.tick():
                pass
        return bool(ended)

    def process_all_available(self) -> None:
        """Wait until all input that is there now is processed, and the timers that are due then."""
        self._query.processAllAvailable()
        while self._driver.tick():
            pass

    def stop(self) -> None:
        """Finish the running epoch and let go of the state."""
        self._query.stop()
        self._keeper.stop()
        self.sink.close()
        self._driver.writer.close()

    @property
    def status(self) -> dict[str, Any]:
        return dict(self._query.status)

    @property
    def progress(self) -> list[EpochProgress]:
        """The last epochs, oldest first."""
        return list(self._driver.progress)

    @property
    def exception(self) -> Exception | None:
        return self._query.exception() or self._keeper.failure

    def rescale(self, slots: int) -> None:
        """Use this many slots from the next epoch on, while it runs. No state moves."""
        self._driver.rescale(slots)

    @property
    def manifest(self) -> Manifest:
        """What the state consists of, as of the last committed epoch."""
        return self._driver.store.head

    def state(self, table: str) -> TableView:
        """A table as of the last committed epoch."""
        return self._driver.store.snapshot().table(table)


def _take_over(store: Store, force: bool) -> Writer:
    """The lease; of a driver that died, once it has run out. A driver that lives renews it and is left alone."""
    history = store.history
    owner = f"driver_{history.chance.nonce()}"
    seen_ms = history.head.lease.expires_ms
    while True:
        try:
            return store.writer(owner, force=force)
        except LeaseHeld:
            lease = history.refresh().lease
            if lease.expires_ms > seen_ms:
                raise
            history.clock.sleep_s(max(lease.expires_ms - history.clock.now_ms(), 10) / 1000)


def _checkpoint_folder(location: str) -> Path:
    """Spark writes its checkpoint to a file system; beside a directory store, else in a place of this machine."""
    if "://" not in location:
        return Path(location).resolve() / "checkpoint"
    if location.startswith("file://"):
        return Path(location.removeprefix("file://")) / "checkpoint"
    return Path(tempfile.mkdtemp(prefix="floodplain-checkpoint-"))


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")
