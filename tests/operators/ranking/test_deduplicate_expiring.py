"""Deduplication with a state that expires, against a loop in Python."""

import pytest

from floodplain.operators.ranking.deduplicate_expiring import ExpiringDedup
from floodplain.testing.pipeline_kit import PipelineKit, survives_every_crash
from tests.operators.shaken import COLUMNS, bag, content, events, run, script


def distinct(stream):
    """By keys one of which is the event time."""
    rows = stream.watermark("at", "1 second").key_by("user", "at")
    return rows.process(ExpiringDedup(until="at"), name="dedup").write("memory")


def within(stream):
    """For a while after the first row."""
    rows = stream.watermark("at", "1 second").key_by("user")
    return rows.process(ExpiringDedup(until="seq"), name="dedup").write("memory")


def naive(given, key_of, until):
    """Epoch by epoch: rows by time; a row is late at the watermark of the epoch before, not before 1970."""
    ends, late_ms = {}, 0
    for epoch in given:
        out = []
        for row in sorted(map(dict, epoch.rows), key=lambda row: (row["at"], *content(row, "at"))):
            if row["at"] > late_ms and key_of(row) not in ends:
                ends[key_of(row)] = until(row)
                out.append(row)
        yield out
        ends = {key: end for key, end in ends.items() if end > epoch.watermark_ms}
        late_ms = max(epoch.watermark_ms, 0)


def tens(seed):
    """Events whose times are whole tens of milliseconds, so that keys repeat."""
    given = events(seed, epochs=8)
    for epoch in given:
        for row in epoch.rows:
            row["at"] -= row["at"] % 10
    return given


def lasting(seed, **options):
    """Events that say until when the state of their key lasts."""
    given = events(seed, **options)
    for epoch in given:
        for row in epoch.rows:
            row["seq"] = row["at"] + 20
    return given


@pytest.mark.parametrize("seed", range(3))
def test_keys_with_their_event_time(seed):
    given = tens(seed)
    expected = list(naive(given, lambda row: (row["user"], row["at"]), lambda row: row["at"]))
    for shaken in (None, 1):
        assert [bag(out["output"]) for out in run(distinct, given, shaken=shaken)] == [bag(rows) for rows in expected]


@pytest.mark.parametrize("seed", range(3))
def test_a_row_is_a_duplicate_as_long_as_the_state_has_its_key(seed):
    given = lasting(seed, epochs=8)
    expected = list(naive(given, lambda row: row["user"], lambda row: row["seq"]))
    assert sum(map(len, expected)) > len({row["user"] for epoch in given for row in epoch.rows})
    for shaken in (None, 1):
        assert [bag(out["output"]) for out in run(within, given, shaken=shaken)] == [bag(rows) for rows in expected]


def test_crashes_change_nothing():
    assert survives_every_crash(lambda: PipelineKit(within, rows=COLUMNS), script(lasting(3, epochs=3, size=10))) > 10
