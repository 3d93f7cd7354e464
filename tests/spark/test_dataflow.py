"""Pipelines of several shapes: side outputs, several sources, stateless ends, operators in a row, static input, changes."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.errors import BadInput, IncompatibleChange, UserError
from floodplain.settings import StoreSettings
from floodplain.spark.runtime import Query, stream
from floodplain.store.store import Store
from tests.processes import ByCount, BySource, Count, LastSeen, Picky, Priced, Rearmed, Tally, Whereabouts
from tests.spark.files import put_table

pytestmark = pytest.mark.spark
FAST = StoreSettings(lease_ms=1500)
ONCE = {"availableNow": True}


def put_file(folder: Path, number: int, **columns: Any) -> None:
    put_table(folder, number, pa.table(columns))


def users(folder: Path, number: int, *names: str) -> None:
    put_file(folder, number, user=list(names), amount=[1] * len(names))


def source(spark: Any, folder: Path, schema: str = "user string, amount long") -> Any:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def finish(output: Any, folder: Path, **options: Any) -> Query:
    """Run over what is there and let go of the state."""
    query = output.start(**{"state": folder / "state", "slots": 2, "trigger": ONCE, "settings": FAST, **options})
    query.await_termination()
    if query.exception is not None:
        raise query.exception
    query.stop()
    return query


def rows_of(sink: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in sink.table().to_pylist()]


@pytest.mark.both_engines
def test_side_outputs_go_to_sinks_and_operators_of_their_own(spark, tmp_path):
    users(tmp_path / "in", 0, *["ada"] * 7, *["bob"] * 4)
    users(tmp_path / "in", 1, *["ada"] * 4, *["bob"] * 2)
    tally = stream(source(spark, tmp_path / "in")).key_by("user").process(Tally())
    fives = tally.side("fives")
    by_count = fives.key_by("n").process(ByCount())
    output = tally.write("memory").also(fives.write("memory", name="fives")).also(by_count.write("memory", name="by_count"))
    query = finish(output, tmp_path)
    assert Counter(rows_of(query.sinks["output"])) == Counter([("ada", 7), ("bob", 4), ("ada", 11), ("bob", 6)])
    assert Counter(rows_of(query.sinks["fives"])) == Counter([("ada", 7), ("ada", 11), ("bob", 6)])
    assert sorted(rows_of(query.sinks["by_count"])) == [(6, ["bob"]), (7, ["ada"]), (11, ["ada"])]
    with pytest.raises(BadInput, match="tally has no side output 'tens'; it declares: fives, late"):
        tally.side("tens")


def test_rows_of_several_sources_come_as_one_stream(spark, tmp_path):
    put_file(tmp_path / "clicks", 0, ad=[1, 2, 2], where=["top", "top", "low"])
    put_file(tmp_path / "impressions", 0, ad=[1, 1, 3], ms=[5, 6, 7])
    clicks = source(spark, tmp_path / "clicks", "ad long, where string")
    impressions = source(spark, tmp_path / "impressions", "ad long, ms long")
    query = finish(stream(clicks=clicks, impressions=impressions).key_by("ad").process(BySource()).write("memory"), tmp_path)
    newest = {row[0]: row[1:] for row in rows_of(query.sink)}
    assert newest == {1: (2, 1), 2: (0, 2), 3: (1, 0)}
    put_file(tmp_path / "clicks", 1, ad=[3], where=["top"])
    query = finish(stream(clicks=clicks, impressions=impressions).key_by("ad").process(BySource()).write("memory"), tmp_path)
    assert rows_of(query.sink) == [(3, 1, 1)]
    with pytest.raises(BadInput, match="column ad is bigint in source a and string in b"):
        other = source(spark, tmp_path / "clicks", "ad string")
        stream(a=clicks, b=other).key_by("ad").process(BySource()).write("memory").start(state=tmp_path / "other")


def test_a_pipeline_may_end_with_a_stateless_step_or_have_no_other(spark, tmp_path):
    users(tmp_path / "in", 0, "ada", "ada", "bob")
    counted = stream(source(spark, tmp_path / "in")).key_by("user").process(Count())
    query = finish(counted.transform(lambda df: df.where("n > 1").selectExpr("upper(user) as who")).write("memory"), tmp_path)
    assert rows_of(query.sink) == [("ADA",)]
    plain = stream(source(spark, tmp_path / "in")).transform(lambda df: df.select("user"))
    query = finish(plain.write("parquet", path=str(tmp_path / "out")), tmp_path / "plain")
    assert sorted(pq.read_table(tmp_path / "out").column("user").to_pylist()) == ["ada", "ada", "bob"]
    assert query.progress[0].rows == 3
    assert finish(plain.write("parquet", path=str(tmp_path / "out")), tmp_path / "plain").progress == []


def test_an_operator_reads_what_another_staged_for_its_slots(spark, tmp_path):
    users(tmp_path / "in", 0, *[f"u{n % 50}" for n in range(500)])
    counted = stream(source(spark, tmp_path / "in")).key_by("user").process(Count()).key_by("n").process(ByCount())
    query = finish(counted.write("memory"), tmp_path, slots=3)
    assert rows_of(query.sink) == [(10, sorted(f"u{n}" for n in range(50)))]
    assert not list((tmp_path / "state" / "staged").glob("*")), "staged rows stay no longer than they are needed"


def test_the_same_pipeline_over_a_static_frame(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["a", "b", "a"], ts=pa.array([1000, 2000, 9000], pa.timestamp("ms", "UTC")))
    rows = spark.read.parquet(str(tmp_path / "in"))

    def run(**options: Any) -> Query:
        seen = stream(rows).watermark("ts", "1 second").key_by("user").process(LastSeen()).write("memory")
        return seen.start(state=tmp_path / "state", settings=FAST, slots=2, **options)

    query = run(batch="monday", finish=False)
    assert query.await_termination() and not query.is_active
    assert rows_of(query.sink) == [("b", 1, 3000)], "a's timer waits for the watermark"
    assert run(batch="monday").progress == [], "the batch is in the state already"
    query = run(batch="tuesday")
    assert sorted(rows_of(query.sink)) == [("a", 3, 10000)], "rows before 8 s are late by now; at the end all timers fire"


def test_a_static_batch_that_was_cut_short_is_finished_by_the_next_run(spark, tmp_path):
    """Its rows are in the state, and its timers have not fired."""
    put_file(tmp_path / "in", 0, user=["a", "b", "a"], ts=pa.array([1000, 2000, 9000], pa.timestamp("ms", "UTC")))
    seen = stream(spark.read.parquet(str(tmp_path / "in"))).watermark("ts", "1 second").key_by("user").process(LastSeen())
    told: list[tuple[Any, ...]] = []

    def run(*, full: bool) -> Query:
        def tell(rows: Any, epoch: int) -> None:
            if full:
                raise OSError("no space left")
            told.extend(map(tuple, rows.collect()))

        return seen.foreach_batch(tell).start(state=tmp_path / "state", settings=FAST, slots=2, batch="monday")

    with pytest.raises(UserError, match=r"^OSError in the function .*tell of foreach_batch, epoch 1: no space left") as told_why:
        run(full=True)
    assert isinstance(told_why.value.__cause__, OSError)
    assert sum(progress.rows for progress in run(full=False).progress) == 0, "the rows are not processed again"
    assert sorted(told) == [("a", 2, 10000), ("b", 1, 3000)]
    assert run(full=False).progress == [] and len(told) == 2


def test_an_error_of_the_function_ends_the_query_with_operator_epoch_key_and_row(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada", "bob"], amount=[1, 2])
    put_file(tmp_path / "in", 1, user=["bob", "ada", "ada", "ada"], amount=[1, 2, -3, 4])
    query = stream(source(spark, tmp_path / "in")).key_by("user").process(Picky()).write("memory")
    wanted = "ValueError in operator picky, epoch 2, key Key(user='ada'), row Row(user='ada', amount=-3): negative amount"
    with pytest.raises(UserError) as told:
        finish(query, tmp_path, slots=1)
    assert str(told.value) == wanted
    held = Store.open(tmp_path / "state").snapshot().table("picky").to_arrow()
    assert dict(zip(held["user"].to_pylist(), held["n"].to_pylist(), strict=True)) == {"ada": 1, "bob": 1}


def test_a_timer_that_sets_itself_again_does_not_hold_up_the_end_of_static_input(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["a"], ts=pa.array([1000], pa.timestamp("ms", "UTC")))
    rows = spark.read.parquet(str(tmp_path / "in"))
    for number in (1, 2):
        output = stream(rows).watermark("ts", "1 second").key_by("user").process(Rearmed()).write("memory")
        query = output.start(state=tmp_path / "state", settings=FAST, slots=1)
        assert rows_of(query.sink) == [("a", number)], "once at the end; what it sets waits for what comes later"


def test_an_operator_may_be_added_but_none_vanishes_without_a_word(spark, tmp_path):
    users(tmp_path / "in", 0, "ada", "ada")
    rows = source(spark, tmp_path / "in")
    finish(stream(rows).key_by("user").process(Count(), name="first").write("memory"), tmp_path)
    users(tmp_path / "in", 1, "ada")
    two = stream(rows).key_by("user").process(Count(), name="first").key_by("n").process(ByCount())
    assert rows_of(finish(two.write("memory"), tmp_path).sink) == [(3, ["ada"])]
    renamed = stream(rows).key_by("user").process(Count(), name="second").write("memory")
    with pytest.raises(BadInput, match=r"has operator 'by_count'.*name='by_count'.*drop=\['by_count'\]"):
        finish(renamed, tmp_path)
    users(tmp_path / "in", 2, "bob", "ada")
    with pytest.raises(BadInput, match="'nonesuch' is nothing in the state that could be meant"):
        finish(renamed, tmp_path, drop=["first", "by_count", "nonesuch"])
    finish(renamed, tmp_path, drop=["first", "by_count"])
    assert set(Store.open(tmp_path / "state").head.schemas) == {"second", "second__event_timers", "second__processing_timers"}
    with pytest.raises(IncompatibleChange, match="operator second, keys: was by user, is by amount"):
        finish(stream(rows).key_by("amount").process(Count(), name="second").write("memory"), tmp_path)
    with pytest.raises(BadInput, match="no column nobody to key by; there are: user, amount"):
        finish(stream(rows).key_by("nobody").process(Count(), name="second").write("memory"), tmp_path)


@pytest.mark.both_engines
def test_a_broadcast_input_reaches_every_task(spark, tmp_path):
    put_file(tmp_path / "prices", 0, item=["tea"], price=[3])
    users(tmp_path / "in", 0, *[f"u{n}" for n in range(12)])
    prices = source(spark, tmp_path / "prices", "item string, price long")
    spent = stream(source(spark, tmp_path / "in")).key_by("user").process(Priced(), broadcast=prices)
    query = finish(spent.write("memory"), tmp_path, slots=3)
    assert {row[1] for row in rows_of(query.sink)} == {3} and len(rows_of(query.sink)) == 12
    users(tmp_path / "in", 1, "u1", "u2")
    query = finish(spent.write("memory"), tmp_path, slots=2)
    assert sorted(rows_of(query.sink)) == [("u1", 6), ("u2", 6)]
    assert sum(row["value"] for row in query.state("priced__seen").to_arrow().to_pylist()) == 14


@pytest.mark.s3
def test_state_in_an_object_store_goes_on_where_it_was(spark, tmp_path, s3_server):
    place = {"state": s3_server.url("pipeline/state"), "options": s3_server.options}
    users(tmp_path / "in", 0, "ada", "ada", "bob")
    counted = stream(source(spark, tmp_path / "in")).key_by("user").process(Count()).key_by("n").process(ByCount())
    assert sorted(rows_of(finish(counted.write("memory"), tmp_path, **place).sink)) == [(1, ["bob"]), (2, ["ada"])]
    users(tmp_path / "in", 1, "ada", "bob", "bob")
    assert sorted(rows_of(finish(counted.write("memory"), tmp_path, **place).sink)) == [(3, ["ada", "bob"])]


def test_workers_go_on_from_epoch_to_epoch_behind_operators_that_read_staged_rows(spark, tmp_path):
    epochs = 8
    for number in range(epochs):
        users(tmp_path / "in", number, "ada", "bob")
    counted = stream(source(spark, tmp_path / "in")).key_by("user").process(Count())
    finish(counted.key_by("user").process(Whereabouts()).write("parquet", path=str(tmp_path / "out")), tmp_path)
    found = pq.read_table(tmp_path / "out").column("process").to_pylist()
    assert len(found) == 2 * epochs and len(set(found)) <= epochs, "a worker that Spark ends serves one task"
