"""Timers for points in time that users have, timers that could never fire, and times that are not there."""

from datetime import UTC, datetime, timedelta, timezone
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.errors import BadInput, UserError
from floodplain.eventtime.points import point_ms
from floodplain.eventtime.times import END_MS, NONE_MS
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, at timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EAST = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize("us", [0, 1, 999, 1000, -1, -999, -1000, 1_700_000_000_123_456, -62_135_596_799_999_999, 2**51 + 999])
def test_a_point_in_time_is_its_millisecond(us):
    at = EPOCH + timedelta(microseconds=us)
    assert point_ms(at) == point_ms(at.astimezone(EAST) if us > -(10**15) else at) == us // 1000
    assert point_ms(at.replace(tzinfo=None), naive=True) == us // 1000
    with pytest.raises(BadInput, match="has no time zone"):
        point_ms(at.replace(tzinfo=None))


def test_what_is_no_point_in_time_is_refused():
    assert [point_ms(at) for at in (5, np.int32(5), 5.0)] == [5, 5, 5]
    for at in (1.5, "5", None, timedelta(seconds=1), float("nan"), [5]):
        with pytest.raises(BadInput, match="point in time"):
            point_ms(at)


class Sets(KeyedProcess):
    """Sets and deletes timers for the times that it is told to."""

    output = "at long"

    def __init__(self, *times, deleted=(), clock="event"):
        self.times, self.deleted, self.clock = times, deleted, clock

    def process(self, key, rows, ctx):
        of = "" if self.clock == "event" else "processing_"
        for at in self.times:
            getattr(ctx, f"{of}timer")(at)
        for at in self.deleted:
            getattr(ctx, f"delete_{of}timer")(at)

    def on_timer(self, key, at, ctx):
        yield (at,)


class SetsAtOnce(KeyedBatchProcess):
    output = "at long"

    def __init__(self, *times, deleted=(), clock="event", form=list):
        self.times, self.deleted, self.clock, self.form = times, deleted, clock, form

    def process(self, batch, ctx):
        of = "" if self.clock == "event" else "processing_"
        if len(batch.rows):
            getattr(batch, f"{of}timer")(self.form(self.times), [0] * len(self.times))
            getattr(batch, f"delete_{of}timer")(self.form(self.deleted), [0] * len(self.deleted))

    def on_timers(self, batch, due, ctx):
        return pa.table({"at": due["time"]})


TIMES = [EPOCH + timedelta(milliseconds=5, microseconds=7), (EPOCH + timedelta(milliseconds=6)).astimezone(EAST)]


@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize("kind", [Sets, SetsAtOnce])
def test_timers_take_datetimes(kind, clock):
    kit = ProcessKit(kind(*TIMES, 7, deleted=[TIMES[1]], clock=clock), rows=ROWS, keys=["user"], event_time="at")
    kit.epoch([{"user": "a", "at": TIMES[0]}])
    fired = [row["at"] for ms in (4, 5, 6, 7) for row in kit.epoch([], **{"watermark_ms" if clock == "event" else "now_ms": ms})]
    assert fired == [5, 7]


@pytest.mark.parametrize("kind", [Sets, SetsAtOnce, lambda *times, **more: SetsAtOnce(*times, form=pa.array, **more)])
def test_a_time_without_a_zone_sets_a_timer_only_where_event_time_has_none(kind):
    naive = datetime(1970, 1, 1, 0, 0, 1)  # noqa: DTZ001
    kit = ProcessKit(kind(naive), rows="user string, at timestamp_ntz", keys=["user"], event_time="at")
    kit.epoch([{"user": "a", "at": naive}])
    assert kit.epoch([], watermark_ms=1000) == [{"at": 1000}]
    for process, rows, at in (
        (kind(naive), ROWS, EPOCH),
        (kind(naive, clock="processing"), "user string, at timestamp_ntz", naive),
    ):
        kit = ProcessKit(process, rows=rows, keys=["user"], event_time="at")
        with pytest.raises(UserError, match="time zone"):
            kit.epoch([{"user": "a", "at": at}])


@pytest.mark.parametrize("kind", [Sets, SetsAtOnce])
def test_an_event_timer_that_could_never_fire_is_refused(kind):
    kit = ProcessKit(kind(5), rows=ROWS, keys=["user"])
    with pytest.raises(UserError, match=r"operator kit, .*a timer is set for 5 ms, and it would never fire: without a watermark"):
        kit.epoch([{"user": "a", "at": EPOCH}])
    kit.epoch([{"user": "a", "at": EPOCH}], watermark_ms=0)
    assert kit.epoch([], watermark_ms=5) == [{"at": 5}], "once there is a watermark"
    assert ProcessKit(kind(5, clock="processing"), rows=ROWS, keys=["user"]).epoch([{"user": "a", "at": EPOCH}], now_ms=4) == []


