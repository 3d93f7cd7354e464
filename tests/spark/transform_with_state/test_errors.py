"""Where Spark raises, so does the drop-in: small wrong programs through both. Spark runs them over a static DataFrame."""

import re

import pytest

import floodplain as fp
from floodplain.errors import BadInput
from tests.spark.transform_with_state.programs import Wrong

OUTPUT = "user string, what string"

PROGRAMS = [
    ("None", {"rows": "handle.registerTimer(5)"}),
    ("None", {"rows": "handle.getValueState('q', LONG)"}),
    ("None", {"rows": "l.put([])"}),
    ("None", {"rows": "v.update((1, 2))"}),
    ("None", {"init": "handle.getValueState('t', LONG, 1000)"}),
    ("ProcessingTime", {"init": "handle.getValueState('t', LONG, -1)"}),
    ("ProcessingTime", {"rows": "handle.registerTimer(1.5)"}),
    ("None", {"give": "iter([('u', 'x')])"}),
    ("None", {"give": "iter([Row(user=5, what='x')])"}),
]


@pytest.mark.parametrize(("mode", "code"), PROGRAMS, ids=lambda given: str(given) if isinstance(given, dict) else given)
def test_both_raise(spark, mode, code):
    grouped = spark.createDataFrame([("u", 1)], "user string, n long").groupBy("user")
    arguments = (Wrong(**code), OUTPUT, "append", mode)
    with pytest.raises(Exception) as theirs:
        grouped.transformWithState(*arguments).collect()
    with pytest.raises(Exception) as ours:
        fp.transform_with_state(grouped, *arguments).collect()
    assert _condition(str(ours.value)) >= _condition(str(theirs.value))


def _condition(text: str) -> set[str]:
    """The error conditions and Python errors that a message names."""
    known = re.findall(r"\[((?:STATEFUL_PROCESSOR|ILLEGAL_STATE|STATE_STORE)[A-Z_.]*)\]", text)
    return {*known, *re.findall(r"(TypeError|AttributeError|ArrowTypeError|fields are required while)", text)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"outputMode": "some"}, "some"),
        ({"timeMode": "some"}, "some"),
        ({"outputStructType": "user nothing"}, "nothing"),
        ({"eventTimeColumnName": "what"}, "CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK"),
    ],
)
def test_arguments_are_checked_by_spark_itself(spark, changed, message):
    rows = spark.readStream.format("rate").load()
    given = {"outputStructType": OUTPUT, "outputMode": "append", "timeMode": "none", **changed}
    with pytest.raises(Exception, match=message) as theirs:
        rows.groupBy("value").transformWithState(Wrong(), **given)
    with pytest.raises(type(theirs.value), match=message):
        fp.transform_with_state(rows.groupBy("value"), Wrong(), **given)


def test_a_key_that_is_no_column_is_refused_by_spark_itself(spark):
    rows = spark.readStream.format("rate").load()
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        fp.transform_with_state(rows.groupBy((rows.value % 3).alias("third")), Wrong(), OUTPUT, "append", "none")


def test_the_checkpoint_of_a_query_of_spark_is_refused(spark, tmp_path):
    rows = spark.readStream.format("rate").load()
    frame = fp.transform_with_state(rows.groupBy("value"), Wrong(), OUTPUT, "append", "none")
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text("{}")
    with pytest.raises(BadInput, match="checkpoint of a query of Spark itself"):
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
