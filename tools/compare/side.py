"""One side of a comparison: a query on the tree that ``PYTHONPATH`` names, fed by commands on standard input.

``side.py WORKLOAD HOME``. Each command is a JSON list of files; the answer is a line of JSON with their processing times, as
Spark reports them. It uses only Floodplain's public API, so that it runs on older trees.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

QUIET_S = 0.3
"""A state whose log does not grow for this long has no compaction running."""


def session(home: Path) -> SparkSession:
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("floodplain-compare")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def workload(name: str) -> tuple[str, Any]:
    """The schema of its input files, and its start function."""
    if name == "counter":
        counting = import_module("tools.compare.counting")
        return counting.ROWS, counting.start
    queries, generator = import_module("examples.nexmark.queries"), import_module("examples.nexmark.generator")
    query = queries.QUERIES[name]
    return generator.ROWS, lambda rows, home: query.into(rows, Path(home) / "out").start(state=f"{home}/state", slots=2)


def _package(_: Iterable[int]) -> list[str]:
    """The folder that ``floodplain`` is imported from, here or in a task of Spark."""
    return [str(Path(import_module("floodplain").__file__ or "").parent)]


class Side:
    """A running query that is fed files and reports how long they took."""

    def __init__(self, name: str, home: Path) -> None:
        self._input, self._log = home / "in", home / "state" / "log"
        self._input.mkdir(parents=True)
        (home / "out").mkdir()
        spark = session(home)
        schema, start = workload(name)
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self._input))
        self.packages = {
            "driver": _package([])[0],
            "task": spark.sparkContext.parallelize([0], 1).mapPartitions(_package).first(),
        }
        self.running = start(rows, str(home))
        (self._query,) = spark.streams.active

    def feed(self, files: list[str]) -> dict[str, Any]:
        seen = max((batch.batchId for batch in self._batches()), default=-1)
        for path in files:
            os.link(path, self._input / Path(path).name)
        self._query.processAllAvailable()
        self._wait_for_compaction()
        batches = [batch for batch in self._batches() if batch.batchId > seen]
        took_ms = [batch.durationMs["triggerExecution"] for batch in batches]
        began = [datetime.fromisoformat(batch.timestamp).timestamp() for batch in batches]
        return {"seconds": began[-1] - began[0] + took_ms[-1] / 1000, "epochs_ms": took_ms}

    def _batches(self) -> list[Any]:
        return [batch for batch in self._query.recentProgress if "addBatch" in batch.durationMs]

    def _wait_for_compaction(self) -> None:
        """Untimed: a compaction of one side must not run while the other is measured."""
        seen, since = None, time.monotonic()
        while time.monotonic() - since < QUIET_S:
            now = sorted(self._log.iterdir())
            if now != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.02)


def main() -> None:
    side = Side(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps(side.packages), flush=True)
    for line in sys.stdin:
        print(json.dumps(side.feed(json.loads(line))), flush=True)
    side.running.stop()


if __name__ == "__main__":
    main()
