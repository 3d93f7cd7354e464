"""Aggregates against DuckDB, however the rows are split into parts that are combined."""

import math
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.operators.aggregates import functions as fp
from floodplain.operators.aggregates.aggregation import Aggregation
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.kernel.segments import Groups, groups_of

GROUPS = 7


def rows_of(seed: int, count: int = 2000) -> pa.Table:
    rng = np.random.default_rng(seed)
    holes = rng.random(count) < 0.2
    doubles = np.where(rng.random(count) < 0.05, np.nan, np.round(rng.normal(0, 50, count), 2))
    words = np.array(["", "a", "ab", "é", "z", "Zebra"])[rng.integers(0, 6, count)]
    return pa.table(
        {
            "g": rng.integers(0, GROUPS, count),
            "i": pa.array(rng.integers(-50, 50, count).astype(np.int32), mask=holes),
            "l": pa.array(rng.integers(0, 1 << 40, count), mask=rng.random(count) < 0.5),
            "d": pa.array(doubles, mask=holes),
            "f": pa.array(rng.integers(0, 9, count).astype(np.float32) / 4),
            "s": pa.array(words, pa.string(), mask=rng.random(count) < 0.1),
            "m": pa.array(
                [Decimal(int(cents)) / 100 for cents in rng.integers(-999, 999, count)], pa.decimal128(7, 2), mask=holes
            ),
            "t": pa.array(rng.integers(0, 300, count) * 1_000_000, pa.timestamp("us", "UTC")),
            "b": pa.array(rng.random(count) < 0.3, mask=rng.random(count) < 0.1),
        }
    )


def aggregated(rows: pa.Table, named: dict[str, Aggregate], parts: int, seed: int = 0) -> dict[int, dict]:
    """Each part is aggregated by itself, in any order; then the partials are combined, two parts at a time."""
    aggregation = Aggregation(named).bind(rows.schema, "t")
    rng = np.random.default_rng(seed)
    part_of_row = rng.integers(0, parts, len(rows))
    kept: tuple[np.ndarray, list[pa.Array]] | None = None
    for part in range(parts):
        some = rows.filter(pa.array(part_of_row == part))
        order = np.argsort(some["g"].to_numpy(), kind="stable")
        some = some.take(pa.array(order)).combine_chunks()
        number = some["g"].to_numpy()
        groups = groups_of(number)
        partials = aggregation.of(lambda name, some=some: some[name].combine_chunks(), groups)
        assert [each.type for each in partials] == [field.type for field in aggregation.partial]
        kept = _combined(aggregation, kept, (number[groups.starts], partials))
    assert kept is not None
    results = aggregation.results(kept[1])
    assert {name: column.type for name, column in results.items()} == {field.name: field.type for field in aggregation.output}
    return dict(zip(kept[0].tolist(), pa.table(results).to_pylist(), strict=True))


def _combined(aggregation, kept, more):
    if kept is None:
        return more
    number = np.concatenate([kept[0], more[0]])
    order = np.argsort(number, kind="stable")
    partials = [pa.concat_arrays(pair).take(pa.array(order)) for pair in zip(kept[1], more[1], strict=True)]
    groups = groups_of(number[order])
    return number[order][groups.starts], aggregation.combine(partials, groups)


def by_duckdb(rows: pa.Table, **columns: str) -> dict[int, dict]:
    chosen = ", ".join(f"{expression} as {name}" for name, expression in columns.items())
    found = duckdb.sql(f"select g, {chosen} from rows group by g").to_arrow_table().to_pylist()
    return {row.pop("g"): row for row in found}


def same(found: dict[int, dict], expected: dict[int, dict]) -> None:
    assert found.keys() == expected.keys()
    for group, row in expected.items():
        for name, value in row.items():
            got = found[group][name]
            if isinstance(value, float):
                assert got is not None and (
                    math.isclose(got, value, rel_tol=1e-9, abs_tol=1e-9) or (got != got and value != value)
                ), (group, name, got, value)
            else:
                assert got == value, (group, name, got, value)


