"""What the drop-in returns: its stateless methods, its writer, its query."""

import json

import pytest
from pyspark.errors import AnalysisException, PySparkValueError, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

import floodplain as fp
from floodplain.errors import BadInput
from tests.spark.transform_with_state.programs import INPUT, OUTPUT, Interpreter, PandasInterpreter


def feed(folder, number, *rows):
    lines = [json.dumps({"n": n, "k": key, "g": 0, "ops": [op]}) for n, (key, op) in enumerate(rows)]
    temporary = folder.parent / f"{number}.tmp"
    temporary.write_text("\n".join(lines))
    temporary.rename(folder / f"{number}.json")


@pytest.fixture
def source(spark, tmp_path):
    folder = tmp_path / "input"
    folder.mkdir()
    return spark.readStream.schema(INPUT).json(str(folder)), folder


@pytest.fixture
def frame(source):
    return fp.transform_with_state(source[0].groupBy("k"), Interpreter(), OUTPUT, "append", "none")


def test_it_looks_like_the_dataframe_it_stands_for(frame):
    assert frame.isStreaming and frame.columns == ["k", "n", "op", "out"]
    assert frame.schema.simpleString() == "struct<k:string,n:bigint,op:string,out:string>"
    assert frame.select("k", (frame.n + 1).alias("m")).dtypes == [("k", "string"), ("m", "bigint")]
    assert frame.na.fill(0).columns == frame.columns
    assert frame.transform(lambda given: given.drop("op")).columns == ["k", "n", "out"]


def test_errors_come_where_spark_gives_them(frame):
    with pytest.raises(AnalysisException, match="no_such"):
        frame.select("no_such")
    with pytest.raises(AnalysisException, match="no_such"):
        frame["no_such"]
    with pytest.raises(AttributeError):
        _ = frame.no_such


def test_the_writer_checks_what_spark_checks(frame, tmp_path):
    with pytest.raises(AnalysisException, match="checkpointLocation"):
        frame.writeStream.format("parquet").start(str(tmp_path / "out"))
    with pytest.raises(AnalysisException, match="queryName"):
        frame.writeStream.format("memory").start()
    with pytest.raises(PySparkValueError):
        frame.writeStream.trigger(once=True, availableNow=True)
    with pytest.raises(PySparkValueError):
        frame.writeStream.queryName(" ")
    with pytest.raises(AnalysisException):
        frame.writeStream.format("noop").outputMode("complete").start()
    for refused in ("partitionBy", "clusterBy", "foreach", "toTable"):
        with pytest.raises(BadInput, match=refused):
            getattr(frame.writeStream, refused)("k")


def test_a_query_in_memory_with_stateless_steps_behind(spark, frame, source):
    kept = (
        frame.where(F.col("out") != "None")
        .select("k", F.length(frame["out"]).alias("size"))
        .withColumn("twice", F.col("size") * 2)
    )
    query = kept.writeStream.format("memory").queryName("sizes").outputMode("append").start()
    try:
        assert query.name == "sizes" and query.isActive and query.id and query.runId != query.id
        assert spark.table("sizes").count() == 0
        feed(source[1], 0, ("a", "count.update((5,))"), ("a", "count.get()"), ("b", "count.exists()"))
        query.processAllAvailable()
        found = {tuple(row) for row in spark.table("sizes").collect()}
        assert found == {("('a',)", 4, 8), ("('b',)", 5, 10)}
        assert query.exception() is None and query.lastProgress is not None and query.status["message"]
    finally:
        query.stop()
    assert not query.isActive and query.exception() is None
    assert query.awaitTermination() is None and query.awaitTermination(1) is True, "nothing is left to wait for"


def test_states_go_on_after_a_restart_and_batches_are_numbered_from_zero(frame, source, tmp_path):
    seen = []

    def keep(rows, number):
        seen.append((number, sorted((row.k[2:-3], row.out) for row in rows.collect())))

    def run():
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "state"))
        writer.trigger(availableNow=True).start().awaitTermination()

    feed(source[1], 0, ("a", "count.update((1,))"))
    run()
    feed(source[1], 1, ("a", "count.get()"), ("b", "count.get()"))
    run()
    assert seen == [(0, [("a", "None")]), (1, [("a", "(1,)"), ("b", "None")])]


class Failing(Interpreter):
    def handleInputRows(self, key, rows, timerValues):
        raise ValueError("no such luck")


def test_a_processor_that_fails_ends_its_query_as_in_spark(source, tmp_path):
    feed(source[1], 0, ("a", "count.get()"))
    frame = fp.transform_with_state(source[0].groupBy("k"), Failing(), OUTPUT, "append", "none")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "state"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"STREAM_FAILED.*: ValueError in operator .*key .*: no such luck") as ended:
        query.awaitTermination()
    assert isinstance(ended.value.__cause__, fp.UserError)
    assert isinstance(query.exception(), StreamingQueryException)


def test_a_state_that_init_deletes_is_gone_for_good(source, tmp_path):
    def run(processor):
        frame = fp.transform_with_state(source[0].groupBy("k"), processor, OUTPUT, "append", "none")
        seen = []
        writer = frame.writeStream.foreachBatch(lambda rows, _: seen.extend(row.out for row in rows.collect()))
        writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start().awaitTermination()
        return seen

    feed(source[1], 0, ("a", "items.appendValue((1,))"), ("a", "count.update((1,))"))
    run(Interpreter())
    feed(source[1], 1, ("a", "1"))
    assert run(Deleting()) == ["1"]
    feed(source[1], 2, ("a", "list(items.get())"), ("a", "count.get()"))
    assert run(Interpreter()) == ["[]", "(1,)"]


class Deleting(Interpreter):
    def init(self, handle):
        super().init(handle)
        handle.deleteIfExists("items")


@pytest.mark.parametrize("pandas", [False, True])
def test_a_static_dataframe_is_run_at_once(spark, pandas):
    rows = [(0, "a", 1, ["count.update((2,))", "watermark", "handle.registerTimer(5)"], None), (1, "a", 1, ["count.get()"], None)]
    grouped = spark.createDataFrame(rows, INPUT).groupBy("k")
    arguments = ((PandasInterpreter if pandas else Interpreter)(), OUTPUT, "append", "eventTime")
    call = fp.transform_with_state_in_pandas if pandas else fp.transform_with_state
    ours = call(grouped, *arguments)
    theirs = (grouped.transformWithStateInPandas if pandas else grouped.transformWithState)(*arguments)
    assert ours.collect() == theirs.collect() and ours.schema == theirs.schema
