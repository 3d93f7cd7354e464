"""Rows in the order of event time: against a plain loop over the same rows, with bounds, restarts, crashes and rescaling."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput, BadName
from floodplain.operators.kernel.event_order import in_order
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import Value
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, at long, n long"


class Told(KeyedProcess):
    """Each row with the number of rows that its key had before."""

    seen = Value("long", default=0)
    output = "user string, at long, n long, seen long"

    def process(self, key, rows, ctx):
        for row in rows:
            yield key.user, row.at, row.n, self.seen.get()
            self.seen.set(self.seen.get() + 1)


class ToldAtOnce(KeyedBatchProcess):
    seen = Value("long", default=0)
    output = "user string, at long, n long, seen long"

    def process(self, batch, ctx):
        within = np.arange(len(batch.rows)) - np.repeat(batch.starts[:-1], np.diff(batch.starts))
        seen = batch.on_rows("seen").to_numpy() + within
        batch.set("seen", pa.array(batch.state("seen").to_numpy() + batch.rows_per_key()))
        return batch.rows.append_column("seen", pa.array(seen))


def oracle(epochs, rows=None, time_ms=None):
    """What comes out, what is late and how many go early: a list that is sorted each time, key by key."""
    waiting, marks = defaultdict(list), defaultdict(lambda: -1)
    out, late, early, before = defaultdict(list), [], 0, -1
    for fresh, watermark in epochs:
        for row in fresh:
            if row["at"] is not None and row["at"] <= max(before, marks[row["user"]]):
                late.append(row["n"])
            else:
                waiting[row["user"]].append(row)
        for user, held in waiting.items():
            held.sort(key=lambda row: -1 if row["at"] is None else row["at"])
            left = [row["at"] for row in held if row["at"] is not None and row["at"] > watermark]
            limit = -1
            if any(row["user"] == user for row in fresh):
                limit = left[-rows - 1] if rows is not None and len(left) > rows else -1
                limit = max(limit, left[-1] - time_ms) if time_ms is not None and left else limit
            gone = [row for row in held if row["at"] is None or row["at"] <= max(limit, watermark)]
            fast = [row["at"] for row in gone if row["at"] is not None and row["at"] > watermark]
            early += len(fast)
            marks[user] = max([marks[user], *fast])
            out[user] += [row["n"] for row in gone]
            waiting[user] = held[len(gone) :]
        before = watermark
    return dict(out), sorted(late), early


def told(kit, epochs):
    out, late = defaultdict(list), []
    for number, (fresh, watermark) in enumerate(epochs):
        kit.rescale(number % 3 + 1)
        for row in kit.epoch(fresh, watermark_ms=watermark):
            assert row["seen"] == len(out[row["user"]])
            out[row["user"]].append(row["n"])
        late += [row["n"] for row in kit.sides["late"]]
    return {user: found for user, found in out.items() if found}, sorted(late)


@st.composite
def scripts(draw):
    epochs, watermark, number = [], 0, 0
    for size in draw(st.lists(st.integers(0, 7), min_size=1, max_size=6)):
        rows = []
        for _ in range(size):
            number += 1
            at = draw(st.one_of(st.none(), st.integers(max(watermark - 5, 0), watermark + 30)))
            rows.append({"user": draw(st.sampled_from("abc")), "at": at, "n": number})
        watermark += draw(st.integers(0, 20))
        epochs.append((rows, watermark))
    return [*epochs, ([], 10_000)]


@settings(deadline=None, max_examples=25)
@given(scripts(), st.sampled_from([(None, None), (2, None), (1, None), (None, 6), (3, 10)]), st.sampled_from([Told, ToldAtOnce]))
def test_as_a_plain_loop_has_it(epochs, bound, process):
    rows, time_ms = bound
    order = in_order(rows=rows, time=None if time_ms is None else f"{time_ms} ms")
    kit = ProcessKit(process(), rows=ROWS, keys=["user"], event_time="at", late=True, in_order=order)
    out, late, early = oracle(epochs, rows, time_ms)
    assert told(kit, epochs) == ({user: found for user, found in out.items() if found}, late)
    assert kit.late == len(late) and kit.early == early
    assert kit.state("kit__waiting") == [], "nothing is left behind once the watermark has passed"


@pytest.mark.parametrize("process", [Told, ToldAtOnce])
@pytest.mark.parametrize("bound", [{"rows": 1}, {"rows": 2}, {"time": "0 seconds"}])
def test_rows_of_one_time_come_as_they_came_also_if_they_go_early(process, bound):
    kit = ProcessKit(process(), rows=ROWS, keys=["user"], event_time="at", in_order=in_order(**bound))
    out = []
    for n in range(1, 6):
        rows = [{"user": "a", "at": 7, "n": 2 * n}, {"user": "a", "at": 7 if n < 5 else 8, "n": 2 * n + 1}]
        out += [row["n"] for row in kit.epoch(rows, watermark_ms=0)]
    out += [row["n"] for row in kit.epoch([], watermark_ms=100)]
    assert out == sorted(out) and len(set(out)) == len(out)


def test_overtaken_rows_tell_why():
    order = in_order(rows=1, time="1 minute")
    kit = ProcessKit(Told(), rows=ROWS, keys=["user"], event_time="at", late=True, name="told", in_order=order)
    kit.epoch([{"user": "a", "at": at, "n": at} for at in (3000, 1000, 2000)], watermark_ms=500)
    assert kit.early == 2
    kit.epoch([{"user": "a", "at": 2000, "n": 0}])
    (late,) = kit.sides["late"]
    assert late["reason"].startswith("late for told: rows of its key up to 1970-01-01T00:00:02.000Z were processed early")
    assert late["reason"].endswith("no more than 1 rows or 60000 ms of a key wait")


class Waiting(Told):
    waiting = Value("long")


def piped(**options):
    def build(stream):
        told = stream.watermark("at", "1 second").key_by("user").process(Told(), **options)
        return told.write("memory").also(told.late().write("memory", name="late"))

    return build


def row(user, at, n):
    return {"user": user, "at": at, "n": n}


def test_a_tick_releases_what_waits_and_explain_says_so():
    kit = PipelineKit(
        lambda stream: (
            stream.watermark("at", "1 second", policy="min").key_by("user").process(Told(), in_order=True).write("memory")
        ),
        rows=ROWS,
    )
    kit.epoch([row("a", 3000, 1), row("a", 2000, 2), row("b", 9000, 3)])
    kit.restart()
    assert kit.tick(now_ms=1)
    assert [found["n"] for found in kit.sinks["output"].epochs[2].to_pylist()] == [2, 1]
    assert "in order of event time" in kit.explain() and "told__waiting" in kit.explain()


@pytest.mark.parametrize("order", [True, pytest.param(in_order(rows=1), marks=pytest.mark.soak)])
def test_every_crash(order):
    script = [
        KitEpoch([row("a", 3000, 1), row("b", 1500, 2), row("a", 2000, 3), row("a", 2500, 4)], watermark_ms=1000),
        KitEpoch([row("a", 2200, 5), row("b", 1200, 6)], watermark_ms=2400, slots=3),
        KitEpoch([row("c", 2300, 7), row("a", 4000, 8)], watermark_ms=9000, slots=1),
    ]
    assert survives_every_crash(lambda: PipelineKit(piped(in_order=order), rows=ROWS), script) > 20


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="operator told: in_order needs event time"):
        PipelineKit(lambda stream: stream.key_by("user").process(Told(), in_order=True).write("memory"), rows=ROWS)
    with pytest.raises(BadInput, match="rows=0 is not possible"):
        in_order(rows=0)
    with pytest.raises(BadName, match="'waiting' of operator kit is reserved"):
        ProcessKit(Waiting(), rows=ROWS, keys=["user"], event_time="at", in_order=in_order())
