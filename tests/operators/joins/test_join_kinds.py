"""Joins in windows, without bounds and as of a time, against loops over the same events."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput
from floodplain.eventtime.windows import TimeWindows, session, sliding, tumbling
from floodplain.operators.joins.stream_join import How
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from tests.operators.joins.joining import (
    END_MS,
    HOWS,
    ROWS,
    SOME,
    Row,
    ads,
    click,
    expected,
    in_order,
    play,
    published,
    same_key,
    shown,
    sides,
)

CUTS = st.lists(st.integers(0, 39), max_size=6)


def in_windows(rows: Sequence[Row], how: How, windows: TimeWindows) -> Counter[tuple[Any, ...]]:
    """A join for each window there may be, of the rows that are in it; and the rows that are in none."""
    found: Counter[tuple[Any, ...]] = Counter()
    for start in range(windows.offset_ms - 100 * windows.slide_ms, 100, windows.slide_ms):
        inside = [row for row in rows if row["at"] is not None and start <= row["at"] < start + windows.size_ms]
        bounds = (start, start + windows.size_ms)
        found.update({(row[0], *bounds, *row[1:]): count for row, count in expected(inside, how, same_key).items()})
    timeless = expected([row for row in rows if row["at"] is None], how, lambda left, right: False)
    found.update({(row[0], None, None, *row[1:]): count for row, count in timeless.items()})
    return found


def with_ms(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    def ms(value: Any) -> Any:
        return None if value is None else round(value.timestamp() * 1000)

    return Counter({(row[0], ms(row[1]), ms(row[2]), *row[3:]): count for row, count in rows.items()})


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=20, deadline=None)
@given(
    rows=SOME,
    cuts=CUTS,
    disorder=st.integers(1, 20),
    windows=st.sampled_from(
        [tumbling("10 ms"), tumbling("10 ms", offset="3 ms"), sliding("20 ms", "5 ms"), sliding("9 ms", "4 ms")]
    ),
)
def test_a_window_join_gives_all_pairs_of_each_window(how, rows, cuts, disorder, windows):
    rows = in_order(rows, disorder)
    kit = PipelineKit(ads(how, window=windows), rows=ROWS)
    play(kit, rows, cuts, disorder)
    assert with_ms(published(kit)) == in_windows(rows, how, windows)


def test_a_row_is_late_for_a_window_join_when_its_windows_are_over():
    kit = PipelineKit(ads("left", late=True, window=tumbling("10 ms")), rows=ROWS)
    kit.epoch([], watermark_ms=25)
    out = kit.epoch([shown(1, 22), shown(2, 19)], watermark_ms=29)
    assert out["output"] == []
    assert [row["ad"] for row in out["late"]] == [2]
    assert [row["ad"] for row in kit.epoch([], watermark_ms=30)["output"]] == [1]


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=20, deadline=None)
@given(rows=SOME, cuts=CUTS)
def test_a_join_without_bounds_gives_all_pairs_in_the_end(how, rows, cuts):
    kit = PipelineKit(ads(how), rows=ROWS)
    play(kit, rows, cuts, 1)
    found = published(kit)
    if how in ("inner", "semi"):
        assert found == expected(rows, how, same_key)
        return
    net: Counter[tuple[Any, ...]] = Counter()
    for (*row, weight), count in found.items():
        net[tuple(row)] += weight * count
    assert +net == expected(rows, how, same_key)
    assert not -net


def test_a_row_without_a_partner_is_taken_back_when_one_comes():
    kit = PipelineKit(ads("left"), rows=ROWS)
    padded = {"ad": 1, "at": 5, "width": 7, "at_click": None, "user": None, "weight": 1}
    assert kit.epoch([shown(1, 5, 7)])["output"] == [padded]
    pair = {**padded, "at_click": 9, "user": "u"}
    assert kit.epoch([click(1, 9)])["output"] == [pair, {**padded, "weight": -1}]
    assert kit.epoch([click(1, 8)])["output"] == [{**pair, "at_click": 8}]


def test_rows_of_a_join_without_bounds_live_as_long_as_they_are_told_to():
    kit = PipelineKit(ads("left", ttl="10 ms"), rows=ROWS)
    kit.epoch([shown(1, 5), click(2, 5)], now_ms=100)
    assert len(kit.epoch([click(1, 6)], now_ms=109)["output"]) == 2
    assert kit.epoch([click(1, 7)], now_ms=110)["output"] == [], "being matched does not make it live longer"
    assert [row["weight"] for row in kit.epoch([shown(2, 6)], now_ms=110)["output"]] == [1], "it is without a partner now"


def as_of(rows: Sequence[Row], how: How) -> Iterator[tuple[Any, ...]]:
    lefts, rights = sides(rows)
    for left in lefts:
        before = [
            right
            for right in rights
            if None not in (left["at"], right["at"]) and same_key(left, right) and right["at"] <= left["at"]
        ]
        if before:
            newest = max(before, key=lambda row: (row["at"], row["user"]))
            yield left["ad"], left["at"], left["width"], newest["at"], newest["user"]
        elif how == "left":
            yield left["ad"], left["at"], left["width"], None, None


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=30, deadline=None)
@given(rows=SOME, cuts=CUTS, disorder=st.integers(1, 20))
def test_a_temporal_join_gives_the_version_of_the_time(how, rows, cuts, disorder):
    rows = in_order(rows, disorder)
    kit = PipelineKit(ads(how, as_of=True), rows=ROWS)
    play(kit, rows, cuts, disorder)
    assert published(kit) == Counter(as_of(rows, how))
    versions = Counter(row["ad"] for row in kit.state("join__right"))
    assert set(versions.values()) <= {1}, "of those that the watermark has passed only the newest is kept"


def test_a_temporal_join_waits_for_versions_that_may_still_come():
    kit = PipelineKit(ads("left", as_of=True), rows=ROWS)
    assert kit.epoch([click(1, 3, "old"), shown(1, 9)])["output"] == []
    assert kit.epoch([click(1, 8, "new")], watermark_ms=8)["output"] == []
    assert [row["user"] for row in kit.epoch([], watermark_ms=9)["output"]] == ["new"]
    assert [row["value"]["user"] for row in kit.state("join__right")] == ["new"]
    assert kit.state("join__left") == []


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"how": "full", "window": sliding("10 ms", "5 ms")}, marks=pytest.mark.soak),
        pytest.param({"how": "full"}, marks=pytest.mark.soak),
        {"how": "left", "as_of": True},
    ],
)
def test_joins_survive_every_crash(options):
    script = [
        KitEpoch([shown(1, 5), click(2, 6), shown(3, 7)]),
        KitEpoch([click(1, 9), shown(2, 4)], watermark_ms=3, slots=3),
        KitEpoch([click(3, 30), click(1, 14)], watermark_ms=16),
        KitEpoch([shown(1, 40)], watermark_ms=END_MS),
    ]
    assert survives_every_crash(lambda: PipelineKit(ads(**options), rows=ROWS), script) > 20


def test_what_no_kind_of_join_can_do_is_refused():
    with pytest.raises(BadInput, match="no ends that both sides share: use tumbling or sliding"):
        PipelineKit(ads("inner", window=session("5 ms")), rows=ROWS)
    with pytest.raises(BadInput, match="how='full' is not known here: use inner, left"):
        PipelineKit(ads("full", as_of=True), rows=ROWS)
    with pytest.raises(BadInput, match="window and as_of exclude each other"):
        PipelineKit(ads("inner", as_of=True, window=tumbling("5 ms")), rows=ROWS)


def test_no_row_is_late_for_a_join_without_bounds_and_that_can_be_read():
    for ttl in (None, "10 ms"):
        kit = PipelineKit(ads("left", late=True, ttl=ttl), rows=ROWS)
        kit.epoch([], watermark_ms=50)
        out = kit.epoch([shown(1, 5), click(1, 6)], watermark_ms=50)
        assert len(out["output"]) == 1 and out["late"] == [] and kit.progress[-1].late_by == {}
    assert "reason" in kit.schemas["late"].names
