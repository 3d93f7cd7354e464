"""What is done to the input before its rows come as a batch: what may be, what may not, and that it makes no difference."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

import floodplain as fp
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Extend, Input, Select, Union
from floodplain.spark.runtime import stream
from floodplain.store.rows.layout import HASH
from tests.processes import Sightings
from tests.spark.files import put_table

pytestmark = pytest.mark.spark
ONCE = {"availableNow": True}
COLUMNS = "kind string, user string, n long, at timestamp, wide string"
AT = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [{"kind": "ab"[n % 2], "user": f"user{n % 5}", "n": n, "at": AT, "wide": "x" * 100} for n in range(40)]


@pytest.fixture
def ran(spark, tmp_path) -> Callable[[Callable[[Stream], Stream]], tuple[Any, str, list[dict[str, Any]]]]:
    """Runs a pipeline over the rows in two epochs: the step that came ahead, Spark's plan of the input, and what came out."""
    for number in range(2):
        put_table(tmp_path / "in", number, pa.Table.from_pylist(ROWS[number::2]))
    events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))

    def run(build: Callable[[Stream], Stream]) -> tuple[Any, str, list[dict[str, Any]]]:
        output = build(stream(events)).write("memory")
        query = output.start(state=tmp_path / "state", slots=2, trigger={"availableNow": True})
        query.await_termination()
        query.stop()
        assert query.exception is None and len(query.progress) == 2
        return query._driver.epochs.front, query._query._jsq.explainInternal(False), query.sink.table().to_pylist()

    return run


def tallied(rows: Stream) -> Stream:
    return rows.key_by("user").process(Sightings())


def last(out: list[dict[str, Any]]) -> dict[str, int]:
    return {row["user"]: row["n"] for row in sorted(out, key=lambda row: row["n"])}


def test_rows_are_chosen_and_columns_made_where_the_input_is_read(ran):
    front, plan, out = ran(lambda rows: tallied(rows.where("n >= 10").with_column("user", F.upper("user")).select("user")))
    assert isinstance(front, Select) and HASH in plan
    (read,) = re.findall(r"ReadSchema: struct<(.*?)>", plan)
    assert read == "user:string,n:bigint"
    assert last(out) == {f"USER{number}": 6 for number in range(5)}


def test_an_operator_that_reads_the_input_itself_finds_the_hash_there(ran):
    front, plan, out = ran(tallied)
    assert isinstance(front, Input) and HASH in plan and last(out) == {f"user{number}": 8 for number in range(5)}


def test_rows_that_are_put_together_have_no_hash_yet(ran):
    front, plan, out = ran(lambda rows: rows.where("n < 20").key_by("kind").agg(most=fp.max("n")))
    assert isinstance(front, Select) and HASH not in plan
    assert {row["kind"]: row["most"] for row in sorted(out, key=lambda row: row["most"])} == {"a": 18, "b": 19}


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        pytest.param(lambda rows: rows.transform(lambda frame: frame.where("n < 10")), 10, id="a step of the user's own"),
        pytest.param(lambda rows: rows.where("n < (select 10)"), 10, id="another query"),
        pytest.param(lambda rows: rows.select("user", n="count(1) over (partition by user)"), 40, id="more rows than one"),
    ],
)
def test_what_sees_more_than_a_row_is_left_to_the_batch(ran, step, kept):
    front, _, out = ran(lambda rows: tallied(step(rows)))
    assert isinstance(front, Input)
    assert sum(last(out).values()) == kept


def test_steps_up_to_the_first_that_must_wait_come_ahead(ran):
    front, plan, out = ran(lambda rows: tallied(rows.where("n < 20").transform(lambda frame: frame.where("n >= 10"))))
    assert isinstance(front, Extend) and HASH not in plan and sum(last(out).values()) == 10


def test_an_input_that_two_steps_read_comes_as_it_is(ran):
    def both(rows: Stream) -> Stream:
        return rows.where("n < 10").select("user").join(rows.where("n >= 36").select(name="user"), on={"user": "name"})

    front, _, out = ran(both)
    assert isinstance(front, Input) and len(out) == 2 * 4


def test_kinds_of_rows_are_joined_by_reading_each_once(ran):
    def joined(rows: Stream) -> Stream:
        few = rows.where("kind = 'a'").where("n < 10").select("user", "n")
        return few.join(rows.where("kind = 'b'").where("n > 30").select(name="user", other="n"), on={"user": "name"})

    front, plan, out = ran(joined)
    assert isinstance(front, Union) and plan.count("FileScan") == 1
    found = sorted((row["user"], row["n"], row["other"]) for row in out)
    one, other = ([row for row in ROWS if row["kind"] == kind] for kind in "ab")
    wanted = [(a["user"], a["n"], b["n"]) for a in one for b in other if a["user"] == b["user"] and a["n"] < 10 < 30 < b["n"]]
    assert found == sorted(wanted) and len(wanted) == 5


@pytest.mark.parametrize("rule", [{}, {"policy": "min"}])
def test_all_rows_of_the_input_move_the_watermark_whatever_is_chosen_of_them(spark, tmp_path, rule):
    """Also where Spark could choose before it looks at the times, as it would by itself."""
    for number in range(3):
        times = [AT + timedelta(minutes=number), AT + timedelta(hours=number + 1)]
        put_table(tmp_path / "in", number, pa.table({"user": ["a", "b"], "at": times, "n": [1, 2], "wide": ["x", "x"]}))
    events = spark.readStream.schema("user string, at timestamp, n long, wide string").option("maxFilesPerTrigger", 1)
    rows = stream(events.parquet(str(tmp_path / "in"))).watermark("at", "0 seconds", **rule).where("user = 'a'")
    query = tallied(rows.select("user", "at")).write("memory").start(state=tmp_path / "state", slots=1, trigger=ONCE)
    query.await_termination()
    query.stop()
    hours = [(progress.watermark_ms - round(AT.timestamp() * 1000)) / 3_600_000 for progress in query.progress[1:3]]
    assert hours == [1, 2] and query.progress[-1].late_by == {"sightings": 1}
    if not rule:
        plan = query._query._jsq.explainInternal(False)
        assert plan.index("= a)") < plan.index("EventTimeWatermark") and "wide" not in plan
