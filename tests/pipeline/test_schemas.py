"""The columns of what comes out are known before the start; rows and columns are chosen by expressions."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.testing.pipeline_kit import PipelineKit
from tests.processes import Tally

ROWS = "user string, amount long, ok boolean, inner struct<x: int>"
ROW = {"user": "u", "amount": 3, "ok": True, "inner": {"x": 7}}


def test_a_stream_knows_its_columns():
    seen = {}

    def build(stream):
        top = stream.key_by("user").top(2, "amount desc", mode="retract")
        tally = stream.key_by("user").process(Tally())
        seen["top"], seen["tally"], seen["side"] = top.schema(), tally.schema(), tally.side("fives").schema()
        seen["chosen"] = stream.select("user", x="inner.x").schema()
        output = top.write("memory", name="top").also(tally.write("parquet", path="/nowhere/at/all", name="tally"))
        seen["both"], seen["first"] = output.schemas, output.schema
        return output

    kit = PipelineKit(build, rows=ROWS)
    inner = pa.struct({"x": pa.int32()})
    top = {"user": pa.string(), "amount": pa.int64(), "ok": pa.bool_(), "inner": inner, "rank": pa.int64(), "weight": pa.int64()}
    tally = pa.schema({"user": pa.string(), "n": pa.int64()})
    assert seen["top"] == pa.schema(top)
    assert seen["tally"] == seen["side"] == tally
    assert seen["chosen"] == pa.schema({"user": pa.string(), "x": pa.int32()})
    assert seen["both"] == kit.schemas == {"top": pa.schema(top), "tally": tally}
    assert seen["first"] == pa.schema(top)


def test_a_schema_that_cannot_be_is_an_error():
    with pytest.raises(BadInput, match="no column nobody to key by"):
        PipelineKit(lambda stream: stream.key_by("nobody").process(Tally()).schema(), rows=ROWS)


def test_keys_may_be_made():
    def build(stream):
        return stream.key_by("user", x="inner.x").last("amount").write("memory")

    kit = PipelineKit(build, rows=ROWS)
    assert kit.epoch([ROW])["output"] == [{**ROW, "x": 7}]
    assert kit.state("last")[0]["x"] == 7
    with pytest.raises(BadInput, match="key_by needs at least one column"):
        PipelineKit(lambda stream: stream.key_by(), rows=ROWS)


def test_columns_are_added_or_made_anew():
    def build(stream):
        return stream.with_column("x", "inner.x").with_column("amount", "1").write("memory")

    assert PipelineKit(build, rows=ROWS).epoch([ROW])["output"] == [{**ROW, "amount": 1, "x": 7}]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("ok", [1, 3]),
        ("amount > 1", [2, 3]),
        ("amount >= 2 and user <> 'b'", [3]),
        ("inner.x = 7 AND ok", [1]),
        ("amount < 3 and amount != 1", [2]),
        ("'b' == user", [2]),
    ],
)
def test_rows_are_chosen(condition, kept):
    kit = PipelineKit(lambda stream: stream.where(condition).write("memory"), rows=ROWS)
    given = [
        {"user": "a", "amount": 1, "ok": True, "inner": {"x": 7}},
        {"user": "b", "amount": 2, "ok": None, "inner": None},
        {"user": "c", "amount": 3, "ok": True, "inner": {"x": 8}},
        {"user": None, "amount": None, "ok": False, "inner": {"x": None}},
    ]
    assert [row["amount"] for row in kit.epoch(given)["output"]] == kept


def test_what_needs_spark_says_so():
    for build, message in [
        (lambda s: s.where("amount + 1 > 2").write("memory"), "amount \\+ 1 > 2 needs Spark"),
        (lambda s: s.where("amount <=> 2").write("memory"), "amount <=> 2 needs Spark"),
        (lambda s: s.where("amount").write("memory"), "is int64, not boolean"),
        (lambda s: s.with_column("day", "date(ts)").write("memory"), "date\\(ts\\) needs Spark"),
        (lambda s: s.key_by(day="date(ts)").last("amount").write("memory"), "date\\(ts\\) needs Spark"),
    ]:
        with pytest.raises(BadInput, match=message):
            PipelineKit(build, rows=ROWS)
