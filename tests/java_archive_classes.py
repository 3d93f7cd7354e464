"""Runs a small stream, so that Java loads what most tests need of Spark: ``python -m tests.java_archive_classes FOLDER``.

Java writes the archive of these classes when it ends, so this waits for its end.
"""

import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

import floodplain as fp
from tests.processes import Count


def main(folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.range(10).selectExpr("cast(id % 3 as string) as user", "id as amount").write.parquet(f"{folder}/rows")
    rows = spark.readStream.schema("user string, amount long").parquet(f"{folder}/rows")
    counts = fp.stream(rows).key_by("user").process(Count())
    query = counts.write("parquet", path=f"{folder}/out").start(state=f"{folder}/state", trigger={"availableNow": True})
    query.await_termination()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
