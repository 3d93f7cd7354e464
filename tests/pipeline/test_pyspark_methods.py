"""What PySpark users type by habit works here, or is refused with what to write instead."""

import copy
from datetime import timedelta

import pytest
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import DataStreamWriter

import floodplain as fp
from floodplain.errors import BadInput, NoSuchMethod, UserError
from floodplain.operators.kernel.row_cursor import tuple_type
from floodplain.pipeline.pyspark_methods import trigger_of
from floodplain.pipeline.pyspark_renames import OUTPUT, STREAM
from floodplain.pipeline.writer import StreamWriter
from floodplain.testing.pipeline_kit import Columns

ROWS = "user string, v long, w double, ts timestamp"
FIRST = {"user": "a", "v": 1, "w": 0.5, "ts": None}


def public(kind):
    return [name for name in dir(kind) if not name.startswith("_")]


def described(rows=ROWS):
    """A stream, as a pipeline begins with it."""
    found = []
    fp.PipelineKit(lambda s: found.append(s) or s.write("memory"), rows=rows)
    return found[0]


def run(build, *epochs, rows=ROWS):
    kit = fp.PipelineKit(lambda s: build(s).write("memory"), rows=rows)
    return [kit.epoch(epoch)["output"] for epoch in epochs][-1]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda s: s, [*public(DataFrame), *public(GroupedData)]),
        (lambda s: s.key_by("user"), [*public(DataFrame), *public(GroupedData)]),
        (lambda s: s.watermark("ts", "1 s").window(fp.tumbling("1 s")), public(GroupedData)),
        (lambda s: s.write("memory"), public(DataStreamWriter)),
        (lambda s: s.writeStream, public(DataStreamWriter)),
    ],
    ids=["Stream", "keyed Stream", "WindowedStream", "Output", "writeStream"],
)
def test_every_public_method_of_pyspark_is_there_or_refused_by_our_name(ours, theirs):
    thing = ours(described())
    assert len(theirs) > 10
    for name in theirs:
        if hasattr(type(thing), name):
            continue
        with pytest.raises(NoSuchMethod) as told:
            getattr(thing, name)
        _, _, hint = str(told.value).partition(f"has no {name}, as PySpark has: ")
        assert len(hint) > 10 and "{" not in hint, name


def test_the_table_names_nothing_that_is_there_or_unknown_to_pyspark():
    theirs = {*public(DataFrame), *public(GroupedData), "start"}
    assert not {name for name in STREAM if hasattr(fp.Stream if hasattr(fp, "Stream") else type(described()), name)}
    assert STREAM.keys() <= theirs and OUTPUT.keys() <= set(public(DataStreamWriter))


def test_other_names_are_plain_attribute_errors_with_close_ones():
    stream = described()
    with pytest.raises(AttributeError, match=r"Stream has no attribute 'keyby'; did you mean key_by") as told:
        _ = stream.keyby
    assert not isinstance(told.value, BadInput)
    assert not hasattr(stream, "nothing_like_it") and not hasattr(stream.write("memory"), "strat_")
    assert copy.copy(stream) == stream


def test_names_of_dataframes_do_the_same_here():
    stream = described()
    assert stream.groupBy("user", "v") == stream.key_by("user", "v") == stream.groupby(["user", "v"])
    assert stream.groupBy() == stream
    assert stream.withWatermark("ts", "1 minute") == stream.watermark("ts", "1 minute")
    assert stream.withColumn("x", "v").explain() == stream.with_column("x", "v").explain()
    assert stream.filter("v > 1").explain() == stream.where("v > 1").explain()
    assert stream.drop("w", "nobody").columns == ["user", "v", "ts"] and stream.drop("nobody") == stream
    assert stream.withColumnRenamed("v", "x").columns == ["user", "x", "w", "ts"]
    assert stream.withColumns({"v": "w", "x": "v"}).columns == ["user", "v", "w", "ts", "x"]
    assert stream.columns == ["user", "v", "w", "ts"] and stream.dtypes[1] == ("v", "int64")
    assert stream.isStreaming and stream.sparkSession is None
    with pytest.raises(BadInput, match="no column is left"):
        stream.drop(*stream.columns)


