"""Ranking combiner: rows outside the top N are dropped before the shuffle, and no result may change."""

from random import Random

import pyarrow as pa
import pytest

from floodplain.operators.kernel.reserved_columns import ROWS
from floodplain.operators.ranking.latest import Latest
from floodplain.operators.ranking.top import Top
from floodplain.testing.pipeline_kit import PipelineKit
from tests.operators.shaken import COLUMNS, bag, events

BY = "price desc, seq"


def timed(stream):
    return stream.watermark("at", "1 second").key_by("user")


BUILDS = {
    "last": lambda s, **options: timed(s).last(**options),
    "last by price": lambda s, **options: timed(s).last(BY, mode="retract", **options),
    "first": lambda s, **options: timed(s).first(mode="retract", **options),
    "first by seq": lambda s, **options: s.key_by("user", "page").first("seq", **options),
    "last with a time to live": lambda s, **options: timed(s).last("seq", ttl="20 ms", **options),
    "top": lambda s, **options: timed(s).top(3, BY, **options),
    "top one": lambda s, **options: s.key_by("user").top(1, "price nulls last", **options),
    "top in retract": lambda s, **options: s.key_by("user").top(4, BY, mode="retract", **options),
    "top with ties": lambda s, **options: s.key_by("user").top(2, BY, mode="retract", ties=True, **options),
    "top one with ties": lambda s, **options: s.key_by("user").top(1, "page", mode="retract", ties=True, **options),
    "top without rank": lambda s, **options: s.key_by("user").top(3, BY, mode="retract", rank=None, **options),
    "top until": lambda s, **options: timed(s).top(2, BY, mode="append", until="at", **options),
}


def kit_of(build, slots, partial):
    def pipeline(stream):
        made = build(stream, name="op", partial=partial)
        assert made.node.process.partial is partial
        return made.write("memory")

    return PipelineKit(pipeline, rows=COLUMNS, slots=slots)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_what_comes_out_is_the_same(build, seed):
    slots = Random(seed).choice([1, 2, 5])
    whole, together = (kit_of(build, slots, partial) for partial in (False, True))
    for epoch in events(seed, epochs=5, size=180):
        outs = [kit.epoch(epoch.rows, watermark_ms=epoch.watermark_ms)["output"] for kit in (whole, together)]
        assert bag(outs[0]) == bag(outs[1])
        for table in whole.store.snapshot().tables:
            assert bag(whole.state(table)) == bag(together.state(table)), table
    for mine, other in zip(whole.progress, together.progress, strict=True):
        assert (mine.rows, mine.late) == (other.rows, other.late)


ROWS_OF_TWO = pa.table(
    {
        "k": ["a", "b", "a", "a", "b", None, "a"],
        "n": [3, None, 9, 3, 1, 5, 4],
        "at": [10, 70, 20, 90, 80, 60, None],
        "tags": [["x"], [], None, ["y"], ["z"], ["v"], ["w"]],
    }
)


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        (Latest("n"), {2: 3, 3: 1, 4: 2, 5: 1}),
        (Latest("n", "first"), {0: 3, 3: 1, 4: 2, 5: 1}),
        (Latest("at"), {3: 4, 4: 2, 5: 1}),
        (Top(2, "n"), {0: 3, 1: 1, 3: 1, 4: 1, 5: 1}),
        (Top(1, "n", ties=True, mode="retract"), {0: 3, 1: 2, 3: 1, 5: 1}),
        (Top(2, "n desc"), {1: 1, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1}),
    ],
)
def test_one_row_of_a_key_stands_for_those_left_out(process, expected):
    """And the row with the latest time is there, whole as all are."""
    combiner = process.bind(ROWS_OF_TWO.schema, ("k",), "at").combiner
    rows = pa.concat_tables([ROWS_OF_TWO.slice(0, 2), ROWS_OF_TWO.slice(2)])
    kept = ROWS_OF_TWO.take(list(expected)).append_column(ROWS, pa.array(expected.values(), pa.int64()))
    assert combiner(rows).equals(kept)
    assert combiner(rows.slice(0, 0)).equals(kept.slice(0, 0))


def test_rows_that_may_be_late_are_not_left_out():
    for process in (Latest("n", ttl="1 hour", partial=True), Top(2, "n", "append", until="at", partial=True)):
        assert process.bind(ROWS_OF_TWO.schema, ("k",), "at").combiner is None
