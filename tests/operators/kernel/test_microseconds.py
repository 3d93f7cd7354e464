"""Rows are compared to the microsecond, watermarks to the millisecond: operators against plain Python and DuckDB."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floodplain as fp
from floodplain.eventtime.times import END_MS, NONE_MS, joined_us, split_us
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.operators.ranking.deduplicate import Dedup
from floodplain.operators.windows.aggregate import WindowAggregate
from floodplain.state.tables import tables_for
from floodplain.store.rows.evolution import evolve
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = "k string, at timestamp, n long"
SEEDS = range(12)


def moment(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def near(random: Random, most_ms: int) -> int:
    """A time at or beside the border of a millisecond, or within it."""
    return max(random.randrange(most_ms) * 1000 + random.choice([0, 0, 1, 2, 499, 998, 999, -1, -2]), 0)


def epochs(seed: int, count: int = 60, spread_ms: int = 8) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Rows in some disorder and watermarks that leave some of them late."""
    random, watermark, n = Random(seed), 0, 0
    for step in range(count // 6):
        rows = []
        for _ in range(random.randrange(1, 9)):
            n += 1
            rows.append({"k": random.choice("ab"), "at": moment(step * 3000 + near(random, spread_ms)), "n": n})
        watermark = max(watermark, step * 3 - random.randrange(3))
        yield rows, watermark


class Tells(KeyedProcess):
    output = "k string, n long"

    def process(self, key, rows, ctx):
        yield from ((key.k, row.n) for row in rows)


def too_old(row: dict[str, Any], watermark: int | None) -> bool:
    return watermark is not None and micros(row["at"]) // 1000 <= watermark


def by_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["at"])


class Waiting:
    """A key's rows that are put in order, by definition."""

    def __init__(self, order: Any) -> None:
        self.order, self.rows, self.mark, self.late = order, [], -1, []

    def take(self, rows: list[dict[str, Any]], watermark: int) -> list[int]:
        good = [row for row in rows if micros(row["at"]) > self.mark]
        self.late += [row["n"] for row in rows if micros(row["at"]) <= self.mark]
        self.rows += good
        out = [row for row in self.rows if too_old(row, watermark)]
        self.rows = by_time([row for row in self.rows if not too_old(row, watermark)])
        limit = -1
        if self.order.rows is not None and len(self.rows) > self.order.rows:
            limit = micros(self.rows[-self.order.rows - 1]["at"])
        if self.order.time_ms is not None and self.rows:
            limit = max(limit, micros(self.rows[-1]["at"]) - self.order.time_ms * 1000)
        early = [row for row in self.rows if micros(row["at"]) <= limit] if rows else []
        self.rows = [row for row in self.rows if row not in early]
        self.mark = max([self.mark, *(micros(row["at"]) for row in early)])
        return [row["n"] for row in by_time(out + early)]


