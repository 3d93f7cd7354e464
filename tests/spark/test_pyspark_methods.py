"""Habits that need Spark's own ``Column``s: aggregates, conditions of joins, windows in ``groupBy``."""

import pytest
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.pipeline.join import key_pairs
from floodplain.spark.runtime import stream

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark):
    return stream(spark.createDataFrame([("a", 1, 2), ("a", 3, 4)], "user string, v long, `my w` long"))


def test_aggregates_of_spark_are_taken_over(spark, rows, tmp_path):
    asked = [F.sum("v"), F.count("*"), F.max("v").alias("top"), F.min(F.col("my w")), F.avg("v"), F.max_by("v", "my w")]
    query = rows.groupBy("user").agg(*asked, {"v": "count"}, n=fp.count()).write("memory").start(state=tmp_path / "state")
    (found,) = query.sink.table().to_pylist()
    values = {"sum_v": 4, "count": 2, "top": 3, "min_my_w": 2, "avg_v": 2.0, "max_by_v_my_w": 3, "count_v": 2, "n": 2}
    assert found == {"user": "a", **values}


def test_aggregates_that_mean_something_else_are_refused(rows):
    for asked, told in (
        (F.countDistinct("v"), "of distinct values: use agg\\(n=fp.count_distinct"),
        (F.countDistinct("v").alias("x"), "of distinct values"),
        (F.sum_distinct("v"), "of distinct values"),
        (F.expr("count(distinct v)"), "of distinct values"),
        (F.sum(F.col("v") * 2), "has no equivalent here: use an aggregate of fp"),
        (F.stddev("v"), "stddev is not one of"),
        (F.first("v"), "first is not one of"),
        (F.col("v"), "has no equivalent here"),
    ):
        with pytest.raises(BadInput, match=told):
            rows.groupBy("user").agg(asked)
    for window in (F.window("ts", "10 minutes"), F.session_window("ts", "5 minutes")):
        with pytest.raises(BadInput, match=r"a window is no key column.*\.window\(fp\."):
            rows.groupBy(window, "user")
    with pytest.raises(BadInput, match="the other side is a DataFrame"):
        rows.join(rows.sources[""], "user")


def test_conditions_of_joins_are_read(spark):
    a, b, c, d = (F.col(name) for name in "abcd")
    assert key_pairs(a == b) == {"a": "b"} and key_pairs([a == b, c == d]) == {"a": "b", "c": "d"}
    assert key_pairs((a == b) & (c == d)) == {"a": "b", "c": "d"}
    assert key_pairs((a == b) & (c == d) & (F.col("e") == F.col("f"))) == {"a": "b", "c": "d", "e": "f"}
    assert key_pairs(a) == {"a": "a"} and key_pairs([a, "b"]) == {"a": "a", "b": "b"}
    for wrong in (a > b, (a == b) | (c == d), a.eqNullSafe(b), (a == b) & (c >= d), a + b == c):
        with pytest.raises(BadInput, match=r"is no equality of two columns: pass on=.*within="):
            key_pairs(wrong)
