"""Pipelines whose watermark follows from their rows, without Spark: it is in the state, and survives restarts and crashes."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from floodplain.errors import BadInput
from floodplain.eventtime.options import ingestion_time
from floodplain.state.descriptors import EVENT_TIME
from floodplain.testing.faults import Crashed, CrashPoint
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from tests.processes import LastSeen

ROWS = "user string, at long"


def piped(*args, **options):
    def build(stream):
        return stream.watermark(*args, **options).key_by("user").process(LastSeen()).write("memory")

    return build


def row(user, at, **more):
    return {"user": user, "at": at, **more}


def marks(kit):
    return [progress.watermark_ms for progress in kit.progress]


def published(kit):
    return [found for epoch in kit.sinks["output"].epochs.values() for found in epoch.to_pylist()]


def test_the_last_windows_close_when_no_data_comes():
    kit = PipelineKit(piped("at", "1 second", policy="min"), rows=ROWS)
    assert kit.epoch([row("a", 1000), row("b", 4000)])["output"] == []
    assert kit.tick(now_ms=1), "the watermark is 3000 by now"
    assert published(kit) == [{"user": "a", "n": 1, "at": 2000}]
    assert not kit.tick(now_ms=2)
    assert kit.epoch([row("c", 2500), row("d", 3500)])["output"] == [] and kit.progress[-1].late == 1
    with pytest.raises(BadInput, match="computes its watermark from its rows"):
        kit.epoch([], watermark_ms=5)


def test_late_is_judged_by_the_watermark_of_the_epoch_before():
    kit = PipelineKit(piped("at", "0 seconds", policy="min"), rows=ROWS)
    kit.epoch([row("a", 1000)])
    kit.epoch([row("b", 900), row("c", 2000)])
    kit.epoch([row("d", 1500)])
    kit.epoch([row("e", 1900)])
    assert [progress.late for progress in kit.progress] == [0, 0, 0, 1], "e comes when 2000 had been the watermark"


def test_two_sources_one_idle():
    kit = PipelineKit(piped("at", "0 ms", idle="10 seconds", sources={"slow": "1 second"}), rows={"fast": ROWS, "slow": ROWS})
    kit.epoch([row("a", 5000, source="fast"), row("b", 3000, source="slow")], now_ms=1000)
    kit.epoch([row("a", 9000, source="fast")], now_ms=2000)
    kit.epoch([row("a", 9500, source="fast")], now_ms=10_999)
    kit.epoch([row("a", 9600, source="fast")], now_ms=11_000)
    assert marks(kit)[1:] == [2000, 2000, 9500]
    kit.restart()
    kit.epoch([row("z", 4000, source="slow")], now_ms=12_000)
    assert marks(kit) == [9500] and kit.progress[-1].late == 1, "a restart does not take it back"
    assert kit.store.head.watermarks[EVENT_TIME] == 9500


def test_a_restart_after_a_long_pause_does_not_make_sources_idle():
    kit = PipelineKit(piped("at", "0 ms", idle="10 seconds"), rows={"fast": ROWS, "slow": ROWS})
    kit.epoch([row("a", 5000, source="fast"), row("b", 3000, source="slow")], now_ms=1000)
    kit.crash_at(CrashPoint(len(kit.steps.taken), "before"))
    with pytest.raises(Crashed):
        kit.epoch([row("b", 3500, source="slow")], now_ms=3_601_000)
    kit.restart()
    assert marks(kit) == [3000] and kit.progress[-1].late == 0


def test_slack_in_rows_counts_over_epochs_and_restarts():
    kit = PipelineKit(piped("at", slack_rows=2), rows=ROWS)
    for at in (1000, 5000, 3000, 4000):
        kit.epoch([row("a", at)])
        kit.restart()
    kit.epoch([row("a", 2999)])
    assert marks(kit) == [3000], "5000 and 4000 are newer"
    kit.epoch([row("a", 2999), row("a", 3001)])
    assert kit.progress[-1].late == 1


def test_heartbeats_and_punctuations():
    rows = "user string, at long, beat timestamp, done long"
    kit = PipelineKit(piped("at", heartbeat="beat", punctuation="done"), rows=rows)
    kit.epoch([row("a", 1000)])
    assert not kit.tick(now_ms=1)
    beat = datetime.fromtimestamp(1.5, UTC)
    kit.epoch([row("x", None, beat=beat)])
    assert kit.progress[-1].rows == 0, "a heartbeat is not processed"
    kit.epoch([row("b", 2500, done=1800)])
    assert marks(kit)[-1] == 1500
    kit.heartbeat(2000)
    kit.restart()
    assert kit.tick(now_ms=5), "a is over at 2000"
    assert published(kit) == [{"user": "a", "n": 1, "at": 2000}]
    with pytest.raises(BadInput, match="there is no source 'clicks' with event time"):
        kit.heartbeat(1, source="clicks")
    with pytest.raises(BadInput, match="a heartbeat needs a watermark"):
        PipelineKit(piped("at", "1 second"), rows=ROWS).heartbeat(1)


def test_ingestion_time():
    kit = PipelineKit(piped(ingestion_time()), rows="user string")
    kit.epoch([{"user": "a"}], now_ms=1000)
    kit.epoch([{"user": "b"}], now_ms=1000)
    assert [progress.late for progress in kit.progress] == [0, 0]
    assert not kit.tick(now_ms=2000), "a row of that millisecond may still come"
    assert kit.tick(now_ms=2001)
    assert sorted(out["user"] for out in published(kit)) == ["a", "b"]


SCRIPT = [
    KitEpoch([row("a", 1000, source="x"), row("b", 500, source="y")], now_ms=1),
    KitEpoch([row("a", 3000, source="x"), row("c", 2000, source="y")], now_ms=2, slots=3),
    KitEpoch([row("b", 100, source="x"), row("b", 4000, source="y")], now_ms=3),
    KitEpoch([row("d", 9000, source="x"), row("d", 9000, source="y")], now_ms=4, slots=1),
    KitEpoch([], now_ms=5),
]


@pytest.mark.parametrize("options", [{"policy": "max"}, {"sources": {"x": 1, "y": "1 second"}}])
def test_every_crash(options):
    def make():
        return PipelineKit(piped("at", "0 ms", **options), rows={"x": ROWS, "y": ROWS})

    assert survives_every_crash(make, SCRIPT) > 20


def test_the_watermark_never_goes_back_in_the_log():
    kit = PipelineKit(piped("at", "0 ms", idle="1 second"), rows={"x": ROWS, "y": ROWS})
    seen = []
    for number in range(12):
        kit.epoch([row("a", 1000 * (number * 7 % 11), source="xy"[number % 2])], now_ms=number * 400)
        seen.append(dict(kit.store.head.watermarks))
        if number % 3 == 2:
            kit.restart()
    for before, after in pairwise(seen):
        assert all(after[name] >= time for name, time in before.items())
    assert seen[-1][EVENT_TIME] > seen[2][EVENT_TIME]


@pytest.mark.parametrize("kind", ["string", "double", "date", "boolean"])
def test_columns_that_are_no_times_are_refused_before_the_start(kind):
    rows = f"user string, at long, odd {kind}, nested struct<odd: {kind}>"
    for column, args, options in [
        ("odd", ["odd", "1 s"], {"policy": "min"}),
        ("odd", ["at"], {"heartbeat": "odd"}),
        ("nested.odd", ["at", "1 s"], {"punctuation": "nested.odd"}),
    ]:
        with pytest.raises(BadInput, match=f"watermark: column {column} is of type .*, which is no time: make it"):
            PipelineKit(piped(*args, **options), rows=rows)
    with pytest.raises(BadInput, match=r"operator last: column odd is of type .*, which is no time"):
        PipelineKit(lambda s: s.watermark("odd", "1 s").key_by("user").last(by="at").write("memory"), rows=rows)


def test_delays_may_be_timedeltas():
    plain, ruled = (PipelineKit(piped("at", timedelta(seconds=5), **more), rows=ROWS) for more in ({}, {"policy": "min"}))
    assert "5 s behind" in plain.explain() and "5 s behind" in ruled.explain()
    joined = PipelineKit(
        lambda s: s.watermark("at", timedelta(0)).key_by("user").last(ttl=timedelta(seconds=1)).write("memory"),
        rows=ROWS + ", n long",
    )
    assert joined.epoch([row("a", 1, n=1)])["output"]
