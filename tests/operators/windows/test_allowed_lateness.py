"""Rows that are late and still taken: by operators that forget, for as long as they were told to."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.eventtime.windows import tumbling
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit
from tests.operators.joins.joining import ROWS, SOME, ads, click, expected, in_order, play, published, shown, within
from tests.operators.joins.test_join_kinds import as_of, in_windows, with_ms
from tests.operators.ranking.test_deduplicate import naive
from tests.operators.shaken import COLUMNS, bag, content, events

LATENESS_MS = 30


@pytest.mark.parametrize("how", ["inner", "full", "anti"])
@settings(max_examples=12, deadline=None)
@given(rows=SOME, cuts=st.lists(st.integers(0, 39), max_size=6), disorder=st.integers(1, 30))
def test_joins_find_all_partners_of_rows_that_are_late(how, rows, cuts, disorder):
    """The watermark is at the newest row, and all others are late for it."""
    rows, late = in_order(rows, disorder), f"{disorder} ms"
    joined = PipelineKit(ads(how, within=("-7 ms", "3 ms"), lateness=late), rows=ROWS)
    windowed = PipelineKit(ads(how, window=tumbling("10 ms"), lateness=late), rows=ROWS)
    for kit in (joined, windowed):
        play(kit, rows, cuts, 0)
        assert sum(epoch.late for epoch in kit.progress) == 0
        assert kit.state("join__left") == kit.state("join__right") == []
    assert published(joined) == expected(rows, how, within(-7, 3))
    assert with_ms(published(windowed)) == in_windows(rows, how, tumbling("10 ms"))


@settings(max_examples=12, deadline=None)
@given(rows=SOME, cuts=st.lists(st.integers(0, 39), max_size=6), disorder=st.integers(1, 30))
def test_a_temporal_join_waits_for_versions_that_are_late(rows, cuts, disorder):
    rows = in_order(rows, disorder)
    kit = PipelineKit(ads("left", as_of=True, lateness=f"{disorder} ms"), rows=ROWS)
    play(kit, rows, cuts, 0)
    assert published(kit) == Counter(as_of(rows, "left"))


def test_what_waits_stays_in_the_state_for_that_much_longer():
    kit = PipelineKit(ads("left", late=True, within=("0 ms", "10 ms"), lateness="30 ms"), rows=ROWS)
    kit.epoch([shown(1, 5, 7), shown(2, 5)], watermark_ms=20)
    kit.epoch([], watermark_ms=44)
    assert len(kit.state("join__left")) == 2
    out = kit.epoch([click(1, 15), click(2, 14)], watermark_ms=45)
    assert [(row["ad"], row["user"]) for row in out["output"]] == [(1, "u"), (2, None)], "14 is late, even so"
    assert [row["reason"] for row in out["late"]] == ["late for join by 30 ms: the watermark was 1970-01-01T00:00:00.044Z"]
    assert kit.state("join__left") == []


def test_when_no_data_comes_nothing_is_due_before_the_lateness_is_over():
    def best(stream):
        timed = stream.watermark("at", "0 ms", policy="min").key_by("user")
        return timed.top(1, "n", mode="append", until="ends", lateness="30 ms").write("memory")

    kit = PipelineKit(best, rows="user string, n long, at long, ends long")
    kit.epoch([{"user": "a", "n": 1, "at": 44, "ends": 20}])
    assert not kit.tick(now_ms=1), "the watermark is 44 by now, and 50 is what it takes"
    kit.epoch([{"user": "b", "n": 1, "at": 50, "ends": 90}])
    assert kit.tick(now_ms=2) and not kit.tick(now_ms=3)
    assert [row["user"] for table in kit.sinks["output"].epochs.values() for row in table.to_pylist()] == ["a"]


@pytest.mark.parametrize("seed", range(3))
def test_dedup_takes_late_rows_and_remembers_for_longer(seed):
    given = events(seed, epochs=10, spread_ms=90)
    before = [-(1 << 62), *(epoch.watermark_ms - LATENESS_MS for epoch in given)]
    kept = [[row for row in epoch.rows if row["at"] > late] for epoch, late in zip(given, before, strict=False)]
    wanted = list(naive(kept, ["user", "page"], lambda row: (row["at"], *content(row, "at", "page")), 20))
    kit = PipelineKit(
        lambda s: s.watermark("at", "1 s").key_by("user").dedup("page", within="20 ms", lateness="30 ms").write("memory"),
        rows=COLUMNS,
    )
    for epoch, rows in zip(given, wanted, strict=True):
        assert bag(kit.epoch(epoch.rows, watermark_ms=epoch.watermark_ms)["output"]) == bag(rows)
    assert sum(progress.late for progress in kit.progress) == sum(len(epoch.rows) for epoch in given) - sum(map(len, kept))
    kit.epoch(watermark_ms=10**6)
    assert kit.state("dedup") == kit.state("dedup__event_timers") == []


class Visits(fp.KeyedProcess):
    """Counts, and tells the count at multiples of 20 ms."""

    count = fp.Value("long", default=0, ttl="25 ms", ttl_clock="event")
    pages = fp.Map("string", "long", ttl="25 ms", ttl_clock="event")
    output = "user string, n long, at long"

    def process(self, key, rows, ctx):
        self.count.set(self.count.get() + len(rows))
        for row in rows:
            self.pages.merge(row.page, 1)
        ctx.timer((ctx.event_time // 20 + 1) * 20)
        yield key.user, sum(self.pages.values()), None

    def on_timer(self, key, at, ctx):
        yield key.user, self.count.get(), at


class Plain(fp.KeyedProcess):
    output = "user string"


def twin(rows: Any) -> Any:
    """The same rows once more, as the other side of a join."""
    return rows.select("user", "seq", when="at")


OPERATORS: dict[str, Callable[[Any, str], Any]] = {
    "process": lambda rows, late: rows.key_by("user").process(Visits(), lateness=late),
    "last": lambda rows, late: rows.key_by("user").last(ttl="15 ms", mode="retract", lateness=late),
    "first": lambda rows, late: rows.key_by("user").first(ttl="15 ms", lateness=late),
    "dedup, the last": lambda rows, late: rows.dedup("user", keep="last", within="15 ms", lateness=late),
    "top": lambda rows, late: rows.key_by("user", "ends").top(2, "seq", mode="append", until="ends", lateness=late),
    "join": lambda rows, late: rows.join(
        twin(rows), "user", "full", within=("1 ms", "9 ms"), times=("at", "when"), suffixes=("", "_other"), lateness=late
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_does_what_it_would_do_if_the_watermark_were_that_much_behind(name):
    def kit(late: str) -> PipelineKit:
        columns = "user string, page string, seq int, at long, ends long"
        return PipelineKit(lambda s: OPERATORS[name](s.watermark("at", "0 ms"), late).write("memory"), rows=columns, slots=2)

    allowed, behind, strict = kit(f"{LATENESS_MS} ms"), kit("0 ms"), kit("0 ms")
    rng, watermark_ms, late = Random(name), LATENESS_MS, Counter[str]()
    for number in range(12):
        rows = [
            {
                "user": rng.choice("abc"),
                "page": rng.choice("xy"),
                "seq": rng.randrange(9),
                "at": max(1, 100 + number * 15 + rng.randrange(-60, 15)),
            }
            for _ in range(rng.randrange(6))
        ]
        rows = [{**row, "ends": row["at"] // 20 * 20 + 20} for row in rows]
        watermark_ms = max(watermark_ms, 90 + number * 15)
        outs = [each.epoch(rows, watermark_ms=at) for each, at in ((allowed, watermark_ms), (behind, watermark_ms - LATENESS_MS))]
        assert bag(outs[0]["output"]) == bag(outs[1]["output"]), number
        strict.epoch(rows, watermark_ms=watermark_ms)
        late += Counter({label: each.progress[-1].late for label, each in (("allowed", allowed), ("behind", behind))})
        for table in allowed.store.head.schemas:
            assert bag(allowed.state(table)) == bag(behind.state(table)), table
    assert late["allowed"] == late["behind"] < sum(progress.late for progress in strict.progress)
    assert "up to 30 ms late" in allowed.explain()


def test_timers_and_the_watermark_of_a_process_are_behind_too():
    seen = []

    class Told(Visits):
        def on_timer(self, key, at, ctx):
            seen.append((at, ctx.watermark))
            return super().on_timer(key, at, ctx)

    kit = ProcessKit(Told(), rows="user string, page string, at long", keys=["user"], event_time="at", lateness="30 ms")
    kit.epoch([{"user": "a", "page": "x", "at": 45}], watermark_ms=70)
    kit.epoch(watermark_ms=89)
    assert seen == []
    kit.epoch([{"user": "a", "page": "x", "at": 60}, {"user": "a", "page": "x", "at": 59}], watermark_ms=90)
    assert seen == [(60, 60)] and kit.late == 1


def test_where_lateness_means_nothing_it_is_refused():
    timed = {"rows": "user string, at long, n long"}
    for build, message in [
        (lambda s: s.dedup("user", lateness="1 s"), "dedup: without within it drops no late rows"),
        (lambda s: s.key_by("user").last(lateness="1 s"), "last: without ttl it drops no late rows"),
        (lambda s: s.key_by("user").top(1, "n", lateness="1 s"), "top: without until it drops no late rows"),
        (lambda s: s.key_by("user").first(ttl="1 s", lateness="1 s", in_order=True), "set in_order or lateness, not both"),
        (lambda s: s.join(twin(s), "user", lateness="1 s"), "join: without within, window or as_of it drops no late rows"),
        (
            lambda s: s.key_by("user").agg(at=fp.max("at")).key_by("user").process(Visits(), lateness="1 s"),
            "operator visits: lateness has no effect, because rows of an upstream operator are never late",
        ),
    ]:
        with pytest.raises(BadInput, match=message):
            PipelineKit(lambda s, build=build: build(s.watermark("at", "0 ms")).write("memory"), **timed)
    with pytest.raises(BadInput, match="operator plain: lateness needs event time"):
        PipelineKit(lambda s: s.key_by("user").process(Plain(), lateness="1 s").write("memory"), **timed)
