"""State with an event-time ttl: it counts from the rows, needs a watermark, and agrees with a model."""

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit
from tests.operators.joins.joining import HOWS, ROWS, SOME, Row, ads, click, expected, in_order, play, published, same_key, shown

T0 = 1_700_000_000_000
COLUMNS = "k string, at long, a long"


def lives(ttl_ms: int):
    def match(left: Row, right: Row) -> bool:
        times = left["at"], right["at"]
        return same_key(left, right) and None not in times and abs(left["at"] - right["at"]) < ttl_ms

    return match


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=15, deadline=None)
@given(rows=SOME, cuts=st.lists(st.integers(0, 39), max_size=6), disorder=st.integers(1, 20), ttl_ms=st.integers(1, 25))
def test_a_join_with_a_ttl_gives_the_same_however_rows_fall_into_epochs(how, rows, cuts, disorder, ttl_ms):
    rows = in_order(rows, disorder)
    kit = PipelineKit(ads(how, ttl=f"{ttl_ms} ms", ttl_clock="event"), rows=ROWS)
    play(kit, rows, cuts, disorder)
    net: Counter[tuple[Any, ...]] = Counter()
    for row, count in published(kit).items():
        net[row if how in ("inner", "semi") else row[:-1]] += count if how in ("inner", "semi") else row[-1] * count
    assert +net == expected(rows, how, lives(ttl_ms)) and not -net
    assert kit.state("join__left") == kit.state("join__right") == [], "all have ended"


def test_a_late_row_of_a_join_lives_from_the_watermark_on():
    kit = PipelineKit(ads("inner", late=True, ttl="10 ms", ttl_clock="event"), rows=ROWS)
    kit.epoch([shown(1, 40)], watermark_ms=50)
    kit.epoch([shown(1, 5, 7)], watermark_ms=50)
    out = kit.epoch([click(1, 59), click(1, 60)], watermark_ms=50)
    assert [(row["width"], row["at_click"]) for row in out["output"]] == [(7, 59)]
    assert out["late"] == [] and kit.progress[-1].late == 0


def latest(**options: Any):
    return PipelineKit(
        lambda s: s.watermark("at", "0 ms", policy="min").key_by("k").last(**options).write("memory"), rows=COLUMNS
    )


def test_the_first_epoch_forgets_nothing_because_it_has_no_watermark():
    kit, taken = latest(ttl="1 hour", mode="retract"), []
    for a, second in enumerate((0, 1, 2, 3)):
        out = kit.epoch([{"k": "x", "at": T0 + 1000 * second, "a": a}])["output"]
        taken.append([(row["a"], row["weight"]) for row in out])
    assert taken == [[(0, 1)], [(0, -1), (1, 1)], [(1, -1), (2, 1)], [(2, -1), (3, 1)]]
    kit = PipelineKit(
        lambda s: s.watermark("at", "0 ms", policy="min").dedup("k", within="1 hour", keep="last").write("memory"), rows=COLUMNS
    )
    assert kit.epoch([{"k": "x", "at": T0, "a": 1}])["output"]
    assert kit.epoch([{"k": "x", "at": T0 - 1000, "a": 2}])["output"] == [], "it is older"


