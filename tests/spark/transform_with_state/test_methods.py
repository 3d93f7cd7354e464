"""Every public method of DataFrames and groups downstream of a processor: it runs, or an error names it."""

import inspect

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.spark.transform_with_state.frame import StatefulFrame, StatefulGroups
from tests.spark.transform_with_state.downstream_programs import ROWS, Echo, Frames

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def rows(spark, tmp_path_factory):
    return spark.readStream.schema(ROWS).json(str(tmp_path_factory.mktemp("input"))).withWatermark("at", "1 second")


@pytest.fixture(scope="module")
def table(spark):
    return spark.createDataFrame([("a", 1, None)], ROWS)


def after(rows, time_mode="eventTime", event_time="at"):
    return fp.transform_with_state(rows.groupBy("k"), Echo(), ROWS, "append", time_mode, None, event_time)


@pytest.fixture(scope="module")
def frame(rows):
    return after(rows)


def same(frames):
    return frames


RUNS = {
    "agg": lambda f: f.agg(F.count("*")),
    "alias": lambda f: f.alias("a").select("a.k"),
    "coalesce": lambda f: f.coalesce(1),
    "crossJoin": lambda f, table: f.crossJoin(table),
    "distinct": lambda f: f.distinct(),
    "drop": lambda f: f.drop("n"),
    "dropDuplicates": lambda f: f.dropDuplicates(),
    "dropDuplicatesWithinWatermark": lambda f: f.dropDuplicatesWithinWatermark(["k"]),
    "drop_duplicates": lambda f: f.drop_duplicates(["k"]),
    "dropna": lambda f: f.dropna(),
    "fillna": lambda f: f.fillna(0),
    "filter": lambda f: f.filter("n > 1"),
    "hint": lambda f: f.hint("broadcast"),
    "join": lambda f, table: f.join(table, "k"),
    "mapInArrow": lambda f: f.mapInArrow(same, ROWS),
    "mapInPandas": lambda f: f.mapInPandas(same, ROWS),
    "melt": lambda f: f.melt(["k"], ["n"], "name", "value"),
    "repartition": lambda f: f.repartition(1),
    "repartitionById": lambda f: f.repartitionById(1, F.lit(0)),
    "repartitionByRange": lambda f: f.repartitionByRange(1, "n"),
    "replace": lambda f: f.replace("a", "b"),
    "select": lambda f: f.select("k"),
    "selectExpr": lambda f: f.selectExpr("n + 1 as m"),
    "to": lambda f, table: f.to(table.schema),
    "toDF": lambda f: f.toDF("a", "b", "c"),
    "transform": lambda f: f.transform(lambda each: each.drop("n")),
    "unpersist": lambda f: f.unpersist(),
    "unpivot": lambda f: f.unpivot(["k"], ["n"], "name", "value"),
    "where": lambda f: f.where("n > 1"),
    "withColumn": lambda f: f.withColumn("m", F.lit(1)),
    "withColumnRenamed": lambda f: f.withColumnRenamed("n", "m"),
    "withColumns": lambda f: f.withColumns({"m": F.lit(1)}),
    "withColumnsRenamed": lambda f: f.withColumnsRenamed({"n": "m"}),
    "withMetadata": lambda f: f.withMetadata("n", {"a": 1}),
}
"""Method → a frame that can be started."""
GROUPS = {
    "cube": lambda f: f.cube("k"),
    "groupBy": lambda f: f.groupBy("k"),
    "groupby": lambda f: f.groupby("k"),
    "groupingSets": lambda f: f.groupingSets([["k"], []], "k"),
    "rollup": lambda f: f.rollup("k"),
}
ANSWERED = {
    "colRegex": lambda f: f.colRegex("`k`"),
    "metadataColumn": lambda f: f.metadataColumn("_metadata"),
    "sameSemantics": lambda f: f.sameSemantics(f),
    **dict.fromkeys(("columns", "dtypes", "isStreaming", "schema", "sparkSession", "storageLevel", "writeStream", "na", "stat")),
    **dict.fromkeys(("explain", "isLocal", "printSchema", "semanticHash"), lambda f: ...),
}
REFUSED = {
    "exceptAll": lambda f, table: f.exceptAll(table),
    "createGlobalTempView": lambda f: f.createGlobalTempView("v"),
    "createOrReplaceGlobalTempView": lambda f: f.createOrReplaceGlobalTempView("v"),
    "createOrReplaceTempView": lambda f: f.createOrReplaceTempView("v"),
    "createTempView": lambda f: f.createTempView("v"),
    "describe": lambda f: f.describe(),
    "freqItems": lambda f: f.freqItems(["k"]),
    "lateralJoin": lambda f, table: f.lateralJoin(table),
    "limit": lambda f: f.limit(1),
    "observe": lambda f: f.observe("o", F.count("*")),
    "registerTempTable": lambda f: f.registerTempTable("v"),
    "subtract": lambda f, table: f.subtract(table),
    "summary": lambda f: f.summary(),
    "withWatermark": lambda f: f.withWatermark("at", "1 second"),
    "zipWithIndex": lambda f: f.zipWithIndex(),
    **dict.fromkeys(("asTable", "exists", "pandas_api", "plot", "scalar")),
}
"""Method → a call, or None where it is refused when it is looked up."""
ENDS_AT_THE_START = {
    "intersect": lambda f, table: f.intersect(table),
    "intersectAll": lambda f, table: f.intersectAll(table),
    "offset": lambda f: f.offset(1),
    "orderBy": lambda f: f.orderBy("k"),
    "randomSplit": lambda f: f.randomSplit([0.5, 0.5])[1],
    "sample": lambda f: f.sample(0.5),
    "sort": lambda f: f.sort("k"),
    "sortWithinPartitions": lambda f: f.sortWithinPartitions("k"),
    "union": lambda f, table: f.union(table),
    "unionAll": lambda f, table: f.unionAll(table),
    "unionByName": lambda f, table: f.unionByName(table),
}
"""Spark analyses it, and starts no query of it."""
SPARK_REFUSES = {
    "approxQuantile": lambda f: f.approxQuantile("n", [0.5], 0.1),
    "corr": lambda f: f.corr("n", "n"),
    "cov": lambda f: f.cov("n", "n"),
    "crosstab": lambda f: f.crosstab("k", "n"),
    "foreach": lambda f: f.foreach(print),
    "foreachPartition": lambda f: f.foreachPartition(print),
    "mergeInto": lambda f: f.mergeInto("t", F.lit(True)),
    "nearestByJoin": lambda f, table: f.nearestByJoin(table, F.col("n"), 1, "exact", "similarity"),
    "sampleBy": lambda f: f.sampleBy("no_such", {"a": 0.5}),
    "tail": lambda f: f.tail(1),
    "take": lambda f: f.take(1),
    "writeTo": lambda f: f.writeTo("t"),
    "zip": lambda f, table: f.zip(table),
    **dict.fromkeys(("executionInfo", "rdd", "write")),
    **dict.fromkeys(
        (
            *("cache", "checkpoint", "collect", "count", "first", "head", "inputFiles", "isEmpty", "localCheckpoint", "persist"),
            *("show", "toArrow", "toJSON", "toLocalIterator", "toPandas", "transpose"),
        ),
        lambda f: ...,
    ),
}
"""Spark refuses the call itself."""
FATES = (RUNS, GROUPS, ANSWERED, REFUSED, ENDS_AT_THE_START, SPARK_REFUSES)


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def called(method, call, frame, table):
    if call is None:
        return getattr(frame, method)
    made = call(frame, table) if len(inspect.signature(call).parameters) == 2 else call(frame)
    return getattr(frame, method)() if made is ... else made


