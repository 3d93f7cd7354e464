"""Workers read the input themselves: the same results, times and progress as with Spark's own reader."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.plan.nodes import Input
from floodplain.settings import Workers
from floodplain.spark.workers_engine import _way
from tests.spark.files import put_table

ROWS = "user string, at timestamp, n int"
WAYS = {"tasks": "tasks", "workers": Workers(count=2)}


class Sums(fp.KeyedProcess):
    """Sums per user, and a timer a minute after the newest row."""

    total = fp.Value("long", default=0)
    output = "user string, total long, fired boolean"

    def process(self, key, rows, ctx):
        for row in rows:
            self.total.set(self.total.get() + row.n)
            ctx.timer(ctx.event_time + 60_000)
        yield key.user, self.total.get(), False

    def on_timer(self, key, at, ctx):
        yield key.user, int(at.timestamp() * 1000) if hasattr(at, "timestamp") else at, True


def rows(numbers, minute=0):
    at = [1_600_000_000_000_000 + (minute * 60 + n) * 1_000_000 for n in numbers]
    users, amounts = [f"u{n % 5}" for n in numbers], [n % 90 for n in numbers]
    return pa.table({"user": users, "at": pa.array(at, pa.timestamp("us", "UTC")), "n": pa.array(amounts, pa.int32())})


def of_another_calendar(table):
    """As Spark 2 would have written it, with a first row of the year 1800, which Spark moves to today's calendar."""
    at = pa.chunked_array([pa.array([-5_364_662_400_000_000], table.field("at").type), table.column("at").combine_chunks()[1:]])
    return table.set_column(1, "at", at).replace_schema_metadata({"org.apache.spark.version": "2.4.5"})


class Counts(fp.KeyedProcess):
    n = fp.Value("long", default=0)
    output = "user string, n long"

    def process(self, key, rows, ctx):
        self.n.set(self.n.get() + len(list(rows)))
        yield key.user, self.n.get()


def query_of(spark, folder, engine, where="n < 70"):
    stream = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).parquet(str(folder / "in")).where(where)
    flow = fp.stream(stream).watermark("at", "10 seconds").key_by("user").process(Sums(), name="sums")
    return flow.write("memory").start(state=str(folder / engine), slots=3, engine=WAYS[engine])


def way_of(query):
    return query._driver._engine.input_ways()


def told(query):
    """Timers that are due fire in the next epoch, or in one of their own if the heartbeat comes first."""
    return [(each.batch_id, each.rows, each.watermark_ms) for each in query.progress if each.has_input]


def test_results_watermarks_and_progress_are_those_of_tasks(spark, tmp_path):
    for number in range(4):
        put_table(tmp_path / "in", number, rows(range(number * 100, number * 100 + 100), number))
    found = {}
    for engine in WAYS:
        query = query_of(spark, tmp_path, engine)
        query.process_all_available()
        reports = [(each.batchId, each.numInputRows) for each in query._query.recentProgress if each.numInputRows]
        found[engine] = told(query), reports, sorted(map(tuple, (row.values() for row in query.sink.table().to_pylist())))
        ways = way_of(query)
        query.stop()
    assert ways[""].startswith("native: workers read the files")
    assert found["workers"] == found["tasks"]


def test_a_file_that_only_spark_reads_comes_over_the_bridge(spark, tmp_path):
    put_table(tmp_path / "in", 0, of_another_calendar(rows(range(50))))
    put_table(tmp_path / "in", 1, rows(range(50, 90)))
    query = query_of(spark, tmp_path, "workers", "n >= 0")
    query.process_all_available()
    assert [(each.rows, each.tries) for each in query.progress if each.rows] == [(50, 2), (40, 1)]
    query.stop()
    totals = {row["user"]: row["total"] for row in fp.open(tmp_path / "workers").snapshot().table("sums").to_arrow().to_pylist()}
    assert totals == {f"u{user}": sum(n for n in range(90) if n % 5 == user) for user in range(5)}


class Placed(fp.KeyedProcess):
    """Each row with the place in which it came to its key."""

    n = fp.Value("long", default=0)
    output = "day date, hour int, name string, user string, place long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.n.set(self.n.get() + 1)
            yield key.day, key.hour, row.name, row.user, self.n.get()


FOLDERS = [
    "day=2024-01-01/hour=7/name=a%2Fb %25",
    "day=2024-01-01/hour=23/name=__HIVE_DEFAULT_PARTITION__",
    "day=2024-02-29/hour=-1/name=ä=ö",
    "day=__HIVE_DEFAULT_PARTITION__/hour=0/name=007",
    "day=2024-02-29/hour=0/name=100%",
]


