"""Which inputs tasks read by themselves, and how Spark keeps their place and their watermark."""

import operator
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.runtime.checkpoint.spark_checkpoint import batch_entry
from floodplain.sources.parquet import file_ranges, read
from floodplain.spark.catalyst import OnlySpark
from floodplain.spark.native_input import NativeInput, _base, native_input, observe
from floodplain.spark.session_conf import settings
from floodplain.versions.records.edit import SourcePosition
from tests.spark.files import put_table
from tests.spark.native_reading import DDL

REASONS = {
    "upper(text)": "upper\\(text\\) is computed by Spark only",
    "big / 2": "computed by Spark only",
    "cast(big as string)": "cast .* from bigint",
    "cast(big as int)": "cast .* from bigint",
    "try_add(big, 1)": "computed by Spark only",
    "huge * huge": "computed by Spark only",
    "list = list": "comparison",
    "pair = pair": "comparison",
    "list[0]": "computed by Spark only",
    "map['a']": "computed by Spark only",
    "current_timestamp()": "the current time",
    "rand(1)": "computed by Spark only",
    "text collate UNICODE": "computed by Spark only",
    "interval 1 day + at": "computed by Spark only|type interval",
    "single in (cast(1 as float),2,3,4,5,6,7,8,9,10,11,12)": "comparison|computed",
    "hash(big)": "computed by Spark only",
}


@pytest.mark.parametrize("sql", REASONS)
def test_what_cannot_be_exact_has_a_reason(spark, tmp_path, sql):
    reason = native_input(spark.readStream.schema(DDL).parquet(str(tmp_path)).selectExpr(f"{sql} as c"))
    assert isinstance(reason, str) and re.search(REASONS[sql], reason), reason


def reading(**options):
    return lambda spark, folder: spark.readStream.schema("a long").options(**options).parquet(str(folder))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (lambda spark, _: spark.readStream.format("rate").load(), "rate"),
        (lambda spark, folder: spark.readStream.schema("a long").json(str(folder)), "format json"),
        (lambda spark, folder: reading()(spark, folder).union(reading()(spark, folder)), "union of several sources"),
        (lambda spark, folder: reading()(spark, folder).dropDuplicates(["a"]), "Deduplicate"),
        (lambda spark, folder: reading()(spark, folder).select("*", "_metadata.file_path"), "_metadata"),
        (lambda spark, folder: reading()(spark, folder).selectExpr("explode(array(a)) as b"), "Generate|computed by Spark"),
        (lambda spark, folder: reading()(spark, folder).mapInArrow(lambda rows: rows, "a long"), "MapInArrow"),
        (lambda spark, folder: spark.readStream.schema("a long, b variant").parquet(str(folder)), "variant"),
        (lambda spark, folder: spark.readStream.schema("a string collate UNICODE").parquet(str(folder)), "string"),
        (reading(ignoreCorruptFiles="true"), "ignorecorruptfiles"),
        (reading(basePath="/"), "basepath"),
        (reading(unheardOf="1"), "unheardof"),
    ],
)
def test_what_is_no_plain_parquet_has_a_reason(spark, tmp_path, rows, reason):
    text = native_input(rows(spark, tmp_path))
    assert isinstance(text, str) and re.search(reason, text), text


PARTITIONED = {
    "part double": "partitioned by part, of the type double",
    "part decimal(9,2)": "partitioned by part, of the type decimal",
}


@pytest.mark.parametrize("ddl", PARTITIONED)
def test_partitions_of_types_that_are_written_in_many_ways_have_a_reason(spark, tmp_path, ddl):
    spark.range(4).selectExpr("id", "id % 2 as part").write.partitionBy("part").parquet(str(tmp_path / "in"))
    assert PARTITIONED[ddl] in str(native_input(spark.readStream.schema(f"id long, {ddl}").parquet(str(tmp_path / "in"))))
    below = spark.readStream.schema("id long, part long").parquet(str(tmp_path / "i*"))
    assert "pattern" in str(native_input(below))


@pytest.mark.parametrize("path", ["s3a://bucket/in", "hdfs://host:9000/in", "abfss://c@a.dfs.core.windows.net/in"])
def test_object_stores_have_a_reason(path):
    with pytest.raises(OnlySpark, match=f"the folder {path} is not on a local or shared disk"):
        _base(path)
    assert _base("file:///data/in") == _base("/data/in/") == "/data/in"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.parquet.enableVectorizedReader", "false"),
        ("spark.sql.parquet.int96TimestampConversion", "true"),
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.parquet.fieldId.read.enabled", "true"),
    ],
)
def test_settings_that_change_what_is_read_have_a_reason(spark, tmp_path, name, value):
    with settings(spark, {name: value}):
        assert name in str(native_input(reading()(spark, tmp_path)))


