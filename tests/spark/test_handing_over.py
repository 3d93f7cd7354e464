"""How rows go from Spark to Python: fast where they are small, and as the user has set it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodplain.pipeline.stream import Stream
from floodplain.spark.runtime import stream
from floodplain.spark.session_conf import SMALL_BATCH_BYTES, ToPython, settings
from tests.processes import HandedOver
from tests.spark.files import put_table

pytestmark = pytest.mark.spark
LIMIT, BUFFER = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.pandas.udf.buffer.size"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
EPOCHS = 3


def as_it_is(rows: Stream) -> Stream:
    return rows


def found(
    spark: Any, folder: Path, setting: str, names: list[str], step: Callable[[Stream], Stream] = as_it_is
) -> list[str | None]:
    """What the tasks of each epoch had for the setting."""
    for number in range(EPOCHS):
        put_table(folder / "in", number, pa.table({"user": names}))
    read = spark.readStream.schema("user string").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    output = step(stream(read)).key_by("user").process(HandedOver(setting)).write("memory")
    # Only a task of an epoch has the settings of that epoch.
    query = output.start(state=folder / "state", slots=1, trigger={"availableNow": True}, engine="tasks")
    query.await_termination()
    query.stop()
    assert query.exception is None
    rows = sorted(query.sink.table().to_pylist(), key=lambda row: row["n"])
    assert len(rows) == EPOCHS * len(set(names))
    return [row["value"] for row in rows][:: len(set(names))]


def test_batches_of_small_rows_are_not_weighed_once_rows_were_seen(spark, tmp_path):
    first, *later = found(spark, tmp_path, LIMIT, ["ada"] * 5)
    assert first is None and later == ["2147483647"] * (EPOCHS - 1)
    assert spark.conf.get(LIMIT, None) is None


def test_batches_of_large_rows_stay_limited(spark, tmp_path):
    large = "x" * (SMALL_BATCH_BYTES // int(spark.conf.get(ROWS)) + 100)
    assert found(spark, tmp_path, LIMIT, [large] * 3) == [None] * EPOCHS


def test_rows_that_were_in_python_before_stay_limited(spark, tmp_path):
    def through_python(rows: Stream) -> Stream:
        return rows.transform(lambda frame: frame.mapInArrow(lambda batches: batches, "user string"))

    assert found(spark, tmp_path, LIMIT, ["ada"], through_python) == [None] * EPOCHS


def test_what_the_user_has_set_stays(spark, tmp_path):
    with settings(spark, {LIMIT: "1000000", BUFFER: "70000"}):
        assert found(spark, tmp_path / "limit", LIMIT, ["ada"]) == ["1000000"] * EPOCHS
        assert found(spark, tmp_path / "buffer", BUFFER, ["ada"]) == ["70000"] * EPOCHS


def test_rows_are_written_in_large_pieces(spark, tmp_path):
    assert found(spark, tmp_path, BUFFER, ["ada"]) == ["1048576"] * EPOCHS


def test_a_batch_without_a_limit_of_rows_keeps_that_of_bytes(spark):
    with settings(spark, {ROWS: "0"}):
        to_python = ToPython(spark)
    with to_python.sending(spark, 8.0):
        assert spark.conf.get(LIMIT, None) is None
