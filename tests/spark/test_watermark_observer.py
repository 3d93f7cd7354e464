"""Watermarks of our own on a real Spark: measured in the JVM while the rows are read, the same as from Arrow."""

from threading import Thread

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.eventtime.measure import observe, timed
from floodplain.eventtime.watermarks import Slack, WatermarkRule
from floodplain.settings import StoreSettings
from floodplain.spark.runtime import stream
from floodplain.spark.watermark_observer import observed
from floodplain.state.descriptors import EVENT_TIME
from tests.processes import LastSeen, Trail
from tests.spark.files import put_table

pytestmark = pytest.mark.spark
STAMP = pa.timestamp("us", "UTC")
ONCE = {"availableNow": True}


def put(folder, number, user, *times_ms):
    rows = {"user": [user] * len(times_ms), "at": pa.array([at * 1000 for at in times_ms], STAMP)}
    put_table(folder, number, pa.table(rows))


def test_two_sources_one_of_them_idle(spark, tmp_path):
    put(tmp_path / "fast", 0, "ada", 5000)
    put(tmp_path / "fast", 1, "bob", 9000)
    put(tmp_path / "slow", 0, "cy", 3000, 1000)

    def run(**options):
        sources = {
            name: spark.readStream.schema("user string, at timestamp")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / name))
            for name in ("fast", "slow")
        }
        seen = stream(**sources).watermark("at", "0 seconds", **options).key_by("user").process(LastSeen())
        query = seen.write("memory").start(state=tmp_path / "state", slots=2, trigger=ONCE, settings=StoreSettings(lease_ms=1500))
        query.await_termination()
        if query.exception is not None:
            raise query.exception
        query.stop()
        return query

    query = run(sources={"slow": "500 ms"})
    assert query.manifest.watermarks[EVENT_TIME] == 2500 and len(query.sink.table()) == 0, "slow holds fast back"
    put(tmp_path / "fast", 2, "dee", 10_000, 2000)
    query = run(sources={"slow": "500 ms"}, idle="1 ms")
    assert sum(progress.late for progress in query.progress) == 1
    assert query.manifest.watermarks[EVENT_TIME] == 10_000
    assert "slow: 500 ms behind · idle after 1 ms" in query.explain()
    assert "each epoch: 2 slots" in query.explain() and query.explain("svg").startswith("<svg")
    told = {(row["user"], row["n"], row["at"]) for row in query.sink.table().to_pylist()}
    assert told == {("ada", 1, 6000), ("cy", 2, 4000), ("bob", 1, 10_000)}, "dee waits for 11000"


def test_the_jvm_sees_what_arrow_sees(spark):
    rows = pa.table(
        {
            "ts": pa.array([1_000_999, 3_000_000, 2_000_000, None, 9_000_000, 500], STAMP),
            "source": ["a", "a", "a", "it's", "a", "it's"],
            "beat": pa.array([None, None, None, None, 2500, None], pa.int64()),
            "mark": pa.array([{"at": at} for at in (None, 700_000, None, None, None, None)], pa.struct({"at": STAMP})),
        }
    )
    frame = spark.createDataFrame(rows)
    slacks = [{"a": Slack(0, 1), "it's": Slack(0)}, {"a": Slack(), "it's": Slack(rows=5)}]
    rules = [WatermarkRule("ts", some, heartbeat=("beat",), punctuation=("mark", "at")) for some in slacks]
    for rule in rules:
        kept, seen = observed(frame, rule, 0)
        halves = [kept.where(f"source = '{name}'") for name in ("a", "it\\'s")]
        assert halves[0].unionByName(halves[1]).count() == timed(rows, rule, 0).num_rows, "read twice in one job, as joins do"
        assert seen() == observe(rows, rule, "source")
    kept, seen = observed(frame.select("source"), WatermarkRule("came", {}, ingestion=True), 1_234)
    assert [row.ms for row in kept.selectExpr("unix_millis(came) as ms").collect()] == [1234] * 6 and seen() == {}


def test_rows_that_no_job_reads_are_measured_all_the_same(spark):
    rows = pa.table({"ts": pa.array([1_000_000, 3_000_000], STAMP), "beat": pa.array([None, 2500], pa.int64())})
    rule = WatermarkRule("ts", {"": Slack(0, 1)}, heartbeat=("beat",))
    jobs = {
        "none": lambda kept: None,
        "of other rows": lambda kept: spark.range(3).count(),
        "whose plan leaves them out": lambda kept: kept.where("false").count(),
    }
    told = {}

    def measure():
        for which, job in jobs.items():
            kept, seen = observed(spark.createDataFrame(rows), rule, 0)
            job(kept)
            told[which] = seen()

    asking = Thread(target=measure, daemon=True)
    asking.start()
    asking.join(60)
    assert told == dict.fromkeys(jobs, observe(rows, rule, "source"))


def instead(rows):
    return rows.sparkSession.createDataFrame([("eve",)], "user string").withColumn("at", F.timestamp_millis(F.lit(0)))


def test_a_step_that_passes_its_input_over_does_not_stop_time(spark, tmp_path):
    put(tmp_path / "in", 0, "ada", 5000)
    rows = spark.readStream.schema("user string, at timestamp").parquet(str(tmp_path / "in"))
    seen = stream(rows).watermark("at", "1 second", idle="1 hour").transform(instead).key_by("user").process(LastSeen())
    query = seen.write("memory").start(state=tmp_path / "state", slots=1, trigger=ONCE, settings=StoreSettings(lease_ms=1500))
    assert query.await_termination(60), "the epoch did not end"
    assert query.exception is None
    query.stop()
    assert query.manifest.watermarks[EVENT_TIME] == 4000


def test_rows_in_order_and_the_late_ones_with_their_reason(spark, tmp_path):
    def run():
        rows = spark.readStream.schema("user string, at timestamp").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        trail = stream(rows).watermark("at", slack_rows=2).key_by("user").process(Trail(), in_order=True)
        output = trail.write("memory").also(trail.late().write("memory", name="late"))
        query = output.start(state=tmp_path / "state", slots=2, trigger=ONCE, settings=StoreSettings(lease_ms=1500))
        query.await_termination()
        if query.exception is not None:
            raise query.exception
        query.stop()
        return query

    for number, times in enumerate([(5000, 2000, 9000), (4000, 7000, 3000)]):
        put(tmp_path / "in", number, "ada", *times)
    query = run()
    told = sorted((row["number"], int(row["at"].timestamp() * 1000)) for row in query.sink.table().to_pylist())
    assert told == [(0, 2000), (1, 3000), (2, 4000), (3, 5000)], "7000 and 9000 are the two rows of slack"
    assert query.manifest.watermarks[EVENT_TIME] == 5000
    put(tmp_path / "in", 2, "ada", 4500)
    (late,) = run().sinks["late"].table().to_pylist()
    assert late["user"] == "ada"
    assert late["reason"] == "late for trail by 500 ms: the watermark was 1970-01-01T00:00:05.000Z"
