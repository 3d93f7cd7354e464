"""A driver that nobody has told which Python tasks are to have: ``python -m tests.spark.python_process FOLDER BARE``.

``BARE`` is a Python in which nothing is installed, and the first one on the PATH.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from floodplain.errors import BadInput
from floodplain.spark.runtime import Query, stream
from tests.processes import Count
from tests.waiting import wait_for


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    made = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def start(spark: SparkSession, folder: Path) -> Query:
    rows = spark.readStream.schema("user string, amount long").parquet(str(folder / "in"))
    query: Query = stream(rows).key_by("user").process(Count(), name="it").write("memory").start(state=folder / "state", slots=1)
    return query


def main(folder: Path, bare: str) -> None:
    spark = session()
    assert spark.sparkContext.pythonExec == "python3"
    query = start(spark, folder)
    query.process_all_available()
    spark.stop()
    wait_for("the end", lambda: not query.is_active)
    os.environ["PYSPARK_PYTHON"] = bare
    spark = session()
    try:
        start(spark, folder)
    except BadInput as error:
        print(f"refused: {error}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
