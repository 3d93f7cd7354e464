"""What ends a query, as Spark ends it: when, with which class of error, and with which words."""

import re

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql.types import ArrayType, IntegerType, LongType, StructType

import floodplain as fp
from floodplain.spark.session_conf import settings
from tests.spark.transform_with_state.programs import INPUT, OUTPUT, Declaring, Interpreter, PandasInterpreter, Wrong
from tests.spark.transform_with_state.test_frame import feed
from tests.spark.transform_with_state.test_traces import PROVIDER, ROCKS
from tests.waiting import wait_for

AVRO = {
    PROVIDER: ROCKS,
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
    # Else Spark runs batches without rows for as long as there may be timers of the processing time.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
STRICT = StructType().add("n", LongType(), nullable=False).add("s", "string")
LOOSE = StructType().add("n", LongType()).add("s", "string")
DEEP = StructType().add("t", STRICT).add("a", ArrayType(IntegerType(), containsNull=False))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "input"
    made.mkdir()
    return made


def started(spark, folder, processor, *, stock=False, pandas=False, mode="none", output=OUTPUT, name="state", **trigger):
    rows = spark.readStream.schema(INPUT).json(str(folder)).withWatermark("at", "0 seconds").groupBy("k")
    arguments = (processor, output, "append", mode)
    if pandas:
        frame = rows.transformWithStateInPandas(*arguments) if stock else fp.transform_with_state_in_pandas(rows, *arguments)
    else:
        frame = rows.transformWithState(*arguments) if stock else fp.transform_with_state(rows, *arguments)
    place = folder.parent / (f"stock-{name}" if stock else name)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(place))
    return (writer.trigger(**trigger) if trigger else writer).start()


def failure(query) -> StreamingQueryException:
    """Raised by a wait, and there to be asked for."""
    with pytest.raises(StreamingQueryException) as raised:
        query.processAllAvailable()
    assert isinstance(query.exception(), StreamingQueryException) and not query.isActive
    return raised.value


WAYS = {
    "processAllAvailable": lambda query: query.processAllAvailable(),
    "awaitTermination": lambda query: query.awaitTermination(),
    "awaitTermination with a time": lambda query: query.awaitTermination(120),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["eventtime", "processingtime"])
@pytest.mark.parametrize("pandas", [False, True])
def test_a_timer_callback_that_fails_ends_the_query_as_rows_do(spark, folder, mode, pandas, way):
    feed(folder, 0, ("a", "arm(0, '1 / 0')"))
    query = started(spark, folder, PandasInterpreter() if pandas else Interpreter(), mode=mode, pandas=pandas)
    with pytest.raises(StreamingQueryException, match=r"^\[STREAM_FAILED\].*ZeroDivisionError in .*key .*, timer at 0 ms"):
        WAYS[way](query)
    assert isinstance(query.exception(), StreamingQueryException) and not query.isActive


def test_the_error_answers_as_one_of_spark(spark, folder):
    feed(folder, 0, ("a", "1 / 0"))
    query = started(spark, folder, Interpreter())
    told = failure(query)
    text = f"[STREAM_FAILED] Query [id = {query.id}, runId = {query.runId}] terminated with exception: ZeroDivisionError in "
    assert str(told).startswith(text) and str(told).endswith(" SQLSTATE: XXKST")
    assert told.getCondition() == "STREAM_FAILED" and told.getSqlState() == "XXKST" and told.getQueryContext() == []
    assert told.getMessageParameters()["id"] == query.id and told.getMessage() == str(told)


def test_an_init_that_fails_ends_the_query_with_its_first_batch_and_touches_no_state(spark, folder):
    feed(folder, 0, ("a", "count.update((5,))"))
    started(spark, folder, Interpreter(), availableNow=True).awaitTermination()
    query = started(spark, folder, Wrong(init="1 / 0"), output="user string, what string")
    query.processAllAvailable()
    assert query.isActive and query.exception() is None, "as long as no rows come"
    feed(folder, 1, ("a", "count.get()"))
    with pytest.raises(
        StreamingQueryException, match=r"driver worker exited unexpectedly \(crashed\).*ZeroDivisionError in init"
    ):
        query.awaitTermination()
    query.stop()
    assert not query.isActive and "ZeroDivisionError" in str(query.exception())
    seen = []
    rows = spark.readStream.schema(INPUT).json(str(folder)).groupBy("k")
    frame = fp.transform_with_state(rows, Interpreter(), OUTPUT, "append", "none")
    writer = frame.writeStream.foreachBatch(lambda made, _: seen.extend(row.out for row in made.collect()))
    writer.option("checkpointLocation", str(folder.parent / "state")).trigger(availableNow=True).start().awaitTermination()
    assert seen == ["(5,)"]


@pytest.mark.parametrize(
    "declared",
    [("value", "state", STRICT), ("list", "state", STRICT), ("map", "state", LOOSE, STRICT)],
    ids=lambda declared: declared[0],
)
def test_a_field_that_must_not_be_null_is_refused_under_avro(spark, folder, declared):
    feed(folder, 0, ("a", "1"))
    with settings(spark, AVRO):
        theirs, ours = (failure(started(spark, folder, Declaring(declared), stock=stock)) for stock in (True, False))
    assert _reason(ours) == _reason(theirs)
    assert "[TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE]" in str(ours) and "column family state must be nullable" in str(ours)


def _reason(error) -> str:
    return re.sub(r"\s+", " ", str(error).partition("terminated with exception: ")[2].partition(" SQLSTATE")[0])


@pytest.mark.parametrize("encoding", ["avro", "unsaferow"])
def test_other_fields_that_must_not_be_null_are_allowed(spark, folder, encoding):
    feed(folder, 0, ("a", "1"))
    states = [("map", "m", STRICT, LOOSE), ("value", "t", STRICT, 10**10), ("list", "u", STRICT, 10**10), ("value", "d", DEEP)]
    states += [("value", "v", STRICT), ("list", "l", STRICT), ("map", "n", LOOSE, STRICT)] if encoding == "unsaferow" else []
    with settings(spark, {**AVRO, "spark.sql.streaming.stateStore.encodingFormat": encoding}):
        for stock in (True, False):
            query = started(spark, folder, Declaring(*states), stock=stock, mode="processingtime", availableNow=True)
            query.awaitTermination()
            assert query.exception() is None


@pytest.mark.parametrize("wait", [True, False])
def test_a_timer_that_fires_without_rows_ends_its_query_whoever_waits(spark, folder, wait):
    feed(folder, 0, ("a", "arm(int(time.time() * 1000) + 500, '1 / 0')"))
    query = started(spark, folder, Interpreter(), mode="processingtime")
    if wait:
        with pytest.raises(StreamingQueryException, match=r"ZeroDivisionError in .*timer at"):
            query.awaitTermination()
    else:
        wait_for("its end", lambda: not query.isActive)
    assert isinstance(query.exception(), StreamingQueryException) and "ZeroDivisionError" in str(query.exception())
