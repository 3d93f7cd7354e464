"""Different values counted with Spark's help: rows of a key that are put together value by value."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.operators.aggregation import Aggregation
from floodplain.operators.combining import AggregateCombiner
from floodplain.spark.partials import Measured, combiner_of
from floodplain.spark.worker import TaskReport
from tests.spark.files import put_table

AT = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "k string, user long, name string, amount long, dear boolean, at timestamp"


def some_rows(seed: int, count: int) -> pa.Table:
    """With nulls in every column but the time."""
    rng = np.random.default_rng(seed)

    def column(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.1 else values[n] for n in rng.integers(0, len(values), count)]

    return pa.table(
        {
            "k": pa.array(column(["a", "b", "c"]), pa.string()),
            "user": pa.array(column(list(range(40))), pa.int64()),
            "name": pa.array(column(["x", "y", "", "z" * 50]), pa.string()),
            "amount": pa.array(column(list(range(100))), pa.int64()),
            "dear": pa.array(column([True, False]), pa.bool_()),
            "at": pa.array([AT + timedelta(seconds=int(s)) for s in rng.integers(0, 60, count)], pa.timestamp("us", "UTC")),
        }
    )


AGGREGATES = {
    "users": fp.count_distinct("user"),
    "dear_users": fp.count_distinct("user", where="dear"),
    "names": fp.count_distinct("name", where="dear"),
    "n": fp.count(),
    "dear_n": fp.count(where="dear"),
    "total": fp.sum("amount"),
    "mean": fp.avg("amount"),
    "best": fp.max_by("name", "amount"),
}


@pytest.mark.spark
@pytest.mark.parametrize("windows", [None, fp.sliding("20 seconds", "10 seconds")])
@pytest.mark.parametrize("chosen", [tuple(AGGREGATES), ("users", "dear_users", "total")])
def test_values_are_counted_as_without(spark, tmp_path, windows, chosen):
    for number in range(3):
        put_table(tmp_path / "in", number, some_rows(number, 400))
    closing = [{"k": "a", "at": AT + timedelta(hours=hour)} for hour in (1, 2)]
    for number, row in enumerate(closing, 3):
        put_table(tmp_path / "in", number, pa.Table.from_pylist([row], some_rows(0, 0).schema))
    source = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    rows = fp.stream(source).watermark("at", "1 minute").key_by("k")
    keyed = rows if windows is None else rows.window(windows)
    made = {name: AGGREGATES[name] for name in chosen}
    steps = {name: keyed.agg(partial=name == "together", name=name, **made) for name in ("together", "apart")}
    output = steps["together"].write("memory", name="one").also(steps["apart"].write("memory", name="other"))
    query = output.start(state=tmp_path / "state", slots=2, trigger={"availableNow": True})
    query.await_termination()
    query.stop()
    assert query.exception is None
    measured = query._driver.epochs._compiled.measured
    assert measured["together"].values > 0 and measured["apart"].values == 0
    assert [progress.rows for progress in query.progress][:3] == [800] * 3
    one, other = (sorted(map(repr, query.sinks[name].table().to_pylist())) for name in ("one", "other"))
    assert one == other and len(one) > 3


def combiner(**aggregates: Any) -> AggregateCombiner:
    rows = some_rows(1, 1).schema.append(pa.field("real", pa.float64()))
    return AggregateCombiner(Aggregation(aggregates).fitted(rows, None), ("k",), None, None)


def test_spark_is_asked_where_it_can_help():
    assert combiner(**AGGREGATES).of_values() is not None
    assert combiner(n=fp.count()).of_values() is None, "Spark puts those together whole"
    assert combiner(users=fp.count_distinct("user"), some=fp.collect("name", by="amount")).of_values() is None
    assert combiner(keys=fp.count_distinct("k")).of_values() is None
    assert combiner(users=fp.count_distinct("user", where="dear"), dear=fp.count_distinct("dear")).of_values() is None
    assert combiner(pairs=fp.count_distinct("user", "name")).of_values() is None
    assert combiner(reals=fp.count_distinct("real")).of_values() is None
    four = {name: fp.count_distinct(name) for name in ("user", "name", "amount", "at")}
    assert combiner(**four).of_values() is None


class Counted:
    combiner = combiner(users=fp.count_distinct("user"))


def decided(epochs: int, *, keys: int, rows: int, values: int) -> list[str]:
    """How rows are put together epoch after epoch, if there are so many different values of all keys."""
    last, found = None, []
    for _ in range(epochs):
        made = combiner_of(Counted, ["main"], last)
        received = rows if made is None else values if made.by_value else keys
        last = Measured.of([TaskReport(slot=0, rows=rows, keys=keys, received=received)], made, last)
        found.append("apart" if made is None else "by value" if made.by_value else "by key")
    return found


def test_values_that_are_few_stay_apart_and_others_are_tried_now_and_then():
    assert decided(6, keys=10, rows=400_000, values=20_000) == ["apart"] + ["by value"] * 5
    found = decided(60, keys=10, rows=400_000, values=390_000)
    assert found[:6] == ["apart", "by value"] + ["by key"] * 4
    assert 2 <= found.count("by value") <= 4
    assert decided(6, keys=200_000, rows=400_000, values=300_000) == ["apart"] * 6
