"""The watermark of the pipeline kit moves with the rows, as Spark's does, unless it is moved by hand."""

from datetime import UTC, datetime

import pytest

import floodplain as fp

ROWS = "user string, ts timestamp"


def at(user, seconds, **more):
    return {"user": user, "ts": None if seconds is None else datetime.fromtimestamp(seconds, UTC), **more}


def windows(stream):
    return stream.watermark("ts", "2 seconds").key_by("user").window(fp.tumbling("10 seconds")).agg(n=fp.count()).write("memory")


def counts(found):
    return [(row["user"], row["window_end"].second, row["n"]) for row in found["output"]]


def test_rows_move_the_watermark_of_the_next_epoch():
    kit = fp.PipelineKit(windows, rows=ROWS)
    assert counts(kit.epoch([at("a", 1), at("a", 13), at("a", None)])) == [], "its own rows count for the next one"
    assert counts(kit.epoch([at("a", 14)])) == [("a", 10, 1)], "13 s less 2 s has passed the end of the window"
    assert counts(kit.epoch([at("a", 3)])) == [] and kit.progress[-1].late_by == {"windows": 1}
    assert counts(kit.epoch([at("a", 22)])) == []
    assert kit.tick(now_ms=1), "time passes, and no data comes"
    assert counts({"output": kit.sinks["output"].epochs[kit.store.head.epoch].to_pylist()}) == [("a", 20, 2)]


def test_it_goes_on_after_a_restart_and_a_crash():
    kit = fp.PipelineKit(windows, rows=ROWS)
    kit.epoch([at("a", 1), at("a", 13)])
    kit.restart()
    assert counts(kit.epoch([at("a", 25)])) == [("a", 10, 1)]
    script = [fp.KitEpoch([at("a", 1), at("a", 13)]), fp.KitEpoch([at("a", 25)]), fp.KitEpoch([at("b", 26)])]
    assert fp.survives_every_crash(lambda: fp.PipelineKit(windows, rows=ROWS), script) > 10


def test_of_several_sources_the_slowest_counts_and_one_without_rows_holds_all_back():
    sources = {"one": ROWS, "two": ROWS, "other": "name string"}
    kit = fp.PipelineKit(windows, rows=sources)
    kit.epoch([at("a", 1, source="one"), at("a", 33, source="one"), {"name": "x", "source": "other"}])
    assert counts(kit.epoch([at("a", 13, source="two")])) == [], "two had no rows before"
    assert counts(kit.epoch([at("a", 34, source="one")])) == [("a", 10, 1)], "by the 13 s of two"
    assert counts(kit.epoch([])) == []


def test_a_watermark_that_is_given_counts_and_rows_move_it_no_more():
    kit = fp.PipelineKit(windows, rows=ROWS)
    kit.epoch([at("a", 1), at("a", 50)], watermark_ms=0)
    assert counts(kit.epoch([at("a", 2)])) == []
    assert counts(kit.epoch([], watermark_ms=10_000)) == [("a", 10, 2)]
    kit.wipe()
    kit.restart()
    kit.epoch([at("a", 1), at("a", 13)])
    assert counts(kit.epoch([])) == [("a", 10, 1)], "wiped, it follows its rows again"


@pytest.mark.parametrize("build", [lambda s: s.key_by("user").agg(n=fp.count()).write("memory"), windows])
def test_rows_without_times_move_nothing(build):
    kit = fp.PipelineKit(build, rows=ROWS)
    kit.epoch([at("a", None)])
    kit.epoch([at("a", None)])
    assert not kit.progress[-1].watermark_ms
