"""Joins of two streams against loops over the same events: however they fall into epochs, over slots, and after restarts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput
from floodplain.operators.join import How
from floodplain.spark.kit import KitEpoch, PipelineKit, survives_every_crash
from floodplain.spark.stream import Output, Stream

ROWS = {"shown": "ad long, at long, width int", "clicks": "id long, at long, user string"}
HOWS: list[How] = ["inner", "left", "right", "full", "semi", "anti"]
END_MS = 1 << 40

Row = dict[str, Any]


def ads(how: How, *, late: bool = False, **options: Any):
    def build(stream: Stream) -> Output:
        timed = stream.watermark("at", "0 seconds")
        joined = timed.source("shown").join(timed.source("clicks"), {"ad": "id"}, how, suffixes=("", "_click"), **options)
        written = joined.write("memory")
        return written.also(joined.side("late").write("memory", name="late")) if late else written

    return build


def shown(ad: int | None, at: int | None, width: int = 0) -> Row:
    return {"source": "shown", "ad": ad, "at": at, "width": width}


def click(ad: int | None, at: int | None, user: str = "u") -> Row:
    return {"source": "clicks", "id": ad, "at": at, "user": user}


def expected(rows: Sequence[Row], how: How, low: int, high: int) -> Counter[tuple[Any, ...]]:
    """A loop over all pairs."""
    lefts = [row for row in rows if row["source"] == "shown"]
    rights = [row for row in rows if row["source"] == "clicks"]

    def match(left: Row, right: Row) -> bool:
        if None in (left["ad"], right["id"], left["at"], right["at"]):
            return False
        return left["ad"] == right["id"] and low <= right["at"] - left["at"] <= high

    return Counter(_expected(lefts, rights, how, match))


def _expected(lefts: list[Row], rights: list[Row], how: How, match: Any) -> Iterator[tuple[Any, ...]]:
    pairs = [(left, right) for left in lefts for right in rights if match(left, right)]
    hit = {id(row) for pair in pairs for row in pair}
    if how in ("semi", "anti"):
        yield from ((row["ad"], row["at"], row["width"]) for row in lefts if (id(row) in hit) == (how == "semi"))
        return
    yield from ((left["ad"], left["at"], left["width"], right["at"], right["user"]) for left, right in pairs)
    if how in ("left", "full"):
        yield from ((row["ad"], row["at"], row["width"], None, None) for row in lefts if id(row) not in hit)
    if how in ("right", "full"):
        yield from ((row["id"], None, None, row["at"], row["user"]) for row in rights if id(row) not in hit)


def published(kit: PipelineKit, sink: str = "output") -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for _, table in sorted(kit.sinks[sink].epochs.items()) for row in table.to_pylist())


TIMES = st.one_of(st.none(), st.integers(1, 60))
SOME = st.lists(
    st.one_of(
        st.builds(shown, st.one_of(st.none(), st.integers(0, 3)), TIMES, st.integers(0, 5)),
        st.builds(click, st.one_of(st.none(), st.integers(0, 3)), TIMES, st.sampled_from("ab")),
    ),
    max_size=40,
)


def play(kit: PipelineKit, rows: list[Row], cuts: list[int], disorder: int) -> None:
    """In order of time but for the disorder; the watermark follows. A restart and a rescale on the way."""
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    newest = 0
    for number, (low, high) in enumerate(pairwise(bounds)):
        kit.epoch(rows[low:high], watermark_ms=newest)
        newest = max([newest, *(row["at"] - disorder - 1 for row in rows[low:high] if row["at"] is not None)])
        if number == 1:
            kit.restart()
        if number == 2:
            kit.rescale(3)
    kit.epoch([], watermark_ms=END_MS)


def in_order(rows: list[Row], disorder: int) -> list[Row]:
    return sorted(rows, key=lambda row: (row["at"] or 0) // max(disorder, 1))


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=60, deadline=None)
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
    assert published(kit) == expected(rows, how, low, high)
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


def test_an_epoch_writes_what_came_and_not_what_waits():
    kit = PipelineKit(ads("left", within=("0 ms", "1 hour")), rows=ROWS, slots=1)
    kit.epoch([shown(1, at) for at in range(1, 500)])
    kit.epoch([click(1, 100), shown(1, 501)])
    runs = [run for run in kit.store.head.runs["join__left"] if run.low == kit.store.head.epoch]
    assert sum(run.rows for run in runs) == 101, "one that came, and those that had their first partner"
    kit.epoch([click(1, 100)])
    runs = [run for run in kit.store.head.runs["join__left"] if run.low == kit.store.head.epoch]
    assert runs == []


@pytest.mark.parametrize("how", ["inner", "full", "anti"])
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

    within = {"within": ("0 s", "1 s"), "times": ("at", "at")}
    with pytest.raises(BadInput, match="2 output columns called at: rename them with suffixes"):
        build({"ad": "id"}, **within)
    with pytest.raises(BadInput, match="how='outer' is not known: use inner, left"):
        build({"ad": "id"}, "outer", **within)
    with pytest.raises(BadInput, match="no column 'id'; they have ad, at, width"):
        build("id", **within)
    with pytest.raises(BadInput, match="give the lower bound"):
        build({"ad": "id"}, within=("1 s", "0 s"), times=("at", "at"))
    with pytest.raises(BadInput, match="left side has no event time: call watermark"):
        build({"ad": "id"}, within=("0 s", "1 s"))
    with pytest.raises(BadInput, match="ttl is for joins without bounds"):
        build({"ad": "id"}, ttl="1 day", **within)
    with pytest.raises(BadInput, match="names no columns"):
        build([], **within)
