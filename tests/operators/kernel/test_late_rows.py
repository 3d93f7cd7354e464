"""Late rows come out with the reason, whole, and none is lost."""

from typing import ClassVar

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.eventtime.times import END_MS, NONE_MS
from floodplain.operators.kernel.late_rows import with_reasons
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, at timestamp, page string"
REASON = "late for counts by 500 ms: the watermark was 1970-01-01T00:00:02.000Z"


class Counts(KeyedProcess):
    output = "user string, n long"

    def process(self, key, rows, ctx):
        yield key.user, len(rows)


class Told(Counts):
    side_outputs: ClassVar = {"late": "page string, reason string"}


def row(user, at_ms, page="/"):
    return {"user": user, "at": at_ms * 1000, "page": page}


def piped(process):
    def build(stream):
        counts = stream.watermark("at", "1 second").key_by("user").process(process, name="counts")
        return counts.write("memory").also(counts.late().write("memory", name="late"))

    return build


def late_of(kit, rows):
    kit.epoch([row("a", 1)], watermark_ms=2000)
    return kit.epoch(rows, watermark_ms=2000)["late"]


def test_a_late_row_comes_out_whole_with_its_reason():
    kit = PipelineKit(piped(Counts()), rows=ROWS)
    (found,) = late_of(kit, [row("a", 1500, "/x"), row("b", 2001), {"user": "c", "at": None, "page": "/"}])
    assert found["user"] == "a" and found["page"] == "/x" and found["reason"] == REASON
    assert kit.progress[-1].late == 1 and kit.progress[-1].late_by == {"counts": 1}
    assert kit.progress[0].late_by == {}


def test_what_a_process_declares_itself_stays_its_own():
    assert late_of(PipelineKit(piped(Told()), rows=ROWS), [row("a", 1500, "/x")]) == [{"page": "/x", "reason": REASON}]


def test_reasons_in_the_kit_of_a_process_and_at_the_ends_of_time():
    kit = ProcessKit(Counts(), rows="user string, at long", keys=["user"], event_time="at", late=True, name="counts")
    kit.epoch([], watermark_ms=END_MS)
    kit.epoch([{"user": "a", "at": 7}])
    assert kit.sides["late"] == [{"user": "a", "at": 7, "reason": "late for counts: the watermark was at the end of all times"}]
    untimed = with_reasons(pa.table({"x": [1]}), "counts", None, 5)
    assert untimed["reason"].to_pylist() == ["late for counts: the watermark was 1970-01-01T00:00:00.005Z"]
    timeless = with_reasons(pa.table({"at": pa.array([None, 3], pa.int64())}), "counts", "at", 5)
    assert timeless["reason"].to_pylist() == [
        "has no time, and counts needs one",
        "late for counts by 2 ms: the watermark was 1970-01-01T00:00:00.005Z",
    ]
    assert with_reasons(pa.table({"x": [1]}), "counts", None, NONE_MS)["reason"].to_pylist() == [
        "late for counts: the watermark was not there yet"
    ]


def test_a_column_of_that_name_is_refused_before_anything_runs():
    with pytest.raises(BadInput, match="operator counts: late\\(\\) adds a column reason, and its input has one"):
        PipelineKit(piped(Counts()), rows=ROWS + ", reason string")
    with pytest.raises(BadInput, match="call late right after it"):
        PipelineKit(lambda stream: stream.late().write("memory"), rows=ROWS)


def test_every_crash():
    script = [
        KitEpoch([row("a", 1000)], watermark_ms=2000),
        KitEpoch([row("a", 1500), row("b", 3000)], watermark_ms=3000),
        KitEpoch([row("b", 2500), row("a", 900)], watermark_ms=3000, slots=3),
    ]
    assert survives_every_crash(lambda: PipelineKit(piped(Counts()), rows=ROWS), script) > 20


def test_what_was_left_out_is_counted_for_as_long_as_the_state_lives():
    def build(stream):
        timed = stream.watermark("at", "0 ms", heartbeat="beat")
        pivot = timed.key_by("user").pivot("page", ["/"], "n", by="at").write("memory", name="pivot")
        return timed.key_by("user").process(Counts(), name="counts").write("memory").also(pivot)

    kit = PipelineKit(build, rows="user string, at long, page string, n long, beat long")

    def given(at, page="/", beat=None):
        return {"user": "a", "at": at, "page": page, "n": 1, "beat": beat}

    kit.epoch([given(100), given(101, "/x"), given(102, None)])
    assert kit.progress[-1].ignored_by == {"pivot": 2} and kit.totals == {"pivot": {"ignored": 2}}
    kit.epoch([given(7, beat=200), {"at": 8, "beat": 201}])
    assert kit.progress[-1].ignored_by == {"input": 1}, "one of the heartbeats had a user, which nobody gets to see"
    kit.epoch([given(300)])
    kit.restart()
    kit.epoch([given(150), given(201), given(202, "/y")])
    assert kit.progress[-1].late_by == {"counts": 2} and kit.progress[-1].ignored_by == {"pivot": 1}
    wanted = {"counts": {"late": 2}, "input": {"ignored": 1}, "pivot": {"ignored": 3}}
    assert kit.totals == wanted
    kit.restart()
    assert kit.totals == wanted and kit.progress == []
    kit.epoch([given(500)])
    assert kit.totals == wanted