@pytest.mark.parametrize("where", ["true", "hour <> 7 and (day > date'2024-01-01' or name is null)", "day is null"])
def test_columns_in_the_names_of_folders_are_read_as_by_spark(spark, tmp_path, where):
    for number, folder in enumerate(FOLDERS):
        put_table(tmp_path / "in" / folder, number, rows(range(number * 10, number * 10 + 10)))
    ddl, came = f"{ROWS}, day date, hour int, name string", {}
    for engine in WAYS:
        stream = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in")).where(where)
        flow = fp.stream(stream).key_by("day", "hour").process(Placed(), name="placed").write("memory")
        query = flow.start(state=str(tmp_path / engine), slots=3, engine=WAYS[engine])
        query.process_all_available()
        came[engine] = sorted(map(repr, query.sink.table().to_pylist())), [each.rows for each in query.progress]
        ways = way_of(query)
        query.stop()
    assert ways[""].startswith("native: workers read the files")
    assert came["workers"] == came["tasks"] and came["tasks"][0]


def test_folders_and_files_that_only_spark_reads_come_over_the_bridge(spark, tmp_path):
    put_table(tmp_path / "in" / "n2=7", 0, rows(range(10)))
    put_table(tmp_path / "in" / "n2=07", 1, rows(range(10)))
    put_table(tmp_path / "in" / "n2=8", 2, rows(range(10)).append_column("N2", pa.array([1] * 10)))
    stream = spark.readStream.schema(f"{ROWS}, n2 int").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    flow = fp.stream(stream.select("user", "n2")).key_by("n2").agg(n=fp.count()).write("memory")
    query = flow.start(state=str(tmp_path / "state"), slots=2, engine=Workers(count=2))
    query.process_all_available()
    assert way_of(query)[""].startswith("native")
    assert [(each.rows, each.tries) for each in query.progress] == [(10, 1), (10, 1), (10, 2)]
    query.stop()
    totals = fp.open(tmp_path / "state").snapshot().table("aggregate").to_arrow().to_pylist()
    assert sorted((row["n2"], row["n"]) for row in totals) == [(7, 20), (8, 10)]


def test_a_file_that_changed_since_it_was_listed_is_refused(spark, tmp_path):
    put_table(tmp_path / "in", 0, rows(range(50)))
    query = query_of(spark, tmp_path, "workers")
    query.process_all_available()
    engine = query._driver._engine
    inputs = engine.inputs

    def changed(*args):
        given = inputs(*args)
        pq.write_table(rows(range(7)), tmp_path / "in" / "0001.parquet")
        return given

    engine.inputs = changed
    put_table(tmp_path / "in", 1, rows(range(50, 90)))
    with pytest.raises(BadInput, match=r"0001\.parquet was listed as input of this batch"):
        query.process_all_available()
    assert fp.open(tmp_path / "workers").snapshot().epoch == 1


def test_all_cores_may_be_workers_where_no_job_of_spark_runs(spark, tmp_path):
    put_table(tmp_path / "in", 0, rows(range(50)))
    stream = spark.readStream.schema(ROWS).parquet(str(tmp_path / "in"))

    def start(stream, name):
        flow = fp.stream(stream).key_by("user").process(Counts(), name="counts")
        return flow.write("memory").start(state=str(tmp_path / name), slots=4, engine=Workers(count=4))

    query = start(stream.select("user", "n"), "native")
    query.process_all_available()
    assert [each.rows for each in query.progress] == [50]
    query.stop()
    with pytest.raises(
        BadInput, match="4 workers needs 5 free task slots, one of them for the jobs that bring rows; this Spark has 4"
    ):
        start(stream.where("n >= rand() - 1"), "bridged")


class Same(fp.KeyedProcess):
    output = "user string"

    def process(self, key, rows, ctx):
        yield (key.user,)


WAYS_OF_ROWS = {
    "operators only": (lambda stream: stream.key_by("user").process(Same()).write("memory"), "native: .* themselves$"),
    "a step of Spark first": (
        lambda stream: stream.transform(lambda rows: rows).key_by("user").process(Same()).write("memory"),
        "bridge: .*; its rows go through transform first$",
    ),
    "both": (
        lambda stream: stream.key_by("user").process(Same()).write("memory").also(stream.write("memory", name="all")),
        "native: .*; Spark reads them again for a sink$",
    ),
}


@pytest.mark.parametrize("case", WAYS_OF_ROWS)
def test_explain_says_which_way_rows_take_that_workers_could_read(case):
    build, told = WAYS_OF_ROWS[case]
    plan = fp.PipelineKit(build, rows=ROWS, transforms=[lambda rows: rows] if "step" in case else [])._plan
    (front,) = [node for node in plan.nodes if isinstance(node, Input)]
    assert re.match(told, _way(plan, front))