# --- In a query

TIMES_S = ([5, 61, None], [10, 400], [None], [100, 100, 100], [3_600])


class Query:
    """A stream with a watermark, whose batches are read by Spark or natively."""

    def __init__(self, spark, folder: Path, native: bool, condition: str) -> None:
        self.spark, self.folder, self.native = spark, folder, native
        rows = spark.readStream.schema("n long, at timestamp").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        self.rows = rows.withWatermark("at", "10 seconds").where(condition).selectExpr("n + 1 as n", "at")
        self.input = native_input(self.rows)
        assert isinstance(self.input, NativeInput)
        self.position = SourcePosition()
        self.batches, self.watermarks_ms = [], []

    def run(self) -> list[dict]:
        writer = self.rows.writeStream.foreachBatch(self.on_batch).option(
            "checkpointLocation", str(self.folder / str(self.native))
        )
        query = writer.queryName("native" if self.native else "spark").start()
        try:
            query.processAllAvailable()
            return [dict(progress) for progress in query.recentProgress if "addBatch" in progress["durationMs"]]
        finally:
            query.stop()

    def on_batch(self, rows, batch_id: int) -> None:
        entry = batch_entry(self.folder / str(self.native), batch_id, self.position)
        self.watermarks_ms.append(entry.watermark_ms)
        read_rows = self.read(entry.position) if self.native else rows.collect()
        self.batches.append(sorted((row["n"], row["at"] and row["at"].timestamp()) for row in read_rows))
        self.position = entry.position

    def read(self, position: SourcePosition) -> list[dict]:
        files = self.input.files(position, self.position)
        assert not isinstance(files, str), files
        readers = [read(self.input.scan, range_) for range_ in file_ranges(files, 2)]
        rows = [row for reader in readers for table in reader for row in table.to_pylist()]
        (query,) = [query for query in self.spark.streams.active if query.name == "native"]
        for reader in readers:
            observe(query, reader.event_times, reader.rows)
        return rows


@pytest.mark.parametrize(
    ("condition", "skips"),
    [("n >= 0", False), ("n > 3 and at > timestamp'1970-01-01 00:00:07'", True), ("spark_partition_id() >= 0", False)],
)
def test_a_native_query_has_the_batches_watermarks_and_progress_of_spark(spark, tmp_path, condition, skips):
    number = 0
    for place, times in enumerate(TIMES_S):
        at = pa.array([None if each is None else each * 1_000_000 for each in times], pa.timestamp("us", "UTC"))
        put_table(tmp_path / "in", place, pa.table({"n": range(number, number + len(times)), "at": at}))
        number += len(times)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "in" / "_hidden.parquet")
    (tmp_path / "in" / "empty.parquet").write_bytes(b"")
    ours, theirs = (Query(spark, tmp_path, native, condition) for native in (True, False))
    progress, expected = ours.run(), theirs.run()
    assert ours.batches == theirs.batches and any(ours.batches)
    assert ours.watermarks_ms == theirs.watermarks_ms and max(ours.watermarks_ms) > 0
    assert [each["eventTime"] for each in progress] == [each["eventTime"] for each in expected]
    assert [each["sources"][0]["endOffset"] for each in progress] == [each["sources"][0]["endOffset"] for each in expected]
    rows = [[each["numInputRows"] for each in side] for side in (progress, expected)]
    # Spark does not count rows of row groups that it skips by their statistics.
    assert rows[0] == rows[1] if skips is False else all(map(operator.ge, *rows))
    assert sum(rows[0]) == number
    logs = [sorted(path.name for path in (tmp_path / side / "commits").glob("[0-9]*")) for side in ("True", "False")]
    assert logs[0] == logs[1]


def test_changed_and_missing_files_are_left_to_spark(spark, tmp_path):
    put_table(tmp_path / "in", 0, pa.table({"n": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))}))
    reasons = []

    class Changing(Query):
        def on_batch(self, rows, batch_id):
            position = batch_entry(self.folder / str(self.native), batch_id, self.position).position
            (file,) = (self.folder / "in").iterdir()
            file.touch()
            reasons.append(self.input.files(position, self.position))
            file.unlink()
            reasons.append(self.input.files(position, self.position))

    Changing(spark, tmp_path, False, "true").run()
    assert "was changed since" in reasons[0] and "cannot be read" in reasons[1]