@pytest.mark.parametrize(
    "order", [fp.in_order(), fp.in_order(rows=3), fp.in_order(time="2 ms"), fp.in_order(rows=4, time="3 ms")]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_in_order_are_in_the_order_of_microseconds(seed, order):
    kit = ProcessKit(Tells(), rows=ROWS, keys=["k"], event_time="at", in_order=replace(order), late=True)
    model, before, ties = {key: Waiting(order) for key in "ab"}, None, 0
    for rows, watermark in epochs(seed):
        taken = [row for row in rows if not too_old(row, before)]
        made = kit.epoch(rows, watermark_ms=watermark)
        for key, waiting in model.items():
            mine = [row for row in taken if row["k"] == key]
            expected, found = waiting.take(mine, watermark), [row["n"] for row in made if row["k"] == key]
            assert sorted(found) == sorted(expected)
            times = {row["n"]: row["at"] for row in [*(r for rs, _ in epochs(seed) for r in rs)]}
            assert [times[n] for n in found] == [times[n] for n in expected]
            ties += len({micros(times[n]) // 1000 for n in found}) < len(found)
        before = watermark
    assert ties, "some rows shared a millisecond"


@pytest.mark.parametrize("within_ms", [1, 2, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_repeats_are_within_so_many_microseconds(seed, within_ms):
    kit = PipelineKit(
        lambda s: s.watermark("at", "0 ms").dedup("k", within=timedelta(milliseconds=within_ms)).write("memory"), rows=ROWS
    )
    last: dict[str, int] = {}
    before = None
    for rows, watermark in epochs(seed):
        expected = []
        taken = sorted((row for row in rows if not too_old(row, before)), key=lambda row: (row["at"], row["n"]))
        for row in taken:
            at = micros(row["at"])
            if row["k"] not in last or at >= last[row["k"]] + within_ms * 1000:
                last[row["k"]] = at
                expected.append(row["n"])
        made = kit.epoch(rows, watermark_ms=watermark or None)["output"]
        assert sorted(row["n"] for row in made) == sorted(expected)
        before = watermark or None
        for key in [key for key, at in last.items() if before is not None and at // 1000 + within_ms <= watermark]:
            del last[key]


def sessions_of(rows: list[dict[str, Any]], gap_us: int) -> set[tuple[str, int, int, int]]:
    made = set()
    for key in "ab":
        times = sorted(micros(row["at"]) for row in rows if row["k"] == key)
        start = 0
        for i in range(1, len(times) + 1):
            if i == len(times) or times[i] - times[i - 1] > gap_us:
                if i > start:
                    made.add((key, times[start], times[i - 1] + gap_us, i - start))
                start = i
    return made


@pytest.mark.parametrize("gap_ms", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_are_apart_by_more_than_the_gap(seed, gap_ms):
    rows = [row for given, _ in epochs(seed) for row in given]
    rows = [row | {"at": moment(micros(row["at"]) + i // 6 * 2000)} for i, row in enumerate(rows)]
    kit = PipelineKit(
        lambda s: s.watermark("at", "0 ms").key_by("k").window(fp.session(f"{gap_ms} ms")).agg(n=fp.count()).write("memory"),
        rows=ROWS,
    )
    made = []
    for start in range(0, len(rows), 7):
        made += kit.epoch(rows[start : start + 7], watermark_ms=0)["output"]
    made += kit.epoch([], watermark_ms=10**6)["output"]
    found = {(row["k"], micros(row["window_start"]), micros(row["window_end"]), row["n"]) for row in made}
    assert found == sessions_of(rows, gap_ms * 1000) and len(made) == len(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_of_time_and_of_rows_have_the_rows_that_are_theirs(seed):
    rows = [row for given, _ in epochs(seed) for row in given]
    given = pa.Table.from_pylist(rows, pa.schema({"k": pa.string(), "at": pa.timestamp("us", "UTC"), "n": pa.int64()}))  # noqa: F841
    timed = PipelineKit(
        lambda s: s.watermark("at", "0 ms").key_by("k").window(fp.tumbling("2 ms")).agg(n=fp.count()).write("memory"), rows=ROWS
    )
    timed.epoch(rows)
    made = timed.epoch([], watermark_ms=10**6)["output"]
    query = 'select k, epoch_us("at") // 2000 * 2000, count(*) from given group by all'
    expected = set(duckdb.sql(query).fetchall())
    assert {(row["k"], micros(row["window_start"]), row["n"]) for row in made} == expected
    counted = PipelineKit(
        lambda s: s.watermark("at", "0 ms").key_by("k").window(fp.count_window(3)).agg(n=fp.count()).write("memory"), rows=ROWS
    )
    made = counted.epoch(rows)["output"]
    for key in "ab":
        times = sorted(micros(row["at"]) for row in rows if row["k"] == key)
        full = [(times[i], times[i + 2]) for i in range(0, len(times) - 2, 3)]
        assert [(micros(row["window_start"]), micros(row["window_end"])) for row in made if row["k"] == key] == full


PAIRS = "side string, k string, at timestamp, n long"


@pytest.mark.parametrize("how", ["within", "as_of"])
@pytest.mark.parametrize("seed", SEEDS)
def test_joins_go_by_microseconds(seed, how):
    random = Random(seed)
    rows = [row | {"side": random.choice("lr")} for given, _ in epochs(seed) for row in given]
    options = {"within": (timedelta(milliseconds=-1), timedelta(milliseconds=2))} if how == "within" else {"as_of": True}

    def joined(s):
        timed = s.watermark("at", "0 ms")
        left, right = (timed.where(f"side = '{side}'") for side in "lr")
        return left.join(right, "k", suffixes=("", "_r"), **options).write("memory")

    kit, made = PipelineKit(joined, rows=PAIRS), []
    for start in range(0, len(rows), 9):
        made += kit.epoch(rows[start : start + 9], watermark_ms=0)["output"]
    made += kit.epoch([], watermark_ms=10**6)["output"]
    lefts, rights = ([row for row in rows if row["side"] == side] for side in "lr")
    expected = []
    for left in lefts:
        mine = [right for right in rights if right["k"] == left["k"]]
        if how == "within":
            expected += [(left["n"], one["n"]) for one in mine if -1000 <= micros(one["at"]) - micros(left["at"]) <= 2000]
        else:
            older = [one for one in mine if one["at"] <= left["at"]]
            expected += [(left["n"], max(older, key=lambda one: (one["at"], one["n"]))["n"])] if older else []
    assert sorted((row["n"], row["n_r"]) for row in made) == sorted(expected)


def _schema(states: dict[str, Any]):
    (schema,) = tables_for("op", "k string", states).schemas
    return schema


def test_a_state_in_milliseconds_is_read_as_such():
    """What is beyond milliseconds has columns and fields of its own, which are null in what is older."""
    within = Dedup(within_ms=5).states()
    older = {"at_ms": within["at_ms"]}
    assert [field.name for field in evolve(_schema(older), _schema(within)).values] == ["at_ms", "at_us"]
    rows = pa.schema({"k": pa.string(), "at": pa.timestamp("us", "UTC")})
    for windows in (fp.session("1 ms"), fp.count_window(2)):
        now = WindowAggregate(windows, {"n": fp.count()}).bind(rows, ("k",), "at").states()
        element = now["windows"].arrow.value_type
        assert len([field for field in element if field.name.endswith("_rest")]) == 2
        before = pa.list_(pa.struct([field for field in element if not field.name.endswith("_rest")]))
        assert evolve(_schema({**now, "windows": replace(now["windows"], type=before)}), _schema(now)).id == 2


@given(st.lists(st.integers(-(1 << 53), 1 << 53) | st.sampled_from([NONE_MS, END_MS])))
def test_times_are_split_and_joined_without_loss(times):
    given_us = np.array(times, np.int64)
    whole, rest = split_us(given_us)
    assert joined_us(whole, rest).tolist() == times
    assert ((rest >= 0) & (rest < 1000)).all()
