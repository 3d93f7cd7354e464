"""Joins of two streams against loops over the same events: however they fall into epochs, over slots, and after restarts."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput
from floodplain.eventtime.windows import tumbling
from floodplain.operators.aggregates.functions import count
from floodplain.pipeline.stream import Output, Stream
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from tests.operators.joins.joining import END_MS, HOWS, ROWS, SOME, ads, click, expected, in_order, play, published, shown, within


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=25, deadline=None)
@given(
    rows=SOME,
    cuts=st.lists(st.integers(0, 39), max_size=6),
    disorder=st.integers(1, 20),
    bounds=st.sampled_from([(0, 10), (-7, 3), (-10, -4), (2, 2), (0, 0), (5, 30)]),
)
def test_an_interval_join_gives_all_pairs_within_bounds(how, rows, cuts, disorder, bounds):
    low, high = bounds
    rows = in_order(rows, disorder)
    kit = PipelineKit(ads(how, within=(f"{low} ms", f"{high} ms")), rows=ROWS, slots=2)
    play(kit, rows, cuts, disorder)
    assert published(kit) == expected(rows, how, within(low, high))
    assert sum(epoch.late for epoch in kit.progress) == 0


def test_what_waits_is_dropped_once_no_partner_can_come():
    kit = PipelineKit(ads("inner", within=("0 ms", "10 ms")), rows=ROWS)
    kit.epoch([shown(1, 5), shown(2, 25), click(3, 8), click(4, 30)])
    assert len(kit.state("join__left")) == len(kit.state("join__right")) == 2
    kit.epoch([], watermark_ms=15)
    assert [row["value"]["at"] for row in kit.state("join__left")] == [25]
    assert [row["value"]["at"] for row in kit.state("join__right")] == [30]


def test_a_partner_may_come_up_to_the_watermark_that_lateness_is_judged_by():
    kit = PipelineKit(ads("left", within=("0 ms", "10 ms")), rows=ROWS)
    kit.epoch([shown(1, 5), shown(2, 5)])
    assert len(kit.epoch([click(1, 15)], watermark_ms=40)["output"]) == 2, "the pair, and the one that has no partner"
    assert kit.epoch([], watermark_ms=41)["output"] == []


def test_rows_without_a_partner_come_out_when_that_is_sure():
    kit = PipelineKit(ads("left", within=("0 ms", "10 ms")), rows=ROWS)
    kit.epoch([shown(1, 5, 7)])
    assert kit.epoch([], watermark_ms=14)["output"] == []
    padded = {"ad": 1, "at": 5, "width": 7, "at_click": None, "user": None}
    assert kit.epoch([], watermark_ms=15)["output"] == [padded]


def test_late_rows_of_both_sides_come_out_aside():
    kit = PipelineKit(ads("inner", late=True, within=("0 ms", "10 ms")), rows=ROWS)
    kit.epoch([shown(1, 50)], watermark_ms=40)
    out = kit.epoch([shown(1, 40, 7), click(1, 39, "u"), click(1, 55)], watermark_ms=40)
    assert len(out["output"]) == 1
    at_0, at_1 = (f"late for join by {behind} ms: the watermark was 1970-01-01T00:00:00.040Z" for behind in (0, 1))
    assert out["late"] == [
        {"side": "left", "ad": 1, "at": 40, "width": 7, "at_click": None, "user": None, "reason": at_0},
        {"side": "right", "ad": 1, "at": None, "width": None, "at_click": 39, "user": "u", "reason": at_1},
    ]


def test_a_window_behind_an_outer_join_is_told_its_time_and_waits_for_rows_without_partner():
    def build(**options: Any):
        def pipeline(stream: Stream) -> Output:
            timed = stream.watermark("at", "0 seconds")
            sides = timed.source("shown"), timed.source("clicks")
            joined = sides[0].join(sides[1], {"ad": "id"}, "left", within=("0 ms", "10 ms"), suffixes=("", "_click"))
            return joined.window(tumbling("10 ms"), **options).agg(n=count()).write("memory")

        return PipelineKit(pipeline, rows=ROWS)

    with pytest.raises(BadInput, match=r"downstream of a step whose output has no known .*outer join.*name one with on="):
        build()
    kit = build(on="at", lateness="10 ms")
    kit.epoch([shown(1, 5), click(1, 6), shown(2, 5)])
    assert [row["n"] for row in kit.epoch([], watermark_ms=10)["output"]] == [1]
    assert [row["n"] for row in kit.epoch([], watermark_ms=15)["output"]] == [2]


def test_an_epoch_writes_what_came_and_not_what_waits():
    kit = PipelineKit(ads("left", within=("0 ms", "1 hour")), rows=ROWS, slots=1)
    kit.epoch([shown(1, at) for at in range(1, 500)])
    kit.epoch([click(1, 100), shown(1, 501)])
    runs = [run for run in kit.store.head.runs["join__left"] if run.low == kit.store.head.epoch]
    assert sum(run.rows for run in runs) == 101, "one that came, and those that had their first partner"
    kit.epoch([click(1, 100)])
    runs = [run for run in kit.store.head.runs["join__left"] if run.low == kit.store.head.epoch]
    assert runs == []


@pytest.mark.parametrize("how", ["inner", *(pytest.param(how, marks=pytest.mark.soak) for how in ("full", "anti"))])
def test_an_interval_join_survives_every_crash(how):
    script = [
        KitEpoch([shown(1, 5), click(2, 6), shown(3, 7)]),
        KitEpoch([click(1, 9), shown(2, 4)], watermark_ms=3, slots=3),
        KitEpoch([click(3, 30)], watermark_ms=16),
        KitEpoch([], watermark_ms=END_MS),
    ]
    assert survives_every_crash(lambda: PipelineKit(ads(how, within=("0 ms", "10 ms")), rows=ROWS), script) > 20


def test_what_cannot_be_joined_is_refused():
    def build(*args: Any, **options: Any):
        def pipeline(stream: Stream) -> Output:
            return stream.source("shown").join(stream.source("clicks"), *args, **options).write("memory")

        return PipelineKit(pipeline, rows=ROWS)

    bounds = {"within": ("0 s", "1 s"), "times": ("at", "at")}
    with pytest.raises(BadInput, match="2 output columns called at: rename them with suffixes"):
        build({"ad": "id"}, **bounds)
    with pytest.raises(BadInput, match="how='outer' is not known here: use inner, left"):
        build({"ad": "id"}, "outer", **bounds)
    with pytest.raises(BadInput, match="there is no column id; there are: ad, at, width"):
        build("id", **bounds)
    with pytest.raises(BadInput, match="give the lower bound"):
        build({"ad": "id"}, within=("1 s", "0 s"), times=("at", "at"))
    with pytest.raises(BadInput, match="left side has no event time: call watermark"):
        build({"ad": "id"}, within=("0 s", "1 s"))
    with pytest.raises(BadInput, match="within and ttl exclude each other"):
        build({"ad": "id"}, ttl="1 day", **bounds)
    with pytest.raises(BadInput, match="names no columns"):
        build([], **bounds)


def test_bounds_are_a_pair():
    for bounds in ("5 seconds", ("5 seconds",), 5):
        with pytest.raises(BadInput, match="is not a pair: pass both bounds of right"):
            PipelineKit(ads("inner", within=bounds), rows=ROWS)
