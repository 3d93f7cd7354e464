"""Distinct counts of one column under several conditions are computed as one, and must be what each is by itself."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from floodplain.errors import SchemaMismatch
from floodplain.operators.aggregates import functions as fp
from floodplain.operators.aggregates.aggregation import Aggregation, merged
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.running import RunningAggregate
from floodplain.operators.kernel.segments import groups_of
from floodplain.testing.process_kit import ProcessKit

OWNERS = 9
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KINDS = {
    "int8": lambda rng, n: pa.array(rng.integers(-100, 100, n).astype(np.int8)),
    "long": lambda rng, n: pa.array(rng.integers(-40, 40, n) * 10**9),
    "far apart": lambda rng, n: pa.array(rng.choice(np.array([-(2**63), -1, 0, 7, 2**63 - 1]), n)),
    "holes": lambda rng, n: pa.array(rng.integers(0, 30, n), mask=rng.random(n) < 0.3),
    "time": lambda rng, n: pa.array(
        [DAY + dt.timedelta(seconds=int(s)) for s in rng.integers(0, 50, n)], pa.timestamp("us", "UTC")
    ),
    "date": lambda rng, n: pa.array(rng.integers(0, 50, n).astype(np.int32)).view(pa.date32()),
    "string": lambda rng, n: pa.array(rng.choice(np.array(["", "a", "b", "ä", "long and longer"]), n), pa.string()),
    "double": lambda rng, n: pa.array(rng.choice(np.array([0.0, -0.0, 1.5, np.nan, np.inf]), n)),
    "boolean": lambda rng, n: pa.array(rng.random(n) < 0.5),
}


def rows_of(kind: str, conditions: int, count: int = 1500) -> pa.Table:
    rng = np.random.default_rng(len(kind) + conditions)
    columns = {f"c{i}": pa.array(rng.random(count) < 0.4, mask=rng.random(count) < 0.1) for i in range(conditions)}
    return pa.table(
        {"g": rng.integers(0, OWNERS, count), "x": KINDS[kind](rng, count), "y": rng.integers(0, 3, count), **columns}
    )


def expected(rows: pa.Table, named: dict[str, Aggregate]) -> dict[int, dict]:
    found = {owner: {name: set() for name in named} for owner in rows["g"].unique().to_pylist()}
    for row in rows.to_pylist():
        for name, count in named.items():
            values = [repr(row[column]).replace("-0.0", "0.0") for column in count.arguments if row[column] is not None]
            if len(values) == len(count.arguments) and (count.where is None or row[count.where]):
                found[row["g"]][name].add(tuple(values))
    return {owner: {name: len(seen) for name, seen in counts.items()} for owner, counts in found.items()}


def counted(rows: pa.Table, named: dict[str, Aggregate], epochs: int) -> dict[int, dict]:
    """As an operator does it: each epoch's rows into what was kept."""
    aggregation = Aggregation(named).bind(rows.schema, None)
    kept = [pa.nulls(OWNERS, field.type) for field in aggregation.partial]
    known = np.empty(0, np.int64)
    for epoch in range(epochs):
        some = rows.slice(epoch * len(rows) // epochs, (epoch + 1) * len(rows) // epochs - epoch * len(rows) // epochs)
        some = some.take(pa.array(np.argsort(some["g"].to_numpy(), kind="stable"))).combine_chunks()
        owner = some["g"].to_numpy()
        groups = groups_of(owner)
        fresh = aggregation.of(lambda name, some=some: some[name].combine_chunks(), groups)
        parts = [(known, [column.take(pa.array(known)) for column in kept]), (owner[groups.starts], fresh)]
        kept = merged(aggregation, np.arange(OWNERS), parts)
        assert [column.type for column in kept] == [field.type for field in aggregation.partial]
        known = np.union1d(known, owner)
    results = pa.table(aggregation.results(kept)).to_pylist()
    return {int(owner): results[owner] for owner in known}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("conditions", [0, 1, 3, 9])
@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_each_count_is_that_of_its_own_condition(kind, conditions, epochs):
    rows = rows_of(kind, conditions)
    named: dict[str, Aggregate] = {f"n{i}": fp.count_distinct("x", where=f"c{i}") for i in range(conditions)}
    assert counted(rows, named | {"all": fp.count_distinct("x")}, epochs) == expected(
        rows, named | {"all": fp.count_distinct("x")}
    )
    if conditions > 1:
        assert counted(rows, named, epochs) == expected(rows, named)


@pytest.mark.parametrize("kind", ["holes", "string"])
def test_combinations_of_columns(kind):
    rows = rows_of(kind, 2)
    named = {
        "xy": fp.count_distinct("x", "y"),
        "of": fp.count_distinct("x", "y", where="c0"),
        "yx": fp.count_distinct("y", "x", where="c1"),
        "x": fp.count_distinct("x"),
    }
    assert counted(rows, named, 3) == expected(rows, named)
    assert [part.names for part in Aggregation(named).bind(rows.schema, None).parts] == [("xy", "of"), ("yx",), ("x",)]


def test_more_conditions_than_one_number_can_tell_apart():
    rows = rows_of("long", 70, 400)
    named = {f"n{i}": fp.count_distinct("x", where=f"c{i}") for i in range(70)}
    assert counted(rows, named, 3) == expected(rows, named)


def test_a_value_is_kept_once_however_many_conditions_there_are():
    rows = rows_of("long", 3)
    named = {f"n{i}": fp.count_distinct("x", where=f"c{i}") for i in range(3)}
    for given, values in ((named, "n0_0"), (named | {"a": fp.count_distinct("x")}, "a")):
        partial = Aggregation(given).bind(rows.schema, None).partial
        assert [field.name for field in partial] == ["n0", "n1", "n2", values]
        assert [field.type.value_type for field in partial] == [*[pa.bool_()] * 3, pa.int64()]


ROWS = "k string, x long, ts timestamp, b boolean, c boolean"
ALL, B, C = {"n": fp.count_distinct("x")}, {"b": fp.count_distinct("x", where="b")}, {"c": fp.count_distinct("x", where="c")}


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [
        (ALL, ALL | B, {"n": 3, "b": 1}),
        (ALL | B, B | C | ALL, {"b": 3, "c": 1, "n": 3}),
        (ALL | C | B, ALL | B, {"n": 3, "b": 3}),
        (ALL | B, ALL, {"n": 3}),
        (ALL | {"m": fp.count_distinct("x")}, {"m": fp.count_distinct("x")}, {"m": 3}),
        (B | C, B | C, {"b": 3, "c": 1}),
        (B | C, C | B, "state c: table kit has it, but not c_0"),
        (B, ALL | B, "state b: table kit has it, but not n"),
        (ALL | B, B, "column b is list<element: bool> and cannot become"),
        (B | C, ALL | B, "state b: table kit has it, but not n"),
    ],
)
def test_counts_come_and_go_or_are_refused(tmp_path, first, then, found):
    """Two values were there before; one more comes, and one of them once more."""

    def kit(aggregates):
        return ProcessKit(RunningAggregate(aggregates), rows=ROWS, keys=["k"], event_time="ts", location=str(tmp_path))

    def row(x):
        return {"k": "a", "x": x, "ts": DAY, "b": True, "c": x == 3}

    kit(first).epoch([row(1), row(2)])
    if isinstance(found, str):
        with pytest.raises(SchemaMismatch, match=found):
            kit(then)
    else:
        assert kit(then).epoch([row(3)]) == [{"k": "a", **found}]
