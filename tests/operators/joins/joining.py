"""Joined streams for tests: impressions and clicks, and what loops over them give."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from floodplain.operators.joins.stream_join import How
from floodplain.pipeline.stream import Output, Stream
from floodplain.testing.pipeline_kit import PipelineKit

ROWS = {"shown": "ad long, at long, width int", "clicks": "id long, at long, user string"}
HOWS: list[How] = ["inner", "left", "right", "full", "semi", "anti"]
END_MS = 1 << 40

Row = dict[str, Any]
Match = Callable[[Row, Row], bool]


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


def same_key(left: Row, right: Row) -> bool:
    return left["ad"] is not None and left["ad"] == right["id"]


def within(low: int, high: int) -> Match:
    def match(left: Row, right: Row) -> bool:
        times = left["at"], right["at"]
        return same_key(left, right) and None not in times and low <= right["at"] - left["at"] <= high

    return match


def expected(rows: Sequence[Row], how: How, match: Match) -> Counter[tuple[Any, ...]]:
    """A loop over all pairs."""
    return Counter(_expected(*sides(rows), how, match))


def sides(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    return [row for row in rows if row["source"] == "shown"], [row for row in rows if row["source"] == "clicks"]


def _expected(lefts: list[Row], rights: list[Row], how: How, match: Match) -> Iterator[tuple[Any, ...]]:
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
