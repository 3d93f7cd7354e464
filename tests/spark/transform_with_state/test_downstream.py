"""Steps downstream of a processor: the same program on Spark and on the drop-in gives the same, batch by batch."""

import datetime
import json
import random
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

import floodplain as fp
from tests.short_form import some
from tests.spark.transform_with_state.downstream_programs import ROWS, Counted, Echo, Frames, Totals
from tests.spark.transform_with_state.flows import NO_DATA, ROCKS, SIDES, conf

pytestmark = pytest.mark.spark

SETTINGS = {**ROCKS, "spark.sql.shuffle.partitions": 1}
AVRO = {"spark.sql.streaming.stateStore.encodingFormat": "avro"}
TOTALS = "what string, watermark long"
START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Side:
    """The call of ``transformWithState`` of one side."""

    def __init__(self, which, spark):
        self.ours = which == "ours"
        self.table = spark.createDataFrame([("k0", "zero"), ("k1", "one"), ("k1", "uno")], "k string, name string")
        self.initial = spark.createDataFrame([(n, 100 * n) for n in range(0, 60, 3)], "n long, start long")

    def rows(self, grouped, *arguments):
        return fp.transform_with_state(grouped, *arguments) if self.ours else grouped.transformWithState(*arguments)

    def pandas(self, grouped, *arguments):
        return (
            fp.transform_with_state_in_pandas(grouped, *arguments)
            if self.ours
            else grouped.transformWithStateInPandas(*arguments)
        )

    def echo(self, rows, time_mode="eventTime", event_time="at"):
        timed = time_mode == "eventTime"
        return self.rows(rows.groupBy("k"), Echo(timed=timed), ROWS, "append", time_mode, None, event_time)


def steps(seed, count=3, late=True):
    """Rows of each step. Event time moves on, and stands still at times; some rows are late."""
    chance, at, made = random.Random(seed), 0, []
    for _ in range(count):
        made.append(
            [
                {
                    "k": f"k{chance.randrange(4)}",
                    "n": chance.randrange(10),
                    "at": (
                        START + datetime.timedelta(seconds=max(at - chance.choice([0, 0, 1, 12] if late else [0]), 0))
                    ).isoformat(),
                }
                for _ in range(chance.randrange(1, 6))
            ]
        )
        at += chance.choice([0, 3, 8, 20] if count > 3 else [8, 20])
    return made


def run(spark, folder, which, program, given, mode="append", restart_after=None, settings=None):
    """What came out in each step, as a multiset; and the query."""
    (folder / which / "in").mkdir(parents=True)
    made, found, query = [], [], None
    with conf(spark, {**SETTINGS, **(settings or {})}):

        def start():
            rows = spark.readStream.schema(ROWS).json(str(folder / which / "in")).withWatermark("at", "2 seconds")
            frame = program(Side(which, spark), rows)
            writer = frame.writeStream.foreachBatch(lambda rows, _: made.extend(map(tuple, rows.collect())))
            return writer.outputMode(mode).option("checkpointLocation", str(folder / which / "state")).start()

        try:
            for number, rows in enumerate(given):
                (folder / "tmp").write_text("\n".join(map(json.dumps, rows)))
                (folder / "tmp").rename(folder / which / "in" / f"{number}.json")
                query = query or start()
                query.processAllAvailable()
                found.append(Counter(made))
                made.clear()
                if number == restart_after:
                    query.stop()
                    query = None
        finally:
            if query is not None:
                query.stop()
    return found, query


def compare(spark, folder, program, given, **options):
    theirs, _ = run(spark, folder, "spark", program, given, **options)
    ours, query = run(spark, folder, "ours", program, given, **options)
    assert ours == theirs
    assert sum(map(Counter.total, theirs)) > 2
    return query


def windows():
    return F.window("at", "10 seconds")


PROGRAMS = {
    "a processor": lambda side, rows: side.rows(
        side.echo(rows).where("n > 0").groupBy("k"), Totals(), TOTALS, "append", "eventTime"
    ),
    "a processor of frames, and another": lambda side, rows: side.rows(
        side.pandas(side.echo(rows).groupBy("k"), Frames(), "k string, n long", "append", "none").groupBy("n"),
        Counted(),
        "k string, n long",
        "append",
        "none",
        side.initial.groupBy("n"),
    ),
    "windows": lambda side, rows: (
        side.echo(rows)
        .groupBy(windows(), "k")
        .agg(
            F.count("*"),
            (F.sum(F.col("n") * 2) + F.count("n")).alias("s"),
            F.avg("n"),
            F.min("n"),
            F.max("k"),
            F.max_by("n", "n"),
            F.sum(F.col("n").cast("decimal(8,2)")).alias("d"),
            F.expr("count(1) filter (where n > 3)"),
            F.upper("k").alias("upper"),
        )
    ),
    "a table, sliding windows, and a processor": lambda side, rows: side.rows(
        side.echo(rows)
        .join(side.table, "k", "left")
        .groupBy("name", F.window("at", "10 seconds", "5 seconds"))
        .count()
        .na.fill("none")
        .groupBy("name"),
        Counted(),
        "k string, n long",
        "append",
        "eventTime",
    ),
    "the event time as a key": lambda side, rows: side.echo(rows).groupBy("at").sum("n"),
    "distinct": lambda side, rows: side.echo(rows).select("k", "at").distinct(),
    "dropDuplicates": lambda side, rows: side.echo(rows).dropDuplicates(["k"]).select("k"),
    "dropDuplicatesWithinWatermark": lambda side, rows: side.echo(rows).dropDuplicatesWithinWatermark(["k"]).select("k"),
    "stateless steps": lambda side, rows: (
        side.echo(rows)
        .join(side.table, "k", "left_semi")
        .alias("a")
        .select("a.*", F.explode(F.array("n", F.lit(7))).alias("m"))
        .repartition(1)
        .mapInPandas(lambda frames: (frame[["k", "m"]] for frame in frames), "k string, m long")
        .withColumn("again", F.udf(lambda m: m + 1, "long")("m"))
    ),
}


