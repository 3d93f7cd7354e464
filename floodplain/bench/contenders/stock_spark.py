"""Contenders in plain Spark: stateful queries as users of Spark write them, and a pipeline without state.

This module and ``stock_nexmark`` are the only ones of ``bench`` that import pyspark. The stateful contenders publish with
Spark's Parquet writer from ``foreachBatch``, because Spark has no file sink for update mode.
"""

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from floodplain.bench.workloads.counting import OUTPUT_SCHEMA
from floodplain.bench.workloads.visits import window_end
from floodplain.clock import SystemClock, SystemRandomness
from floodplain.metrics import Counters
from floodplain.operators.kernel.key_grouping import group
from floodplain.settings import StoreSettings
from floodplain.sinks.files import ParquetSink
from floodplain.sinks.staged import encoding
from floodplain.spark.exchange import hashed, to_slots
from floodplain.spark.java import provide_java
from floodplain.spark.session_conf import ToPython, start_light
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.create import create_or_read
from floodplain.tiers.open import open_blobs
from floodplain.versions.records.assignment import even

CORES = 2
STATELESS_APP = "stateless"
ROW_BYTES = 50.0
"""The approximate size of a row in Arrow."""
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": ("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
MEMORY = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}


@contextmanager
def local_session(home: Path, task_slots: int = CORES) -> Iterator[SparkSession]:
    """Spark on two cores of this machine, or with more task slots than that.

    Idle queries poll for files only ten times a second, so that they use little CPU.
    """
    provide_java(home / "java")
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.default.parallelism": str(CORES),
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.files.openCostInBytes": str(1 << 20),
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{task_slots}]").appName("floodplain-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def files(spark: SparkSession, schema: str, format: str = "parquet") -> Callable[[Path], DataFrame]:  # noqa: A002 — Spark's word
    """Reads the files of a folder as a stream, one per epoch."""
    return lambda folder: spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).format(format).load(str(folder))


def aggregation(settings: Mapping[str, str]) -> Callable[[DataFrame, Path], StreamingQuery]:
    """Spark's aggregation in the JVM, with the state store of the settings."""

    def start(rows: DataFrame, folder: Path) -> StreamingQuery:
        counted = rows.groupBy("key").agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"))
        return _started(counted, folder, settings)

    return start


def transform_with_state(
    processor: Callable[[], StatefulProcessor], output: str, time_mode: str = "None", *, pandas: bool = False
) -> Callable[[DataFrame, Path], StreamingQuery]:
    """Spark's own operator for process functions in Python."""

    def start(rows: DataFrame, folder: Path) -> StreamingQuery:
        grouped: Any = rows.groupBy("key")
        call = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
        made = call(statefulProcessor=processor(), outputStructType=output, outputMode="Update", timeMode=time_mode)
        return _started(made, folder, ROCKSDB)

    return start


def _started(made: DataFrame, folder: Path, settings: Mapping[str, str]) -> StreamingQuery:
    out = str(folder / "out")

    def publish(rows: DataFrame, _: int) -> None:
        rows.write.mode("append").option("compression", "snappy").parquet(out)

    spark = made.sparkSession
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        return (
            made.writeStream.outputMode("update")
            .foreachBatch(publish)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )
    finally:
        for name in settings:
            spark.conf.unset(name)


class CountProcessor(StatefulProcessor):
    """``counter`` as users of transformWithState write it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002
        n, total = self._state.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.amount
        self._state.update((n, total))
        yield Row(key=key[0], n=n, total=total)

    def close(self) -> None:
        pass


class VisitsProcessor(StatefulProcessor):
    """``process`` as users of transformWithState write it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "total long")
        self._times = handle.getListState("times", "at long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002
        visits = [(row.at, row.amount) for row in rows]
        yield Row(key=key[0], at=0, n=self._add(visits))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(key=key[0], at=at, n=self._close(at))

    def close(self) -> None:
        pass

    def _add(self, visits: list[tuple[int, int]]) -> int:
        total = (self._total.get() or (0,))[0] + sum(amount for _, amount in visits)
        self._total.update((total,))
        self._times.appendList([(at,) for at, _ in visits])
        for end in {window_end(at) for at, _ in visits}:
            self._handle.registerTimer(end)
        return int(total)

    def _close(self, end: int) -> int:
        times = list(self._times.get())
        kept = [time for time in times if time[0] >= end]
        if kept:
            self._times.put(kept)
        else:
            self._times.clear()
        return len(times) - len(kept)


class VisitsPandasProcessor(VisitsProcessor):
    """The same for ``transformWithStateInPandas``."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002
        visits = [pair for some in rows for pair in zip(some["at"].tolist(), some["amount"].tolist(), strict=True)]
        yield pd.DataFrame({"key": [key[0]], "at": [0], "n": [self._add(visits)]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"key": [key[0]], "at": [at], "n": [self._close(at)]})


def stateless(slots: int) -> Callable[[DataFrame, Path], StreamingQuery]:
    """The same pipeline without state: the same shuffle, count and sum per key within the epoch in Python, rows staged by the
    tasks as synced Parquet files and published by the same sink. Spark's checkpoint and the transfer to Python have the same
    settings as in Floodplain."""

    def start(rows: DataFrame, folder: Path) -> StreamingQuery:
        staged = str(folder / "staged")
        blobs, sink = _blobs(staged), ParquetSink(str(folder / "out"))
        sink.prepare(STATELESS_APP, 0, OUTPUT_SCHEMA)
        assignment = even(slots, StoreSettings().key_groups, 1)
        to_python = ToPython(rows.sparkSession)

        def on_batch(batch: DataFrame, number: int) -> None:
            batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
            slotted = to_slots(batch, assignment, StoreSettings().key_groups)
            to_python.use(batch.sparkSession)
            with to_python.sending(batch.sparkSession, ROW_BYTES):
                names = [row.name for row in slotted.mapInArrow(_staging(staged, number), "name string").collect() if row.name]
            sink.publish(number, names, blobs, OUTPUT_SCHEMA)
            blobs.delete(names)

        writing = hashed(rows, ("key",)).writeStream.foreachBatch(on_batch)
        return start_light(writing.option("checkpointLocation", str(folder / "checkpoint")), rows.sparkSession)

    return start


_opened: dict[str, Blobs] = {}


def _blobs(location: str) -> Blobs:
    if location not in _opened:
        _opened[location] = open_blobs(
            location, StoreSettings(), options={}, clock=SystemClock(), randomness=SystemRandomness(), counters=Counters()
        )
    return _opened[location]


def _staging(location: str, number: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collected = list(batches)
        name = _stage(pa.Table.from_batches(collected), location, number) if collected else ""
        yield pa.record_batch({"name": pa.array([name])})

    return work


def _stage(rows: pa.Table, location: str, number: int) -> str:
    context = TaskContext.get()
    assert context is not None
    grouped = group(rows, {"key": "key"})
    sums = np.add.reduceat(grouped.column("amount").to_numpy(), grouped.starts[:-1])
    made = pa.table([grouped.space.keys.column("key"), np.diff(grouped.starts), sums], OUTPUT_SCHEMA)
    sink = io.BytesIO()
    pq.write_table(made, sink, **encoding(made))
    name = f"staged/{number}-{context.partitionId()}-{context.taskAttemptId()}"
    create_or_read(_blobs(location), name, sink.getbuffer(), StoreSettings().retry, SystemClock(), SystemRandomness())
    return name
