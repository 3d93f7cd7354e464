"""Windows and aggregates on a real Spark, with expressions, against DuckDB on the same files."""

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import ArithmeticException

import floodplain as fp
from floodplain.operators.aggregates.aggregation import Aggregation
from floodplain.operators.aggregates.combiner import AggregateCombiner
from floodplain.spark.engine import SparkEngine
from floodplain.spark.session_conf import settings
from tests.operators.kernel.test_one_row import BYS, VALUES, alike, same
from tests.spark.files import put_table

pytestmark = pytest.mark.spark
FAST = fp.StoreSettings(lease_ms=1500)


def write_bids(folder: Path) -> None:
    """Three files; the last row of all lets every window before it end."""
    for number in range(3):
        rng = np.random.default_rng(number)
        micros = (rng.integers(0, 60_000, 2000) + number * 1_000) * 1_000
        channels = np.array(["apple", "google", "x"])[rng.integers(0, 3, 2000)]
        auction, price = rng.integers(0, 20, 2000), rng.integers(1, 1000, 2000)
        if number == 2:
            micros, channels = np.append(micros, 10**10), np.append(channels, "end")
            auction, price = np.append(auction, 10**6), np.append(price, 1)
        rows = {"auction": auction, "price": price, "channel": channels, "ts": pa.array(micros, pa.timestamp("us", "UTC"))}
        put_table(folder, number, pa.table(rows))


def rows_in(folder: Path) -> list[tuple]:
    found = duckdb.sql(f"select * from '{folder}/*.parquet' order by all").fetchall()
    return [tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in found]


def test_windows_of_expressions_equal_duckdb(spark, tmp_path):
    write_bids(tmp_path / "in")
    schema = "auction long, price long, channel string, ts timestamp"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    bids = fp.stream(source).watermark("ts", "1 hour")
    aggregates = {
        "n": fp.count(),
        "euros": fp.sum("price * 2"),
        "mean": fp.avg("price", where="channel = 'apple'"),
        "best": fp.max_by("channel", "price"),
    }
    options = {"n": fp.count(), "high": fp.max("price")}
    tumbling = bids.key_by("auction").window(fp.tumbling("10 seconds")).agg(partial=True, name="tumbling", **aggregates)
    every = bids.window(fp.tumbling("10 seconds")).agg(partial=True, name="every", **options)
    sliding = bids.key_by("auction").window(fp.sliding("10 seconds", "5 seconds")).agg(partial=False, name="sliding", **options)
    sessions = bids.key_by("channel").window(fp.session("20 milliseconds")).agg(name="sessions", **options)
    outs = {"tumbling": tumbling, "every": every, "sliding": sliding, "sessions": sessions}
    sinks = [steps.write("parquet", path=str(tmp_path / name), name=name) for name, steps in outs.items()]
    query = (
        sinks[0]
        .also(sinks[1])
        .also(sinks[2])
        .also(sinks[3])
        .start(state=tmp_path / "state", slots=2, trigger={"availableNow": True}, settings=FAST)
    )
    query.await_termination()
    assert query.exception is None
    assert sum(progress.rows for progress in query.progress) == 4 * 6001
    assert sum(progress.late for progress in query.progress) == 0
    query.stop()
    bids_in = f"(select * from '{tmp_path}/in/*.parquet' where channel != 'end')"
    window = "time_bucket(interval '10 seconds', ts) as s, time_bucket(interval '10 seconds', ts) + interval '10 seconds' as e"
    assert rows_in(tmp_path / "tumbling") == as_rows(
        f"""select auction, {window}, count(*), (sum(price) * 2)::bigint, avg(price) filter (channel = 'apple'),
        list(channel order by price desc, channel desc)[1] from {bids_in} group by all order by all"""
    )
    assert rows_in(tmp_path / "every") == as_rows(
        f"select {window}, count(*), max(price) from {bids_in} group by all order by all"
    )
    assert rows_in(tmp_path / "sliding") == as_rows(
        f"""select auction, s, s + interval '10 seconds', count(*), max(price) from
        (select *, unnest([time_bucket(interval '5 seconds', ts), time_bucket(interval '5 seconds', ts) - interval '5 seconds']) s
        from {bids_in}) group by all order by all"""
    )
    assert rows_in(tmp_path / "sessions") == as_rows(
        f"""select channel, min(ts), max(ts) + interval '20 milliseconds', count(*), max(price) from
        (select *, sum(first) over (partition by channel order by ts) as session from
        (select *, (ts - lag(ts) over (partition by channel order by ts) > interval '20 milliseconds')::int as first
        from {bids_in})) group by channel, coalesce(session, 0) order by all"""
    )