CASES = {
    "count": (fp.count(), "count(*)"),
    "count_i": (fp.count("i"), "count(i)"),
    "count_is": (fp.count("i", "s"), "count(case when i is not null and s is not null then 1 end)"),
    "count_b": (fp.count(where="b"), "count(*) filter (b)"),
    "sum_i": (fp.sum("i"), "sum(i)::bigint"),
    "sum_d": (fp.sum("f"), "sum(f::double)"),
    "sum_b": (fp.sum("i", where="b"), "(sum(i) filter (b))::bigint"),
    "sum_m": (fp.sum("m"), "sum(m)::decimal(17, 2)"),
    "avg_i": (fp.avg("i"), "avg(i)"),
    "avg_f": (fp.avg("f", where="b"), "avg(f::double) filter (b)"),
    "min_i": (fp.min("i"), "min(i)"),
    "max_l": (fp.max("l"), "max(l)"),
    "min_d": (fp.min("d"), "min(d)"),
    "max_d": (fp.max("d"), "max(d)"),
    "min_f": (fp.min("f"), "min(f)"),
    "max_s": (fp.max("s"), "max(s)"),
    "min_s": (fp.min("s", where="b"), "min(s) filter (b)"),
    "max_m": (fp.max("m"), "max(m)"),
    "max_t": (fp.max("t"), "max(t)"),
    "min_t": (fp.min("t"), "min(t)"),
    "max_b": (fp.max("b"), "bool_or(b)"),
    "first_s": (fp.first("s"), "list(s order by t, s nulls first)[1]"),
    "last_s": (fp.last("s"), "list(s order by t desc, s desc nulls last)[1]"),
    "first_l": (fp.first("l", by="i"), "list(l order by i, l nulls first) filter (i is not null)[1]"),
    "min_by": (fp.min_by("s", "f"), "list(s order by f, s nulls first)[1]"),
    "max_by": (fp.max_by("l", "d"), "list(l order by d desc, l desc nulls last) filter (d is not null)[1]"),
    "distinct_i": (fp.count_distinct("i"), "count(distinct i)"),
    "distinct_s": (fp.count_distinct("s", where="b"), "count(distinct s) filter (b)"),
    "distinct_d": (fp.count_distinct("d"), "count(distinct d)"),
    "distinct_is": (fp.count_distinct("i", "s"), "count(distinct (i, s)) filter (i is not null and s is not null)"),
    "top_i": (fp.top_k("i", 3), "list(i order by i desc)[1:3]"),
    "top_s": (fp.top_k("s", 2, by="i"), "list(s order by i desc, s desc) filter (i is not null and s is not null)[1:2]"),
    "collect_i": (fp.collect("i"), "list(i order by t, i) filter (i is not null)"),
    "collect_s": (fp.collect("s", by="l", where="b"), "list(s order by l, s) filter (b and s is not null and l is not null)"),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_duckdb(name):
    aggregate, sql = CASES[name]
    rows = rows_of(len(name))
    if ") filter" in sql and sql.endswith("]"):
        inner, _, index = sql.rpartition("[")
        sql = f"({inner})[{index}"
    expected = by_duckdb(rows, x=sql)
    if name == "collect_s":
        expected = {group: {"x": row["x"] or []} for group, row in expected.items()}
    for parts in (1, 5):
        same(aggregated(rows, {"x": aggregate}, parts), expected)


def test_all_of_them_at_once():
    rows = rows_of(99)
    found = aggregated(rows, {name: aggregate for name, (aggregate, _) in CASES.items()}, 3)
    assert found.keys() == set(range(GROUPS))
    for name, (aggregate, _) in CASES.items():
        alone = aggregated(rows, {"x": aggregate}, 1)
        for group, row in found.items():
            assert repr(row[name]) == repr(alone[group]["x"]) or math.isclose(row[name], alone[group]["x"], rel_tol=1e-9), name


def test_nothing_was_seen():
    rows = pa.table({"g": [0, 0], "i": pa.nulls(2, pa.int64()), "t": pa.nulls(2, pa.timestamp("us", "UTC")), "b": [False, None]})
    named = {
        "n": fp.count(where="b"),
        "s": fp.sum("i"),
        "a": fp.avg("i"),
        "x": fp.max("i"),
        "y": fp.min("g", where="b"),
        "f": fp.first("i"),
        "d": fp.count_distinct("i"),
        "h": fp.approx_count_distinct("i"),
        "q": fp.approx_quantile("i", 0.5),
        "r": fp.approx_quantile("i", [0.5, 1.0]),
        "k": fp.top_k("i", 2),
        "c": fp.collect("i"),
    }
    (row,) = aggregated(rows, named, 1).values()
    assert row == {
        "n": 0,
        "s": None,
        "a": None,
        "x": None,
        "y": None,
        "f": None,
        "d": 0,
        "h": 0,
        "q": None,
        "r": None,
        "k": [],
        "c": [],
    }


@pytest.mark.parametrize("many", [1, 50, 3_000, 200_000])
def test_about_how_many_different_values(many):
    """Four standard deviations; and the same whatever the parts and the order."""
    rng = np.random.default_rng(many)
    rows = pa.table({"g": np.zeros(many * 2, int), "x": rng.permutation(np.repeat(np.arange(many), 2))})
    for rsd in (0.05, 0.01):
        named = {"x": fp.approx_count_distinct("x", rsd)}
        rows = rows.append_column("t", pa.array(np.arange(len(rows)))) if "t" not in rows.column_names else rows
        found = [aggregated(rows, named, parts, seed)[0]["x"] for parts, seed in ((1, 0), (7, 1), (7, 2))]
        assert len(set(found)) == 1
        assert abs(found[0] - many) <= max(4 * rsd * many, 0.5)


@pytest.mark.parametrize("error", [0.01, 0.001])
def test_about_which_quantile(error):
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.lognormal(3, 2, 5000), -rng.lognormal(1, 1, 3000), np.zeros(100)])
    rows = pa.table({"g": np.zeros(len(values), int), "x": rng.permutation(values), "t": np.arange(len(values))})
    shares = [0.0, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0]
    named = {"x": fp.approx_quantile("x", shares, error)}
    found = [aggregated(rows, named, parts, seed)[0]["x"] for parts, seed in ((1, 0), (7, 1), (7, 2))]
    assert found[0] == found[1] == found[2]
    exact = np.quantile(values, shares, method="lower")
    assert np.allclose(found[0], exact, rtol=error * 1.0001, atol=1e-9)


