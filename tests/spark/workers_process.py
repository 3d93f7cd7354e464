"""A driver whose query is on workers: ``python -m tests.spark.workers_process FOLDER END``.

It prints the process ids of its workers, and waits for a line. Then, by ``END``, it stops Spark, or waits to be killed.
"""

import json
import sys
from pathlib import Path

import floodplain as fp
from floodplain.settings import StoreSettings
from tests.processes import Count
from tests.spark_session import builder
from tests.waiting import wait_for


def main(folder: Path, end: str) -> None:
    spark = builder(folder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    output = fp.stream(rows).key_by("user").process(Count()).write("parquet", path=str(folder / "out"))
    query = output.start(state=folder / "state", slots=3, settings=StoreSettings(lease_ms=1500), engine=fp.Workers(count=2))
    wait_for("all workers", lambda: len(query._driver._engine.pids) == 2)
    query.process_all_available()
    print(json.dumps(sorted(query._driver._engine.pids.values())), flush=True)
    sys.stdin.readline()
    if end == "stop":
        spark.stop()
        query.await_termination()
        print(json.dumps({"active": query.is_active, "exception": str(query.exception)}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
