"""A driver in a process of its own, to be killed: ``python -m tests.spark.driver_process FOLDER SLOTS``."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from floodplain.settings import StoreSettings
from floodplain.spark.pipeline import stream
from tests.spark.processes import Count


def main(folder: Path, slots: int) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = (
        stream(rows)
        .key_by("user")
        .process(Count())
        .write("parquet", path=str(folder / "out"))
        .start(state=folder / "state", slots=slots, trigger={"availableNow": True}, settings=StoreSettings(lease_ms=1500))
    )
    query.await_termination()
    if query.exception is not None:
        raise query.exception
    query.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
