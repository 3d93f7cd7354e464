"""Aggregates of keys that have an end, against a loop in Python."""

from collections import defaultdict

import pytest

from floodplain.errors import BadInput
from floodplain.operators.aggregates import functions
from floodplain.operators.aggregates.expiring import ExpiringAggregate
from floodplain.testing.pipeline_kit import PipelineKit, survives_every_crash
from tests.operators.shaken import COLUMNS, bag, events, run, script


def totals(mode):
    aggregates = {"n": functions.count(), "total": functions.sum("seq")}

    def build(stream):
        rows = stream.watermark("at", "1 second").key_by("user", "at")
        return rows.process(ExpiringAggregate(aggregates, "at", mode), name="totals").write("memory")

    return build


def tens(seed, **options):
    """Events whose times are whole tens of milliseconds, so that keys repeat."""
    given = events(seed, **options)
    for epoch in given:
        for row in epoch.rows:
            row["at"] -= row["at"] % 10
    return given


def naive(given, mode):
    """Epoch by epoch: a row is late at the watermark of the epoch before, not before 1970; a key ends at that of its own."""
    kept, late_ms = defaultdict(list), 0
    for epoch in given:
        changed = set()
        for row in epoch.rows:
            key = (row["user"], row["at"])
            if key[1] > late_ms:
                kept[key].append(row["seq"])
                changed.add(key)
        over = {key for key in kept if key[1] <= epoch.watermark_ms}
        yield [result(key, kept[key]) for key in (over if mode == "append" else changed)]
        for key in over:
            del kept[key]
        late_ms = max(epoch.watermark_ms, 0)


def result(key, values):
    given = [value for value in values if value is not None]
    return {"user": key[0], "at": key[1], "n": len(values), "total": sum(given) if given else None}


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("seed", range(3))
def test_results_come_at_the_end_or_with_each_change(seed, mode):
    given = tens(seed, epochs=8)
    expected = list(naive(given, mode))
    assert sum(map(len, expected)) > 20
    for shaken in (None, 1, 2):
        assert [bag(out["output"]) for out in run(totals(mode), given, shaken=shaken)] == [bag(rows) for rows in expected]


def test_nothing_is_kept_of_keys_that_are_over():
    kit = PipelineKit(totals("update"), rows=COLUMNS)
    row = {"user": "u", "page": "a", "price": 1.0, "seq": 1}
    assert kit.epoch([{**row, "at": 10}], watermark_ms=0)["output"] == [{"user": "u", "at": 10, "n": 1, "total": 1}]
    assert len(kit.state("totals")) == len(kit.state("totals__event_timers")) == 1
    assert kit.epoch(watermark_ms=10)["output"] == []
    assert kit.state("totals") == kit.state("totals__event_timers") == []
    assert kit.epoch([{**row, "at": 10}], watermark_ms=10)["output"] == [] and kit.progress[-1].late_by == {"totals": 1}


def test_crashes_change_nothing():
    given = tens(3, epochs=3, size=10)
    assert survives_every_crash(lambda: PipelineKit(totals("append"), rows=COLUMNS), script(given)) > 10


def test_the_end_must_be_a_key():
    with pytest.raises(BadInput, match="until='at' must be a key"):
        PipelineKit(
            lambda stream: (
                stream.watermark("at", "1 second")
                .key_by("user")
                .process(ExpiringAggregate({"n": functions.count()}, "at"))
                .write("memory")
            ),
            rows=COLUMNS,
        )