@pytest.mark.both_engines
def test_late_rows_of_windows_come_out_whole(spark, tmp_path):
    for number, seconds in enumerate((50, 60, 7)):
        rows = {"price": [number], "channel": ["apple"], "ts": pa.array([seconds * 10**6], pa.timestamp("us", "UTC"))}
        put_table(tmp_path / "in", number, pa.table(rows))
    source = spark.readStream.schema("price long, channel string, ts timestamp").option("maxFilesPerTrigger", 1)
    bids = fp.stream(source.parquet(str(tmp_path / "in"))).watermark("ts", "0 seconds").with_column("two", "2")
    counts = bids.key_by(first="left(channel, 1)").window(fp.tumbling("10 seconds")).agg(n=fp.count(), high=fp.max("price * 2"))
    output = counts.write("memory").also(counts.late().write("memory", name="late"))
    query = output.start(state=tmp_path / "state", slots=2, trigger={"availableNow": True}, settings=FAST)
    query.await_termination()
    assert query.exception is None
    query.stop()
    (late,) = query.sinks["late"].table().to_pylist()
    assert late.pop("ts").timestamp() == 7
    # Between the epochs of the rows one may come that has timers only; then the watermark is further.
    waited = {"00:00:50": 43000, "00:01:00": 53000}
    assert late.pop("reason") in [
        f"late for windows by {by} ms: the watermark was 1970-01-01T{at}.000Z" for at, by in waited.items()
    ]
    assert late == {"price": 2, "channel": "apple", "two": 2, "first": "a"}


def as_rows(sql: str) -> list[tuple]:
    return [tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in duckdb.sql(sql).fetchall()]


def test_rows_put_together_by_the_tasks_that_read_them_give_the_same(spark, tmp_path):
    write_bids(tmp_path / "in")
    source = spark.readStream.schema("auction long, price long, channel string, ts timestamp").option("maxFilesPerTrigger", 1)
    bids = fp.stream(source.parquet(str(tmp_path / "in"))).watermark("ts", "1 hour").key_by("channel")
    aggregates = {
        "auctions": fp.count_distinct("auction", where="price > 500"),
        "about": fp.approx_count_distinct("auction"),
        "median": fp.approx_quantile("price", 0.5),
        "best": fp.top_k("auction", 3, by="price"),
        "cheap": fp.collect("price", where="price < 5"),
        "last": fp.max("channel"),
    }
    windows = {
        name: bids.window(fp.tumbling("10 seconds")).agg(partial=name == "together", name=name, **aggregates)
        for name in ("together", "apart")
    }
    sinks = [steps.write("memory", name=f"{name}_rows") for name, steps in windows.items()]
    query = sinks[0].also(sinks[1]).start(state=tmp_path / "state", slots=2, trigger={"availableNow": True}, settings=FAST)
    query.await_termination()
    assert query.exception is None
    assert sum(progress.rows for progress in query.progress) == 2 * 6001
    query.stop()
    together, apart = (
        query.sinks[f"{name}_rows"].table().sort_by([("channel", "ascending"), ("window_start", "ascending")]).to_pylist()
        for name in windows
    )
    assert together == apart and len(together) == 3 * 7