@pytest.mark.parametrize("kind", [Sets, SetsAtOnce])
def test_a_pipeline_without_a_watermark_refuses_event_timers_but_at_the_end_of_static_input(kind):
    kit = PipelineKit(lambda s: s.key_by("user").process(kind(5)).write("memory"), rows=ROWS)
    with pytest.raises(UserError, match="it would never fire: without a watermark"):
        kit.epoch([{"user": "a", "at": EPOCH}], watermark_ms=100)
    kit = PipelineKit(lambda s: s.key_by("user").process(kind(5)).write("memory"), rows=ROWS)
    assert kit.static([{"user": "a", "at": EPOCH}]) == {"output": [{"at": 5}]}
    kit = PipelineKit(lambda s: s.key_by("user").process(kind(5)).write("memory"), rows=ROWS)
    with pytest.raises(UserError, match="it would never fire: without a watermark"):
        kit.static([{"user": "a", "at": EPOCH}], finish=False)
    timed = PipelineKit(lambda s: s.watermark("at", "0 ms").key_by("user").process(kind(5)).write("memory"), rows=ROWS)
    assert timed.epoch([{"user": "a", "at": EPOCH}]) == {"output": []}
    assert timed.epoch([], watermark_ms=5) == {"output": [{"at": 5}]}


def test_state_that_ends_by_event_time_needs_a_watermark_in_kits_too():
    class Ends(KeyedProcess):
        n = fp.Value("long", ttl="1 hour", ttl_clock="event")
        output = "n long"

        def process(self, key, rows, ctx):
            return ()

    told = "state n: it has an event-time ttl, and without a watermark"
    with pytest.raises(BadInput, match=told):
        ProcessKit(Ends(), rows=ROWS, keys=["user"]).epoch([])
    with pytest.raises(BadInput, match=told):
        PipelineKit(lambda s: s.key_by("user").process(Ends()).write("memory"), rows=ROWS).epoch([])
    ProcessKit(Ends(), rows=ROWS, keys=["user"], event_time="at").epoch([])


class Tells(KeyedProcess):
    """All that it can reach of times."""

    output = "told string"
    side_outputs: ClassVar = {"told": "told string"}

    def process(self, key, rows, ctx):
        yield (repr([(name, getattr(ctx, name)) for name in dir(ctx) if name in PUBLIC]),)

    def on_timer(self, key, at, ctx):
        yield (repr([(name, getattr(ctx, name)) for name in dir(ctx) if name in PUBLIC]),)


PUBLIC = ("epoch", "watermark", "event_time", "processing_time")


def test_no_sentinel_reaches_a_user():
    process = ProcessKit(Tells(), rows=ROWS, keys=["user"], event_time="at")
    rows = [{"user": "a", "at": None}, {"user": "b", "at": EPOCH}]
    told = [repr(process.epoch(rows)), repr(process.epoch(rows))]
    assert "('event_time', None)" in told[0] and "('watermark', None)" in told[0] and "('event_time', 0)" in told[0]
    for options in (None, {}, {"idle": "1 hour"}):
        kit = PipelineKit(
            lambda s, given=options: (
                (s if given is None else s.watermark("at", "1 second", **given)).key_by("user").process(Tells()).write("memory")
            ),
            rows=ROWS,
        )
        told += [repr(kit.epoch([{"user": "a", "at": None}])), repr(kit.progress), kit.explain(), repr(kit.store.head.watermarks)]
        assert kit.progress[-1].watermark_ms is None
        told += [repr(kit.static([{"user": "a", "at": EPOCH}])), repr(kit.progress), kit.explain()]
    assert not [text for text in told for odd in (NONE_MS, END_MS, NONE_MS - 1000) if str(odd) in text]


class Counter(KeyedProcess):
    n = fp.Value("long", default=0)
    trail = fp.List("long")
    pages = fp.Map("string", "long")
    total = fp.Reducing("long", "sum")
    output = "n long"

    def __init__(self, act=None):
        self.act = act

    def process(self, key, rows, ctx):
        self.act(self)

    def on_timer(self, key, at, ctx):
        self.act(self)


def assigns(self):
    self.n = 5


def deletes(self):
    del self.n


def test_a_state_is_not_assigned_over():
    for act in (assigns, deletes):
        with pytest.raises(BadInput, match=r"Counter.n is a Value.*write self.n.set\(…\)"):
            act(Counter())
        kit = ProcessKit(Counter(act), rows=ROWS, keys=["user"], name="op")
        with pytest.raises(UserError, match=r"operator op, epoch 1, key Key\(user='a'\).*write self.n.set\(…\)"):
            kit.epoch([{"user": "a", "at": EPOCH}])
    for name, verb in (("trail", "append"), ("pages", "put"), ("total", "add")):
        with pytest.raises(BadInput, match=rf"write self.{name}.{verb}\(…\)"):
            setattr(Counter(), name, 1)

    class Begins(Counter):
        def __init__(self):
            self.n = 0

    with pytest.raises(BadInput, match=r"Begins.n is a Value.*self.n.set\(…\)"):
        Begins()

    class AtOnce(KeyedBatchProcess):
        n = fp.Value("long")
        output = "n long"

        def process(self, batch, ctx):
            self.n = batch.state("n")

    with pytest.raises(UserError, match=r'AtOnce.n is a Value.*write batch.set\("n", …\)'):
        ProcessKit(AtOnce(), rows=ROWS, keys=["user"]).epoch([{"user": "a", "at": EPOCH}])


def test_a_state_that_is_replaced_in_its_class_is_missed():
    class Replaced(Counter):
        m = fp.Value("long")

    Replaced.m = 5
    with pytest.raises(BadInput, match="operator kit: state m of Replaced was replaced by 5 after the class was made"):
        ProcessKit(Replaced(), rows=ROWS, keys=["user"])

    class Without(Counter):
        n = 5

    ProcessKit(Without(), rows=ROWS, keys=["user"])