def test_any_row_of_a_key_keeps_it_alive():
    for passed, known in ((33, True), (34, False)):
        kit = PipelineKit(lambda s: s.watermark("at", "0 ms").key_by("k").first(ttl="10 ms").write("memory"), rows=COLUMNS)
        out = [kit.epoch([{"k": "x", "at": at, "a": at}], watermark_ms=at - 3)["output"] for at in range(4, 28, 4)]
        assert [row["a"] for rows in out for row in rows] == [4]
        kit.epoch(watermark_ms=passed)
        assert kit.epoch([{"k": "x", "at": 35, "a": 35}])["output"] == ([] if known else [{"k": "x", "at": 35, "a": 35}])


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("seed", range(3))
def test_one_row_per_key_against_a_model(keep, seed):
    """As long as the watermark is not past the newest row of a key by the time to live, the key is known."""
    rng, ttl_ms = Random(seed), 15
    kit = PipelineKit(
        lambda s: getattr(s.watermark("at", "0 ms").key_by("k"), keep)(ttl=f"{ttl_ms} ms").write("memory"), rows=COLUMNS, slots=2
    )
    held: dict[str, tuple[Row, int]] = {}
    late = watermark = 0
    forgotten = 0
    for number in range(25):
        rows = [
            {"k": rng.choice("abcd"), "at": max(1, number * 12 + rng.randrange(-25, 30)), "a": rng.randrange(5)}
            for _ in range(rng.randrange(5))
        ]
        late, watermark = watermark, max(watermark, number * 12 - 10)
        wanted = []
        for key in "abcd":
            mine = [row for row in rows if row["k"] == key and (row["at"] > late or not late)]
            row, end = held.get(key, (None, 0))
            forgotten += row is not None and end <= late and bool(mine)
            row = row if end > late else None
            pick, order = (max, min)[keep == "first"], lambda row: (row["at"], row["a"])
            best = pick([*mine, *([row] if row else [])], key=order, default=None)
            if mine:
                held[key] = best, max(end, max(watermark, *(one["at"] for one in mine)) + ttl_ms)
                wanted += [best] if best != row else []
        out = kit.epoch(rows, watermark_ms=watermark)["output"]
        assert sorted(map(repr, out)) == sorted(map(repr, wanted)), number
        if number % 7 == 3:
            kit.restart()
    assert forgotten > 1


class Everything(fp.KeyedProcess):
    """Each kind of state, written with each row and read before and after."""

    value = fp.Value("long", ttl="10 ms", ttl_clock="event")
    total = fp.Reducing("long", "sum", ttl="10 ms", ttl_clock="event")
    average = fp.Aggregating(
        "long", "long", "long", lift=lambda given: given, merge="sum", finish=lambda kept: kept, ttl="10 ms", ttl_clock="event"
    )
    trail = fp.List("long", ttl="10 ms", ttl_clock="event")
    pages = fp.Map("string", "long", ttl="10 ms", ttl_clock="event")
    seen = fp.Set("long", ttl="10 ms", ttl_clock="event")
    output = "n long, before array<long>, after array<long>"

    def process(self, key, rows, ctx):
        before = self._now()
        self._write(rows)
        yield len(rows), before, self._now()

    def _write(self, rows):
        for row in rows:
            self.value.set((self.value.get() or 0) + row.a)
            self.total.add(row.a)
            self.average.add(row.a)
            self.trail.append(row.a)
            self.pages.merge("p", row.a)
            self.seen.add(row.a)

    def _now(self):
        return [
            self.value.get(),
            self.total.get(),
            self.average.get(),
            sum(self.trail.get()) or None,
            self.pages.get("p"),
            sum(self.seen) or None,
        ]


class Blind(Everything):
    """Does not look at what it has written: what was merged stays unread."""

    def process(self, key, rows, ctx):
        yield len(rows), self._now(), None
        self._write(rows)


class AllAtOnce(fp.KeyedBatchProcess):
    """The same on columns."""

    output = Everything.output

    def states(self):
        return Everything().states()

    def process(self, batch, ctx):
        if not len(batch.rows):
            return None
        before, added, none = self._now(batch), batch.column("a"), batch.key_of_row
        (total,) = pa.table({"a": added}).group_by([]).aggregate([("a", "sum")]).column(0).to_pylist()
        batch.set("value", [(before[0] or 0) + total])
        for name in ("total", "average", "seen"):
            batch.add(name, added, key_of=none)
        batch.append("trail", added, key_of=none)
        batch.merge("pages", ["p"] * len(added), added, key_of=none)
        return pa.table({"n": [len(added)], "before": [before], "after": [self._now(batch)]})

    def _now(self, batch):
        listed = {name: batch.entries(name).column(1).to_pylist() for name in ("trail", "seen")}
        return [
            *(batch.state(name)[0].as_py() for name in ("value", "total", "average")),
            sum(listed["trail"]) or None,
            batch.get("pages", ["p"], [0])[0].as_py(),
            sum(listed["seen"]) or None,
        ]