def test_spark_finds_the_best_rows_that_python_finds(spark):
    """By columns and of values of many types, with nulls, NaN and rows that are alike."""
    rows = alike(21, 3000).drop_columns(["n"])
    named = {}
    for number, value in enumerate(VALUES * 4):
        make, by = (fp.max_by, fp.min_by)[number % 2], BYS[number % 3]
        named[f"x{number}"] = make(value, by, where=("w", None)[number // 6 % 2])
    aggregation = Aggregation(named).bind(rows.schema, None)
    assert len(aggregation.parts) == 12
    combiner = AggregateCombiner(aggregation, ("g",), None, None)
    engine = SparkEngine(spark, 16)
    by_spark = engine.collect(engine.combined(spark.createDataFrame(rows).repartition(3), combiner, 1)).sort_by("g")
    here = combiner(rows).sort_by("g").select(by_spark.column_names)
    assert by_spark.schema.names == combiner.schema(rows.schema).names and len(here) == 9
    assert by_spark.schema.types == here.schema.types
    for name in here.column_names:
        assert same(by_spark.column(name).to_pylist(), here.column(name).to_pylist()), name


def test_rows_keyed_by_their_time_are_put_together(spark, tmp_path):
    """The time is a key then, and is in the combined rows once."""
    rows = spark.sql("select timestamp_millis(id % 3 * 4000) as ts, id from range(12)")
    keyed = fp.stream(rows).watermark("ts", "0 seconds").key_by("ts")
    windows = keyed.window(fp.tumbling("10 seconds")).agg(n=fp.count(), high=fp.max("id"), partial=True)
    every = keyed.agg(n=fp.count(), ids=fp.sum("id"), partial=True).write("memory", name="every")
    query = windows.write("memory").also(every).start(state=tmp_path / "state", slots=2)
    found = {
        name: sorted((row["ts"].second, *list(row.values())[skipped:]) for row in query.sinks[name].table().to_pylist())
        for name, skipped in (("output", 3), ("every", 1))
    }
    assert found == {"output": [(0, 4, 9), (4, 4, 10), (8, 4, 11)], "every": [(0, 4, 18), (4, 4, 22), (8, 4, 26)]}


def test_a_sum_that_spark_makes_is_not_beyond_a_long_either(spark, tmp_path, engine):
    """Also where the user has told Spark to begin anew there. Workers make their sums themselves."""
    error = ArithmeticException if engine == "tasks" else fp.UserError
    with settings(spark, {"spark.sql.ansi.enabled": "false"}):
        rows = spark.sql("select id % 2 as k, 4611686018427387904L as v from range(4)")
        totals = fp.stream(rows).key_by("k").agg(total=fp.sum("v"), partial=True).write("memory")
        with pytest.raises(error, match="overflow"):
            totals.start(state=tmp_path / "state", slots=1)


def test_the_global_window_needs_an_end_or_a_trigger(spark, tmp_path):
    endless = fp.stream(spark.readStream.format("rate").load()).window(fp.global_window()).agg(n=fp.count()).write("memory")
    with pytest.raises(fp.BadInput, match="operator windows: the global window of a stream never ends"):
        endless.start(state=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    counts = fp.stream(spark.range(5)).window(fp.global_window()).agg(n=fp.count()).write("memory")
    assert counts.start(state=tmp_path / "state", slots=1).sink.table().column("n").to_pylist() == [5]


def test_an_aggregate_of_a_users_own_goes_to_the_workers(spark, tmp_path):
    """Also one that no module has, as in a notebook; with and without pre-aggregation before the shuffle."""

    class Spread(fp.Aggregate):
        def __init__(self, column, *, factor):
            super().__init__((column,))
            self.factor = factor

        def output(self, types):
            return types[0]

        def partial(self, types):
            return types[0], types[0]

        def of(self, columns, groups):
            return fp.min("x").of(columns, groups) + fp.max("x").of(columns, groups)

        def combine(self, partials, groups):
            return fp.min("x").of(partials[:1], groups) + fp.max("x").of(partials[1:], groups)

        def result(self, partials):
            return pc.multiply(pc.subtract(partials[1], partials[0]), self.factor)

    keyed = fp.stream(spark.sql("select id % 3 as k, id * id as v from range(30)").repartition(2)).key_by("k")
    sinks = [
        keyed.agg(name=f"by_{name}", spread=Spread("v + 1", factor=2), partial=partial).write("memory", name=name)
        for name, partial in (("together", True), ("apart", False))
    ]
    query = sinks[0].also(sinks[1]).start(state=tmp_path / "state", slots=2)
    for name in ("together", "apart"):
        assert sorted(map(tuple, map(dict.values, query.sinks[name].table().to_pylist()))) == [
            (key, 2 * ((27 + key) ** 2 - key**2)) for key in range(3)
        ]