def test_selected_expressions_are_named():
    made = run(lambda s: s.selectExpr("user", "v as x", "`w`"), [FIRST])
    assert made == [{"user": "a", "x": 1, "w": 0.5}]
    assert described().selectExpr("*", "v as x").columns == ["user", "v", "w", "ts", "x"]
    with pytest.raises(BadInput, match=r"v \+ 1 has no name.*as w"):
        described().selectExpr("v + 1")
    with pytest.raises(BadInput, match="two columns would be called v"):
        described().selectExpr("v", "w as v")


def test_columns_made_together_do_not_see_each_other():
    assert run(lambda s: s.withColumns({"v": "w", "x": "v"}), [FIRST]) == [{**FIRST, "v": 0.5, "x": 1}]


@pytest.mark.parametrize("call", [lambda s: s.dropDuplicates(["user"]), lambda s: s.drop_duplicates("user")])
def test_duplicates_are_dropped(call):
    again = {**FIRST, "v": 2}
    assert run(call, [FIRST], [again]) == []
    assert run(lambda s: s.dropDuplicates(), [FIRST], [again, FIRST]) == [again]
    assert run(lambda s: s.distinct(), [FIRST], [again, FIRST]) == [again]
    late = described().watermark("ts", "1 minute")
    assert late.dropDuplicatesWithinWatermark("user").explain() == late.dedup("user", within="1 minute").explain()
    with pytest.raises(BadInput, match=r"needs a watermark with a delay: .*dedup"):
        described().dropDuplicatesWithinWatermark()


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda s: s.agg(fp.count()), {"count": 2}),
        (lambda s: s.agg(fp.count("v"), fp.sum("v"), n=fp.count()), {"count_v": 2, "sum_v": 3, "n": 2}),
        (lambda s: s.agg({"v": "sum", "*": "count", "w": "mean"}), {"sum_v": 3, "count": 2, "avg_w": 0.5}),
        (lambda s: s.agg(fp.max("v"), fp.min("`v`"), fp.avg("w")), {"max_v": 2, "min_v": 1, "avg_w": 0.5}),
        (lambda s: s.agg(fp.max_by("w", "v"), fp.count_distinct("v")), {"max_by_w_v": 0.5, "count_distinct_v": 2}),
        (lambda s: s.count(), {"count": 2}),
        (lambda s: s.sum("v", "w"), {"sum_v": 3, "sum_w": 1.0}),
        (lambda s: s.mean("v"), {"avg_v": 1.5}),
        (lambda s: s.max("v"), {"max_v": 2}),
        (lambda s: s.min("v"), {"min_v": 1}),
    ],
)
def test_aggregates_without_a_name_get_one(call, wanted):
    assert run(lambda s: call(s.groupBy("user")), [FIRST, {**FIRST, "v": 2}]) == [{"user": "a", **wanted}]


def test_windows_have_them_too():
    windows = described().watermark("ts", "1 s").key_by("user").window(fp.tumbling("1 s"))
    assert windows.count().columns == ["user", "window_start", "window_end", "count"]
    assert windows.agg({"v": "max"}).columns[-1] == "max_v"
    with pytest.raises(NoSuchMethod, match="WindowedStream has no pivot"):
        _ = windows.pivot


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s: s.agg(fp.count(), fp.count()), "two aggregates would be called count"),
        (lambda s: s.agg(fp.sum("v"), sum_v=fp.sum("w")), "two aggregates would be called sum_v"),
        (lambda s: s.agg(fp.sum("v * 1000000000000000000000000000000000000000000000000000000")), "needs a name"),
        (lambda s: s.agg({"v": "stddev"}), "stddev is not one of .*avg, count"),
        (lambda s: s.agg("count"), "this is no aggregate: pass one, as in agg"),
        (lambda s: s.agg(7), "this is no aggregate"),
        (lambda s: s.sum(), "sum needs the names of columns"),
        (lambda s: s.join(Columns(s.sources[""].schema), "user"), r"the other side is a Columns.*fp\.stream\(left=one"),
        (lambda s: s.join(s.write("memory"), "user"), "the other side is an Output"),
        (lambda s: s.start(state="x"), r"it has no sink yet: \.write"),
        (lambda s: s.write("memory").option("checkpointLocation", "x"), r"checkpointLocation is start\(state="),
        (lambda s: s.write("memory").trigger(once=True), r"start\(state=…, trigger="),
    ],
)
def test_what_is_ambiguous_is_refused_with_our_way(call, told):
    with pytest.raises(BadInput, match=told):
        call(described().key_by("user"))


