"""Columns given by position: names, ``Column``s and expressions that say their own name; what has none is told what to do."""

import re
from datetime import UTC, datetime

import pytest

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.expressions.columns import computed, name_of, named, order_text
from tests.expressions.shown import Shown

ROWS = "k string, v long, ts timestamp"


@pytest.mark.parametrize(
    ("given", "name", "made"),
    [
        ("v", "v", "`v`"),
        ("my col", "my col", "`my col`"),
        ("v * 2 as w", "w", "v * 2"),
        ("cast(v as long) AS `my w`", "my w", "cast(v as long)"),
        (Shown("v"), "v", "`v`"),
        (Shown("s.x"), "x", "`s`.`x`"),
        (Shown("`a.b`"), "a.b", "`a.b`"),
    ],
)
def test_a_column_has_the_name_it_says(given, name, made):
    assert named([given], "select", {}) == [(name, made)]
    assert bool(computed([(name, made)])) == (made != f"`{name}`")


def test_an_aliased_column_stays_what_it_is():
    column = Shown("(v * 2) AS w")
    assert named([column], "select", {"x": "v"}) == [("w", column), ("x", "v")]


@pytest.mark.parametrize("text", ["v * 2", "CAST(v AS BIGINT)", "*", "posexplode(a) AS (p, q)"])
def test_a_column_without_a_name_is_refused(text):
    with pytest.raises(BadInput, match=re.escape(f"select: {text} has no name: give it one, as in select(w='{text}')")):
        named([Shown(text)], "select", {})


def test_what_is_no_column_or_stands_twice_is_refused():
    with pytest.raises(BadInput, match=re.escape("select: ['k', 'v'] is no column: give its name, or a Column")):
        named([["k", "v"]], "select", {})
    with pytest.raises(BadInput, match="select: two columns would be called v: name one of them"):
        named(["v", "v * 2 as v"], "select", {})


def test_orders_and_names_of_columns():
    assert order_text([Shown("v DESC NULLS LAST"), "ts"], "top") == "v DESC NULLS LAST, ts"
    assert name_of(Shown("`a.b`"), "window") == "a.b"
    with pytest.raises(BadInput, match=re.escape("window: ts + 1 is not the name of a column: make it one before, with_column(")):
        name_of(Shown("ts + 1"), "window")


def started(build) -> fp.PipelineKit:
    return fp.PipelineKit(lambda rows: build(rows).write("memory"), rows=ROWS)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda rows: rows.select("v * 2"), "there is no column v * 2; there are: k, v, ts.*with a name: select(w='v * 2')"),
        (lambda rows: rows.key_by("v % 2").last("ts"), "no column v % 2 to key by.*with a name: key_by(w='v % 2')"),
        (lambda rows: rows.dedup("v % 2"), "no column v % 2 to key by.*with a name: key_by(w='v % 2')"),
        (lambda rows: rows.key_by("k").top(1, Shown("v * 2 DESC NULLS LAST")), "to order by an expression, add a column"),
        (lambda rows: rows.key_by("k").last(by=Shown("v * 2")), "to order by an expression, add a column: with_column("),
        (lambda rows: rows.key_by("k").last(by=3), "last: 3 is no column"),
        (lambda rows: rows.select("nobody"), "there is no column nobody; there are: k, v, ts"),
    ],
)
def test_an_expression_without_a_name_is_told_where_to_give_it(build, said):
    with pytest.raises(BadInput, match=re.escape(said).replace(r"\.\*", ".*")):
        started(build)


def test_names_in_expressions_on_the_kit():
    kit = started(lambda rows: rows.select("k as key", Shown("v")).key_by("key as again").top(1, [Shown("v DESC NULLS LAST")]))
    found = kit.epoch([{"k": "a", "v": 1}, {"k": "a", "v": 2}])["output"]
    assert found == [{"key": "a", "v": 2, "again": "a", "rank": 1}]


def test_columns_name_keys_values_and_times_on_the_kit():
    def build(rows):
        timed = rows.watermark(Shown("ts"), "0 seconds")
        wide = timed.key_by(Shown("k")).pivot(Shown("v"), {1: "one"}, Shown("v"), by=[Shown("ts")])
        counts = timed.key_by("k").window(fp.tumbling("1 second"), on=Shown("ts")).agg(n=fp.count())
        newest = timed.dedup(Shown("k"), keep="last", by=Shown("v DESC NULLS LAST"))
        pairs = newest.select("k", w="v").join(wide.select("k", "one"), Shown("k"))
        return pairs.write("memory").also(counts.write("memory", name="counts"))

    at = datetime.fromtimestamp(1, UTC)
    kit = fp.PipelineKit(build, rows=ROWS)
    assert kit.epoch([{"k": "a", "v": 1, "ts": at}, {"k": "a", "v": 2, "ts": at}])["output"] == [{"k": "a", "w": 1, "one": 1}]
    assert [row["n"] for row in kit.epoch([], watermark_ms=5000)["counts"]] == [2]


@pytest.mark.spark
def test_columns_of_pyspark_are_taken_wherever_a_name_is(spark, tmp_path):
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.createDataFrame([("a", 1, (5,)), ("a", 3, (6,)), ("b", 2, (7,))], "k string, v long, s struct<x:long>")
    rows = fp.stream(df)
    chosen = rows.select(F.col("k"), df.v, F.col("s.x"), F.expr("v * 2").alias("w"), "v + 1 as more", F.col("v").alias("u"))
    keyed = rows.key_by(F.col("k"), F.expr("v % 2").alias("odd")).top(1, [F.col("v").desc(), "k"])
    query = chosen.write("memory", name="chosen").also(keyed.write("memory", name="first")).start(state=tmp_path / "state")
    found = {name: sorted(tuple(row.values()) for row in sink.table().to_pylist()) for name, sink in query.sinks.items()}
    assert found == {
        "chosen": [("a", 1, 5, 2, 2, 1), ("a", 3, 6, 6, 4, 3), ("b", 2, 7, 4, 3, 2)],
        "first": [("a", 3, {"x": 6}, 1, 1), ("b", 2, {"x": 7}, 0, 1)],
    }
    assert rows.dedup(F.col("k"), by=F.col("v")).schema().names == ["k", "v", "s"]
    assert rows.key_by("k").last(by=F.desc("v")).schema().names == ["k", "v", "s"]
    for wrong in (lambda: rows.select(F.col("v") * 2), lambda: rows.key_by(F.col("v") % 2)):
        with pytest.raises(BadInput, match="has no name: give it one, as in"):
            wrong()
    with pytest.raises(BadInput, match="there is no column nobody"):
        _ = rows.select("nobody").schema()