def test_each_method_has_one_fate():
    assert sorted(name for fate in FATES for name in fate) == sorted(public(DataFrame))


@pytest.mark.parametrize("method", RUNS)
def test_it_runs(frame, table, method):
    made = called(method, RUNS[method], frame, table)
    assert isinstance(made, StatefulFrame) and made._chain() is not None and made.columns


@pytest.mark.parametrize("method", GROUPS)
def test_it_groups(frame, table, method):
    made = called(method, GROUPS[method], frame, table)
    assert isinstance(made, StatefulGroups) and isinstance(made.count(), StatefulFrame)


@pytest.mark.parametrize("method", ANSWERED)
def test_it_answers(frame, table, method):
    made = called(method, ANSWERED[method], frame, table)
    assert not isinstance(made, DataFrame | StatefulFrame) and (
        method not in ("colRegex", "metadataColumn") or isinstance(made, Column)
    )


@pytest.mark.parametrize("method", REFUSED)
def test_it_is_refused_by_name(frame, table, method):
    with pytest.raises(BadInput, match=rf"^{method}\b.* is not available downstream of a stateful step: .+"):
        called(method, REFUSED[method], frame, table)


@pytest.mark.parametrize("method", ENDS_AT_THE_START)
def test_spark_starts_no_query_of_it(frame, table, method):
    made = called(method, ENDS_AT_THE_START[method], frame, table)
    with pytest.raises(AnalysisException):
        made.writeStream.format("noop").start()