def test_a_count_of_a_whole_stream_is_no_action():
    with pytest.raises(BadInput, match=r"a stream does not end, so it has no total: agg\(n=fp\.count"):
        described().count()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, None),
        ("availableNow", {"availableNow": True}),
        ("available_now", {"availableNow": True}),
        ("1 second", {"processingTime": "1000 milliseconds"}),
        (timedelta(minutes=2), {"processingTime": "120000 milliseconds"}),
        ({"processingTime": "5 seconds"}, {"processingTime": "5 seconds"}),
        ({"availableNow": True}, {"availableNow": True}),
        ({"once": True}, {"once": True}),
    ],
)
def test_triggers_in_all_their_forms(given, wanted):
    assert trigger_of(given) == wanted


@pytest.mark.parametrize("given", ["soon", {"continuous": "1 second"}, {"availableNow": False}, {"a": 1, "b": 2}, 7])
def test_unknown_triggers_are_refused(given):
    with pytest.raises(BadInput, match="trigger"):
        described().write("memory").start(state="memory://x", trigger=given)


def test_the_writer_of_spark_starts_what_ours_does(tmp_path):
    started = []

    class Recorded(fp.PipelineKit):
        def start(self, stream, plan, options):
            started.append((plan, options))
            super().start(stream, plan, options)

    def build(stream):
        writer = stream.groupBy("user").count().writeStream.format("parquet").outputMode("update").partitionBy("user")
        writer.option("checkpointLocation", "memory://kit").trigger(availableNow=True, once=None).queryName("users")
        return _Starts(lambda: writer.start(str(tmp_path)))

    Recorded(build, rows=ROWS)
    ((plan, options),) = started
    assert options.state == "memory://kit" and options.name == "users" and options.trigger == {"availableNow": True}
    assert plan.outlets[0].sink.target == str(tmp_path)


class _Starts:
    def __init__(self, start):
        self._start = start

    def start(self, **_):
        self._start()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda w: w.start("out"), "location of the state is missing.*checkpointLocation"),
        (lambda w: w.outputMode("complete"), "the output of this stream has mode 'append'"),
        (lambda w: w.toTable("t"), "write\\('delta'"),
        (lambda w: w.foreach(print), "foreach_batch"),
        (lambda w: w.clusterBy("a"), "foreach_batch"),
    ],
)
def test_what_the_writer_cannot_do_it_says(call, told):
    with pytest.raises(BadInput, match=told):
        call(described().writeStream)
    assert isinstance(described().writeStream, StreamWriter)


def test_names_may_stand_in_backticks():
    rows = "`my user` string, v long, ts timestamp"
    kit = fp.PipelineKit(
        lambda s: (
            s.watermark("`ts`", "1 s").select("`my user`", "v", "ts").key_by("`my user`").agg(fp.sum("`v`")).write("memory")
        ),
        rows=rows,
    )
    assert kit.epoch([{"my user": "a", "v": 1}])["output"] == [{"my user": "a", "sum_v": 1}]


class ByHabit(fp.KeyedProcess):
    output = "user string, found string"

    def process(self, key, rows, ctx):
        for row in rows:
            yield key["user"], f"{row['v']} {'v' in row} {'x' in row} {row.asDict()['w']} {row[1]} {row['my col']}"


def test_rows_are_read_as_those_of_pyspark():
    kit = fp.ProcessKit(ByHabit(), rows="user string, v long, w double, `my col` long", keys=["user"])
    made = kit.epoch([{"user": "a", "v": 1, "w": 0.5, "my col": 7}])
    assert made == [{"user": "a", "found": "1 True False 0.5 1 7"}]


def test_a_column_that_a_row_lacks_is_told_with_those_it_has():
    class Wrong(ByHabit):
        def process(self, key, rows, ctx):
            yield key.user, rows[0]["nobody"]

    kit = fp.ProcessKit(Wrong(), rows="user string, v long", keys=["user"])
    with pytest.raises(UserError, match=r"KeyError in operator kit.*there is no column 'nobody'; there are: user, v"):
        kit.epoch([{"user": "a", "v": 1}])


def test_any_name_of_a_column_can_be_asked_for():
    names = ["a", "my col", "class", "_x", "count", "index", "a", "_columns"][:6]
    row = tuple_type("Row", names)._make(range(6))
    assert [row[name] for name in names] == list(row) == [getattr(row, name) for name in names] == list(row.asDict().values())
    assert row == (0, 1, 2, 3, 4, 5) and row[1:3] == (1, 2) and row[-1] == 5 and "my col" in row and 3 not in row
