"""A pipeline is replaced while its query runs on Spark: the streaming query goes on, and so does the state."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodplain as fp
from floodplain.errors import BadInput, IncompatibleChange, UserError
from tests.processes import Count
from tests.spark.test_runtime import FAST, source

pytestmark = pytest.mark.spark


class Doubled(Count):
    """Other code on the same state, and another column."""

    output = "user string, n long, total long, twice long"

    def process(self, key, rows, ctx):
        for user, n, total in super().process(key, rows, ctx):
            yield user, n, total, 2 * total


def put(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    rows = pa.table({"user": [f"u{n % 5}" for n in range(20)], "amount": list(range(number, number + 20))})
    pq.write_table(rows, folder / "in" / f".{number:04d}.parquet")
    (folder / "in" / f".{number:04d}.parquet").rename(folder / "in" / f"{number:04d}.parquet")


def after(query: Any, folder: Path, number: int) -> list[dict[str, Any]]:
    """The rows that come of one more file."""
    epochs = set(query.sink._epochs)
    put(folder, number)
    query.process_all_available()
    return [row for epoch, rows in sorted(query.sink._epochs.items()) if epoch not in epochs for row in rows.to_pylist()]


@pytest.mark.both_engines
def test_another_pipeline_takes_over_between_two_epochs(spark, tmp_path):
    put(tmp_path, 0)
    clicks = fp.stream(source(spark, tmp_path))

    def counted(process, made=clicks):
        return made.key_by("user").process(process, name="count").write("memory")

    query = counted(Count()).start(state=tmp_path / "state", slots=2, settings=FAST)
    query.process_all_available()
    run = str(query._query.runId)
    epoch = query.update(counted(Doubled()), tag="before")
    assert query.manifest.epoch == epoch
    assert query.manifest.tags == {"before": epoch - 1}
    first = {f"u{n}": sum(range(n, 20, 5)) for n in range(5)}
    assert {row["user"]: row["twice"] for row in after(query, tmp_path, 1)} == {
        user: 2 * (2 * total + 4) for user, total in first.items()
    }
    assert query.sink.table().column("twice").null_count == 5, "what came before does not have the new column"
    with pytest.raises(IncompatibleChange):
        query.update(clicks.key_by("user").agg(n=fp.count(), name="count").write("memory"))
    with pytest.raises(BadInput, match="input is another DataFrame"):
        query.update(counted(Count(), fp.stream(source(spark, tmp_path).where("amount > 3"))))
    query.update(counted(Count(), fp.stream(source(spark, tmp_path))))  # the same, read anew
    assert {row["n"] for row in after(query, tmp_path, 2)} == {12}
    assert str(query._query.runId) == run
    assert [epoch.slots for epoch in query.progress] == [2] * len(query.progress)
    query.stop()
    with pytest.raises(BadInput, match="this one has ended"):
        query.update(counted(Count()))


@pytest.mark.both_engines
def test_keys_that_spark_has_hashed_may_change(spark, tmp_path):
    """Rows come with the hash of the old key."""
    put(tmp_path, 0)
    clicks = fp.stream(source(spark, tmp_path))
    query = clicks.key_by("user").process(Count(), name="count").write("memory").start(state=tmp_path / "state", slots=4)
    query.process_all_available()
    by_amount = clicks.key_by("amount").agg(n=fp.count(), partial=False, name="amounts")
    query.update(by_amount.write("memory"), drop=["count"])
    assert sorted((row["amount"], row["n"]) for row in after(query, tmp_path, 1)) == [(n, 1) for n in range(1, 21)]
    again = {row["amount"]: row["n"] for row in after(query, tmp_path, 2)}
    assert again == {n: 2 if n < 21 else 1 for n in range(2, 22)}
    query.stop()


def test_steps_in_the_streaming_query_change_if_they_were_kept_out_of_it(spark, tmp_path):
    put(tmp_path, 0)
    clicks = fp.stream(source(spark, tmp_path))

    def counted(least):
        return clicks.where(f"amount >= {least}").key_by("user").process(Count(), name="count").write("memory")

    with pytest.raises(BadInput, match=r"start\(pushdown=False\)"):
        with_pushdown = counted(10).start(state=tmp_path / "pushed", slots=2)
        try:
            with_pushdown.update(counted(15))
        finally:
            with_pushdown.stop()
    query = counted(10).start(state=tmp_path / "state", slots=2, pushdown=False)
    query.process_all_available()
    assert sum(row["n"] for row in query.sink.table().to_pylist()) == 10
    query.update(counted(15))
    assert sum(row["n"] for row in after(query, tmp_path, 1)) == 10 + 6
    query.stop()


def test_foreach_batch_may_have_another_function(spark, tmp_path):
    put(tmp_path, 0)
    clicks, seen = fp.stream(source(spark, tmp_path)), []

    def counted(name):
        counts = clicks.key_by("user").process(Count(), name="count")
        return counts.foreach_batch(lambda rows, epoch: seen.append((name, epoch, rows.count())))

    query = counted("old").start(state=tmp_path / "state", slots=2)
    query.process_all_available()
    epoch = query.update(counted("new"))
    put(tmp_path, 1)
    query.process_all_available()
    query.stop()
    assert seen == [("old", epoch - 1, 5), ("new", epoch + 1, 5)]


class Most(fp.ControlOperation):
    """The largest total, and what follows from it."""

    operator = "count"

    def __init__(self, then=None):
        self.then = then

    def on_slot(self, state, ctx):
        return max((row["total"] for piece in state.scan(columns=["total"]) for row in piece.to_pylist()), default=-1)

    def merge(self, a, b):
        return max(a, b)

    def decide(self, result, control):
        return result if self.then is None else self.then


@pytest.mark.both_engines
def test_a_control_operation_looks_at_the_state_and_decides(spark, tmp_path):
    put(tmp_path, 0)
    clicks = fp.stream(source(spark, tmp_path))

    def counted(process):
        return clicks.key_by("user").process(process, name="count").write("memory")

    query = counted(Count()).start(state=tmp_path / "state", slots=3, settings=FAST)
    query.process_all_available()
    most = sum(range(4, 20, 5))
    assert query.control(Most(), run="first") == most
    assert query.control(Most(fp.Tag("small"))) == fp.Tag("small")
    assert query.control(Most(fp.Rescale(2))) == fp.Rescale(2)
    query.control(Most(fp.Update(counted(Doubled()))))
    rows = after(query, tmp_path, 1)
    assert max(row["twice"] for row in rows) == 2 * max(row["total"] for row in rows)
    assert query.progress[-1].slots == 2
    assert query.manifest.tags == {"small": 1}
    assert [each.note.kind for each in query.manifest.controls] == ["value", "tag", "rescale", "update"]
    with pytest.raises(BadInput, match="control operation most cannot be sent to tasks of Spark"):
        query.control(Most(clicks))
    with pytest.raises(UserError, match="TypeError in on_slot of control operation failing, slot 0"):
        query.control(Failing())
    assert query.control(Most(), run="first") == most
    query.stop()
    with pytest.raises(BadInput, match="this one has ended: read its state"):
        query.control(Most())


class Failing(Most):
    def on_slot(self, state, ctx):
        raise TypeError("no")
