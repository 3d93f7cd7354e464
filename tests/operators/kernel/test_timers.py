"""Timers that a callback sets while it runs: those that are later fire in their turn, all others wait for the next epoch."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, at long"
MOST = 100
"""Calls in one epoch, before a test is over: a timer that fires without end must not hold it up."""


def row(user: str, at: int) -> dict[str, object]:
    return {"user": user, "at": at}


class Again(KeyedProcess):
    """Sets timers for its rows, and in each callback those that ``sets`` says."""

    output = "user string, at long"

    def __init__(self, sets, clock="event"):
        self.sets, self.clock, self.calls = sets, clock, 0

    def process(self, key, rows, ctx):
        for given in rows:
            self.timer(ctx, given.at)

    def timer(self, ctx, at):
        (ctx.timer if self.clock == "event" else ctx.processing_timer)(at)

    def on_timer(self, key, at, ctx):
        self.calls += 1
        assert self.calls < MOST
        for later in self.sets(at):
            self.timer(ctx, later)
        yield key.user, at


class AgainInBatches(KeyedBatchProcess):
    output = "user string, at long"

    def __init__(self, sets, clock="event"):
        self.sets, self.clock, self.calls = sets, clock, 0

    def process(self, batch, ctx):
        self.timer(batch, batch.rows["at"], batch.key_of_row)

    def timer(self, batch, times, key_of):
        (batch.timer if self.clock == "event" else batch.processing_timer)(times, key_of)

    def on_timers(self, batch, due, ctx):
        self.calls += 1
        assert self.calls < MOST
        made = [
            (number, later)
            for number, at in zip(due["key_of"].to_pylist(), due["time"].to_pylist(), strict=True)
            for later in self.sets(at)
        ]
        if made:
            numbers, times = zip(*made, strict=True)
            self.timer(batch, list(times), list(numbers))
        return pa.table({"user": pc.take(batch.keys["user"], due["key_of"]), "at": due["time"]})


def fired(kit: ProcessKit, *rows: dict[str, object], until: int, clock: str) -> list[tuple]:
    times = {"watermark_ms": until} if clock == "event" else {"now_ms": until}
    return [(found["user"], found["at"]) for found in kit.epoch(list(rows), **times)]


@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize("kind", [Again, AgainInBatches])
def test_one_set_again_for_its_own_time_fires_once_in_each_epoch(kind, clock):
    process = kind(lambda at: [at], clock)
    kit = ProcessKit(process, rows=ROWS, keys=["user"])
    for rows in ([row("u", 5)], [], []):
        assert fired(kit, *rows, until=10, clock=clock) == [("u", 5)]
    assert [found["user"] for found in kit.state(f"kit__{clock}_timers")] == ["u"]


@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize("kind", [Again, AgainInBatches])
def test_an_earlier_one_waits_and_a_later_one_fires_in_its_turn(kind, clock):
    kit = ProcessKit(kind(lambda at: {5: [3, 7, 30], 7: [8]}.get(at, []), clock), rows=ROWS, keys=["user"])
    assert fired(kit, row("u", 5), until=10, clock=clock) == [("u", 5), ("u", 7), ("u", 8)]
    assert fired(kit, until=10, clock=clock) == [("u", 3)]
    assert fired(kit, until=40, clock=clock) == [("u", 30)]


@pytest.mark.parametrize("kind", [Again, AgainInBatches])
def test_a_periodic_one_catches_up_with_the_watermark(kind):
    kit = ProcessKit(kind(lambda at: [at + 10]), rows=ROWS, keys=["user"])
    assert fired(kit, row("u", 10), row("v", 15), until=9, clock="event") == []
    both = fired(kit, until=45, clock="event")
    assert sorted(both) == [("u", 10), ("u", 20), ("u", 30), ("u", 40), ("v", 15), ("v", 25), ("v", 35), ("v", 45)]
    assert fired(kit, until=50, clock="event") == [("u", 50)]


class Twice(Again):
    """Deletes the timers of its rows before it sets them."""

    def process(self, key, rows, ctx):
        for given in rows:
            ctx.timer(given.at)
            ctx.delete_timer(given.at)
            ctx.timer(given.at)


def test_one_that_was_deleted_and_set_anew_fires_once():
    kit = ProcessKit(Twice(lambda at: [at]), rows=ROWS, keys=["user"])
    assert fired(kit, row("u", 5), until=10, clock="event") == [("u", 5)]
    assert fired(kit, row("u", 5), until=10, clock="event") == [("u", 5)], "stored, deleted and set anew"


class Undone(Again):
    """A row of time 0 sets a timer for 20, any other deletes it."""

    def process(self, key, rows, ctx):
        for given in rows:
            (ctx.delete_timer if given.at else ctx.timer)(20)


def test_one_that_is_deleted_before_it_is_due_does_not_fire():
    """Whether it was stored or set in the same epoch, and though it is due in the epoch that deletes it."""
    kit = ProcessKit(Undone(lambda at: []), rows=ROWS, keys=["user"])
    assert fired(kit, row("u", 0), row("v", 0), row("v", 19), until=9, clock="event") == []
    assert fired(kit, row("u", 19), row("w", 0), until=30, clock="event") == [("w", 20)]
    assert fired(kit, until=40, clock="event") == []


class Both(KeyedProcess):
    output = "what string"

    def process(self, key, rows, ctx):
        ctx.timer(5)
        ctx.processing_timer(1)

    def on_timer(self, key, at, ctx):
        if at == 5:
            ctx.processing_timer(2)
        if at == 1:
            ctx.timer(6)
        yield (f"{at}",)


def test_event_time_comes_first_and_is_over_then():
    kit = ProcessKit(Both(), rows=ROWS, keys=["user"])
    assert [found["what"] for found in kit.epoch([row("u", 0)], watermark_ms=10, now_ms=10)] == ["5", "1", "2"]
    assert [found["what"] for found in kit.epoch([], watermark_ms=10, now_ms=10)] == ["6"]