@pytest.mark.parametrize("program", some(PROGRAMS, "a processor", "windows"))
def test_what_comes_downstream_of_a_processor(spark, tmp_path, program):
    compare(spark, tmp_path, PROGRAMS[program], steps(1), restart_after=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_comes_downstream_of_a_processor_for_long(spark, tmp_path, program, seed):
    compare(spark, tmp_path, PROGRAMS[program], steps(seed, 12), restart_after=seed - 8)


UPDATES = {
    "keys": lambda side, rows: side.echo(rows).groupBy("k").agg(F.count("*").alias("n"), F.sum("n"), F.max("at")),
    "no keys": lambda side, rows: side.echo(rows, "none", "").where("n > 5").groupBy().agg(F.count("*"), F.avg("n") + 1),
    "windows": lambda side, rows: side.echo(rows).groupBy(windows(), "k").count().where("count > 1"),
    "windows of no event time": lambda side, rows: side.echo(rows, "none", "").groupBy(windows().alias("w")).sum("n"),
}


@pytest.mark.soak
@pytest.mark.parametrize("program", UPDATES)
def test_aggregates_in_update_mode(spark, tmp_path, program):
    settings = {NO_DATA: False}  # without keys Spark repeats its result whenever it runs a batch
    compare(spark, tmp_path, UPDATES[program], steps(2), mode="update", restart_after=1, settings=settings)


CHAIN = {
    "processors": lambda side, rows: side.rows(side.echo(rows).groupBy("k"), Totals(timed=False), TOTALS, "append", "none"),
    "windows, without duplicates": lambda side, rows: (
        side.echo(rows).groupBy(windows(), "k").count().dropDuplicates(["k", "window"])
    ),
    "no duplicates within the watermark": lambda side, rows: side.echo(rows).dropDuplicatesWithinWatermark(["k"]),
}
NUMBERS = (
    "operatorName",
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "numRowsDroppedByWatermark",
    "numShufflePartitions",
)


@pytest.mark.parametrize("chain", some(CHAIN, "processors"))
def test_progress_and_state_of_a_chain(spark, tmp_path, chain):
    told = {}
    for which in SIDES:
        _, query = run(spark, tmp_path, which, CHAIN[chain], steps(3), settings={NO_DATA: False})
        told[which] = [
            [{name: state[name] for name in NUMBERS} for state in report.stateOperators]
            for report in query.recentProgress
            if report.numInputRows
        ]
        place, prefix = str(tmp_path / which / "state"), "floodplain-" if which == "ours" else ""
        found = spark.read.format(f"{prefix}state-metadata").load(place).select("operatorId", "operatorName").collect()
        told[which].append(sorted(map(tuple, found)))
        if chain == "processors":
            for number, names in enumerate((("count", "last"), ("count",))):
                for name in names:
                    kept = (
                        spark.read.format(f"{prefix}statestore")
                        .option("operatorId", number)
                        .option("stateVarName", name)
                        .load(place)
                    )
                    told[which].append(sorted(map(str, kept.drop("partition_id").collect())))
    assert told["ours"] == told["spark"]


def changing(*declared):
    """A second processor that declares each of these in turn: a key, and the schema of its state."""
    left = iter(declared)

    def program(side, rows):
        key, schema = next(left)
        echo = side.echo(rows, "none", "").withColumnRenamed("k", key)
        return side.rows(echo.groupBy(key), Counted(schema), "k string, n long", "append", "none")

    return program


@pytest.mark.parametrize("after", [("key", "m long"), pytest.param(("k", "n long"), marks=pytest.mark.soak)])
def test_a_processor_downstream_that_has_changed(spark, tmp_path, after):
    theirs, ours = (
        run(spark, tmp_path, which, changing(("k", "n int"), after), steps(4), restart_after=1, settings=AVRO)[0]
        for which in ("spark", "ours")
    )
    assert ours == theirs
    assert sum(map(Counter.total, theirs)) > 2


def test_a_processor_downstream_whose_change_spark_refuses_is_refused(spark, tmp_path):
    with pytest.raises(StreamingQueryException, match="STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"):
        run(spark, tmp_path, "ours", changing(("k", "n int"), ("k", "n string")), steps(4), restart_after=1, settings=AVRO)