class Spread(Aggregate):
    """The greatest value less the least: an aggregate of a user's own."""

    def output(self, types):
        return types[0]

    def partial(self, types):
        return types[0], types[0]

    def of(self, columns, groups: Groups):
        return fp.min("x").of(columns, groups) + fp.max("x").of(columns, groups)

    def combine(self, partials, groups: Groups):
        return fp.min("x").of(partials[:1], groups) + fp.max("x").of(partials[1:], groups)

    def result(self, partials):
        return pc.subtract(partials[1], partials[0])


def test_an_aggregate_of_a_users_own():
    rows = rows_of(5)
    same(aggregated(rows, {"x": Spread(("l",), "b")}, 4), by_duckdb(rows, x="max(l) filter (b) - min(l) filter (b)"))


def test_what_cannot_be_aggregated_is_refused():
    rows = rows_of(1, 10).schema
    for named, error, text in (
        ({"x": fp.sum("s")}, SchemaMismatch, "aggregate x: a sum needs a number, not string"),
        ({"x": fp.avg("s")}, SchemaMismatch, "aggregate x: an average needs a number, not string"),
        ({"x": fp.sum("nobody")}, BadInput, "aggregate x: there is no column nobody; there are: g, i"),
        ({"x": fp.count(where="i")}, SchemaMismatch, "where must be true or false"),
        ({}, BadInput, "there are no aggregates"),
    ):
        with pytest.raises(error, match=text):
            Aggregation(named).bind(rows, "t")
    with pytest.raises(BadInput, match="needs event time"):
        Aggregation({"x": fp.first("i")}).bind(rows, None)
    for wrong in (lambda: fp.top_k("i", 0), lambda: fp.approx_quantile("i", 2.0), lambda: fp.approx_count_distinct("i", 0.9)):
        with pytest.raises(BadInput):
            wrong()
    big = pa.table({"g": [0, 0], "x": [2**62, 2**62], "t": [0, 1]})
    with pytest.raises(BadInput, match="overflows a long"):
        aggregated(big, {"x": fp.sum("x")}, 1)