@pytest.mark.parametrize("method", SPARK_REFUSES)
def test_spark_refuses_the_call(frame, table, method):
    with pytest.raises(PySparkException):
        called(method, SPARK_REFUSES[method], frame, table)


GROUPED = {
    "agg": lambda g: g.agg(F.count("*")),
    **{name: lambda g, name=name: getattr(g, name)("n") for name in ("avg", "max", "mean", "min", "sum")},
    "count": lambda g: g.count(),
    "transformWithState": lambda g: g.transformWithState(Echo(), ROWS, "append", "eventTime"),
    "transformWithStateInPandas": lambda g: g.transformWithStateInPandas(Frames(), "k string, n long", "append", "none"),
}
GROUPED_REFUSED = {
    "applyInArrow": lambda g: g.applyInArrow(same, ROWS),
    "applyInPandas": lambda g: g.applyInPandas(same, ROWS),
    "applyInPandasWithState": lambda g: g.applyInPandasWithState(same, ROWS, "n long", "append", "NoTimeout"),
    "cogroup": lambda g: g.cogroup(g),
}


def test_each_method_of_groups_runs_or_is_refused_by_name(frame):
    groups = frame.groupBy("k")
    for method, call in GROUPED.items():
        assert isinstance(call(groups), StatefulFrame), method
    for method, call in GROUPED_REFUSED.items():
        with pytest.raises(BadInput, match=rf"^{method}\b.* is not available downstream of a stateful step: .+"):
            call(groups)
    with pytest.raises(PySparkException, match="EVAL_TYPE"):
        groups.apply(same)
    assert isinstance(groups.pivot("n", [1, 2]), StatefulGroups)
    assert {*GROUPED, *GROUPED_REFUSED, "apply", "pivot"} == public(GroupedData)
    with pytest.raises(AttributeError):
        _ = groups.no_such


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda f, rows, table: f.join(rows, "k"), "join: .*fp.stream"),
        (lambda f, rows, table: f.union(rows), "union: .*union the inputs before the first"),
        (lambda f, rows, table: table.join(f, "k"), "call it on this one"),
        (lambda f, rows, table: f.groupBy("k").agg(F.collect_list("n")), "agg: .*collect_list.*transformWithState"),
        (lambda f, rows, table: f.groupBy("k").agg(F.first("n")), "agg: .*first"),
        (lambda f, rows, table: f.groupBy(F.session_window("at", "1 minute")).count(), "count: session_window"),
        (lambda f, rows, table: after(after(rows, "processingTime", "")), "transformWithState.*no timer would fire"),
        (lambda f, rows, table: f.groupBy("k").count().writeStream.format("noop").outputMode("complete").start(), "'complete'"),
    ],
)
def test_what_has_no_equal_is_refused_with_what_to_do(frame, rows, table, call, reason):
    with pytest.raises(BadInput, match=reason):
        call(frame, rows, table)


@pytest.mark.parametrize(
    ("made", "mode", "text"),
    [
        (lambda f: f.groupBy("k").count(), "append", "streaming aggregations without watermark"),
        (lambda f: f.groupBy("k").count().groupBy("count").count(), "update", "correctness"),
        (lambda f: f.groupBy("k").transformWithState(Echo(), ROWS, "append", "none"), "complete", "no streaming aggregations"),
    ],
)
def test_output_modes_that_spark_refuses_end_with_its_error(frame, made, mode, text):
    with pytest.raises(AnalysisException, match=text):
        made(frame).writeStream.format("noop").outputMode(mode).start()
