"""Runs a Nexmark query on local Spark over generated events, and compares its output with DuckDB's answer.

    python -m examples.nexmark q5 [--events 500000] [--per-epoch 100000] [--rate 10000] [--folder DIR]

Exit code 1 if they differ.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from examples.nexmark.generator import ROWS, Nexmark, closing, write_files
from examples.nexmark.oracle import Oracle, published
from examples.nexmark.queries import QUERIES
from floodplain.spark.java import provide_java


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--per-epoch", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=10_000.0, help="events in a second of event time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="folder for events, state and output (default: a temporary one)")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="floodplain-nexmark-"))
    query = QUERIES[arguments.query]
    nexmark = Nexmark(seed=arguments.seed, rate=arguments.rate, disorder_ms=3000)
    events = list(nexmark.slices(arguments.events, arguments.per_epoch))
    write_files([*events, *closing(nexmark, arguments.events)] if query.closes else events, folder / "events")
    print(f"{query.name}: {query.title}")
    spark = start_spark(folder)
    rows = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).parquet(str(folder / "events"))
    running = query.into(rows, folder / "out").start(state=folder / "state", slots=2, trigger={"availableNow": True})
    running.await_termination()
    running.stop()
    for epoch in running.progress:
        print(f"epoch {epoch.epoch}: {epoch.rows:,} rows in, {epoch.output_rows:,} out, {epoch.duration_ms} ms")
    spark.stop()
    wrong = Oracle(pa.concat_tables(events)).differences(query.name, published(folder / "out"), query.changes)
    print(f"the output {'DIFFERS FROM' if wrong else 'equals'} what DuckDB computes; events, state and output are in {folder}")
    for row in wrong[:5]:
        print(row)
    return 1 if wrong else 0


def start_spark(folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    provide_java(folder / "java")
    builder = SparkSession.builder.master("local[2]").appName("nexmark").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


if __name__ == "__main__":
    sys.exit(main())
