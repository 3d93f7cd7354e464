"""A driver in a process of its own, to be killed, with any source and sink: ``python -m tests.spark.sink_process SETTINGS``.

``SETTINGS`` is JSON: ``folder``, ``sink`` and its ``options``, and for Kafka as the source ``servers``, ``topic`` and ``jars``.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from floodplain.settings import StoreSettings
from floodplain.spark.java import provide_java
from floodplain.spark.runtime import stream
from tests.processes import Count


def main(settings: dict[str, Any]) -> None:
    folder = Path(settings["folder"])
    provide_java(folder / "java")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars", ",".join(settings.get("jars", ())))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        stream(source(spark, settings))
        .key_by("user")
        .process(Count())
        .write(settings["sink"], **settings["options"])
        .start(state=folder / "state", slots=2, trigger={"availableNow": True}, settings=StoreSettings(lease_ms=1500))
    )
    query.await_termination()
    if query.exception is not None:
        raise query.exception
    query.stop()
    print("done", flush=True)


def source(spark: SparkSession, settings: dict[str, Any]) -> DataFrame:
    if "topic" not in settings:
        files = spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1)
        return files.parquet(os.path.join(settings["folder"], "in"))
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings["servers"])
        .option("subscribe", settings["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings["per_epoch"])
        .load()
    )
    return records.selectExpr("cast(key as string) user", "cast(cast(value as string) as long) amount")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