@pytest.mark.parametrize("process", [Everything, AllAtOnce])
def test_all_kinds_of_state_count_from_the_rows_of_their_key(process):
    kit = ProcessKit(process(), rows=COLUMNS, keys=["k"], event_time="at")

    def seen(watermark_ms: int | None, *given: tuple[int | None, int]) -> tuple[list[int | None], list[int | None]]:
        (out,) = kit.epoch([{"k": "x", "at": at, "a": a} for at, a in given], watermark_ms=watermark_ms)
        return out["before"], out["after"]

    none = [None] * 6
    assert seen(None, (1, 1)) == (none, [1] * 6)
    assert seen(None, (25, 2)) == ([1] * 6, [3] * 6), "however far apart: nothing has said yet that nothing else comes"
    assert seen(3, (100, 4)) == ([3] * 6, [7] * 6)
    assert seen(90, (140, 8)) == ([7] * 6, [15] * 6), "judged by the watermark of the epoch before"
    assert seen(139, (130, 16))[0] == [15, 15, 15, 12, 15, 12], "elements end one by one, what is merged ends as one"
    assert seen(141, (150, 32))[0] == [31, 31, 31, 24, 31, 24]
    assert seen(148, (142, 64))[0] == [63, 63, 63, 56, 63, 56], "130 came when the watermark was 139, and counts from there"
    kit.epoch(watermark_ms=158)
    assert seen(158, (159, 128))[0] == [127, 127, 127, 32, None, 32], "142 came after 150: a value ends no sooner, an entry does"
    kit.epoch(watermark_ms=169)
    assert seen(169, (None, 1)) == (none, [1] * 6)
    kit.epoch(watermark_ms=178)
    assert seen(178, (None, 2)) == ([1] * 6, [3] * 6), "without a time it counts from the watermark"
    kit.epoch(watermark_ms=188)
    assert seen(188, (None, 4)) == (none, [4] * 6)


def test_merges_give_what_reading_and_writing_would_have_given():
    """Whatever the times and the watermarks: a value that was read, added to and set is what the others are."""
    for seed in range(3):
        rng, kit = Random(seed), ProcessKit(Blind(), rows=COLUMNS, keys=["k"], event_time="at")
        held, watermark = [], 0
        for step in range(20):
            watermark += rng.choice([0, 1, 5, 12, 25])
            if step > 3:
                kit.epoch(watermark_ms=watermark - rng.randrange(3))
            at = watermark + rng.randrange(1, 12)
            (out,) = kit.epoch([{"k": "x", "at": at, "a": 1}], watermark_ms=watermark if step > 3 else None)
            value, total, average, _, pages, _ = out["before"]
            assert value == total == average and pages in (value, None), (seed, step)
            held.append(pages)
        assert max(filter(None, held)) > 3 and held.count(None) > 1, "it grows, and begins anew"


def test_what_could_never_end_is_refused_before_the_start():
    with pytest.raises(BadInput, match="ttl_clock='event' is the clock of a ttl: set one"):
        fp.Value("long", ttl_clock="event")
    with pytest.raises(BadInput, match="join: ttl_clock='event' says by which time a ttl is counted: give one"):
        PipelineKit(ads("inner", ttl_clock="event"), rows=ROWS)
    with pytest.raises(BadInput, match="operator everything, state value: it has an event-time ttl, and without a watermark"):
        PipelineKit(lambda s: s.key_by("k").process(Everything()).write("memory"), rows=COLUMNS)

    def untimed(stream):
        sides = stream.source("shown"), stream.source("clicks")
        return sides[0].join(sides[1], {"ad": "id"}, ttl="1 s", ttl_clock="event", suffixes=("", "_click")).write("memory")

    with pytest.raises(BadInput, match="left side has no event time: call watermark"):
        PipelineKit(untimed, rows=ROWS)
