"""One small local Spark for all tests that ask Spark itself."""

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from floodplain.spark.java import java_home


def builder(scratch: Path) -> Any:
    """Of a Spark on this machine: four task slots, since workers hold some, and one partition by default. Requires a Java."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[4]")
        .appName("floodplain-tests")
        .config("spark.default.parallelism", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )


def local_spark(scratch: Path) -> Iterator[Any]:
    """Start Spark, yield its session, stop it. Skips, loudly, where Spark cannot start."""
    home = java_home(scratch / "java")
    if home is None:
        _skip("no Java 17 or newer: set JAVA_HOME, put java on the PATH or install the extra `java`")
    os.environ.update(JAVA_HOME=str(home), PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    try:
        session = builder(scratch).getOrCreate()
    except Exception as error:  # whatever keeps Spark from starting here is no fault of the code under test
        _skip(f"Spark did not start with {home}: {error}")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _skip(why: str) -> NoReturn:
    warnings.warn(f"tests against Spark are skipped: {why}", stacklevel=2)
    pytest.skip(why)
