"""The driver side on Spark: micro-batches become epochs, and epochs come also when no data does."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.eventtime.times import END_MS, NONE_MS
from floodplain.spark import checkpoint
from floodplain.spark.ahead import put_ahead
from floodplain.spark.contract import Place
from floodplain.spark.engine import SparkEngine, tagged, untagged
from floodplain.spark.epochs import Epochs
from floodplain.spark.plan import Plan
from floodplain.state.descriptors import EVENT_TIME
from floodplain.versions.edit import SourcePosition


class Driver:
    """Runs epochs one at a time under one lock. Made by ``Output.start``."""

    def __init__(self, place: Place, plan: Plan, session: SparkSession, slots: int, tags: Sequence[str]) -> None:
        self._engine = SparkEngine(session, place.store.head.key_groups)
        self.epochs = Epochs(place, plan, self._engine, slots)
        self.store = place.store
        self._tags = tuple(tags)
        self._plan = plan
        self._lock = threading.Lock()
        self._checkpoint: Path | None = None
        self.after_epoch: Callable[[], object] = lambda: None
        """Called when an epoch of rows is through."""

    def prepare(self, inputs: dict[str, DataFrame], drop: Sequence[str]) -> None:
        """Before the first epoch; raises if the pipeline does not fit its input or what is in the state."""
        self.epochs.prepare({tag: self._engine.empty(self._engine.schema(rows)) for tag, rows in inputs.items()}, drop)

    def follow(self, folder: Path, inputs: dict[str, DataFrame]) -> DataFrame:
        """What the streaming query with this checkpoint is to hand over, batch by batch. Requires: ``prepare`` was called."""
        self._checkpoint = folder
        self.epochs.front, rows = put_ahead(self._plan, self._engine, self.epochs.operators, inputs[""])
        return tagged({**inputs, "": rows})

    def on_batch(self, rows: DataFrame, batch_id: int) -> None:
        """What Spark calls for each micro-batch."""
        assert self._checkpoint is not None
        with self._lock:
            self._engine.use(rows.sparkSession)
            entry = checkpoint.batch_entry(self._checkpoint, batch_id, self.store.head.source)
            self.epochs.publish()
            if not checkpoint.is_replay(self.store.head.source, entry.position):
                self.epochs.run(untagged(rows, self._tags), entry.position, entry.timestamp_ms, entry.watermark_ms)
                self.after_epoch()

    def tick(self) -> bool:
        """An epoch without rows if timers are due, else a renewal of the lease; whether there was an epoch.

        Spark calls us only when data comes. It leaves the watermark that the next batch would have in its commit log.
        """
        with self._lock:
            head, now_ms = self.store.head, self.store.history.clock.now_ms()
            given_ms = checkpoint.next_watermark(self._checkpoint, head.source.batch_id) if self._checkpoint else 0
            watermark_ms = self.epochs.time.watermark_ms(given_ms, now_ms)
            # Timers up to the watermark of the last epoch had their turn in it; what callbacks set for the past waits.
            moved = watermark_ms > head.watermarks.get(EVENT_TIME, NONE_MS)
            if self.epochs.due(watermark_ms if moved else NONE_MS, now_ms):
                self.epochs.run(None, None, now_ms, watermark_ms)
                return True
            if moved and self.epochs.follows_watermark:
                self.epochs.advance(now_ms, watermark_ms)
            lease_ms = self.store.history.settings.lease_ms
            if head.lease.expires_ms - now_ms < lease_ms * 2 // 3:
                self.epochs.renew()
            return False

    def heartbeat(self, source: str | None, at_ms: int) -> None:
        """Once the running epoch is over."""
        with self._lock:
            self.epochs.heartbeat(source, at_ms)

    def run_static(self, inputs: dict[str, DataFrame], batch: str | None, delay_ms: int, finish: bool) -> None:
        """All rows as one epoch, then one for the timers that are due at the end of the input."""
        with self._lock:
            before = self.store.head.source
            name = f"{checkpoint.BATCHES}{batch}"
            if batch is not None and name in before.sources:
                return
            for rows in inputs.values():
                self._engine.use(rows.sparkSession.newSession())
            position = None
            if batch is not None:
                position = SourcePosition(before.query_id, before.batch_id, before.offsets, {name: "done"})
            self.epochs.run(inputs, position, self.store.history.clock.now_ms(), 0)
            newest_ms = self._newest_ms(inputs[""]) - delay_ms if self.epochs.time.rule is None else 0
            watermark_ms = self.epochs.time.watermark_ms(newest_ms, self.store.history.clock.now_ms())
            fire_ms = END_MS if finish else watermark_ms
            if self.epochs.due(fire_ms, self.store.history.clock.now_ms()):
                self.epochs.run(None, None, self.store.history.clock.now_ms(), watermark_ms, fire_ms)

    def _newest_ms(self, rows: DataFrame) -> int:
        if self._plan.event_time is None:
            return NONE_MS
        newest = rows.agg(F.max(F.unix_millis(F.col(self._plan.event_time).cast("timestamp")))).collect()[0][0]
        return NONE_MS if newest is None else int(newest)
