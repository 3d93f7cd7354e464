"""Windows that cannot be are refused before anything runs, with what was given and what to do."""

import pytest

import floodplain as fp
from tests.operators.windows.test_windows import ROWS


def test_what_cannot_be_is_refused():
    for build, text in (
        (lambda s: s.key_by("k").window(fp.tumbling("1 s")).agg(n=fp.count()), "need an event time"),
        (lambda s: s.watermark("ts", "0 s").window(fp.tumbling("1 s")).agg(), "there are no aggregates"),
        (lambda s: s.watermark("ts", "0 s").key_by("k").window(fp.tumbling("1 s")).agg(k=fp.count()), "cannot be called k"),
        (lambda s: s.watermark("ts", "0 s").window(fp.tumbling("1 s")).agg(n="count"), "this is no aggregate"),
        (lambda s: s.window(fp.count_window(3), lateness="1 s").agg(n=fp.count()), "when they are full"),
        (lambda s: s.watermark("ts", "0 s").window(fp.tumbling("1 s"), firing="x").agg(n=fp.count()), "firing='x' is not known"),
        (lambda s: s.agg(mode="x", n=fp.count()), "mode='x' is not possible"),
        (lambda s: s.window("10 seconds"), r"window: '10 seconds' is no kind of windows: .*fp.tumbling\('10 seconds'\)"),
        (lambda s: s.window(fp.tumbling("1 s"), early="2 s"), r"window: early='2 s' is no trigger: .* early=fp.every\('2 s'\)"),
        (lambda s: s.window(fp.tumbling("1 s"), late=3), "window: late=3 is no trigger: give one, as in late=fp.every"),
        (lambda s: s.window(fp.tumbling("1 s"), late=fp.every_rows(3)), "window: late= is for rows that arrive within lateness="),
        (lambda s: s.window(fp.tumbling("1 s"), on=3), "window: 3 is no column: give its name"),
        (lambda s: s.window(fp.tumbling("1 s"), on="no").agg(n=fp.count()), "operator windows: there is no column no; .*: k"),
        (
            lambda s: s.key_by(weight="k").agg(mode="retract", n=fp.count()),
            r"agg: a key is called weight.*key_by\(key='weight'\)",
        ),
        (
            lambda s: (
                s.watermark("ts", "0 s").key_by(weight="k").window(fp.tumbling("1 s"), firing="retracting").agg(n=fp.count())
            ),
            "window: a key is called weight",
        ),
        (
            lambda s: s.watermark("ts", "0 s").key_by(window_end="k").window(fp.tumbling("1 s")).agg(n=fp.count()),
            "window: a key is called window_end",
        ),
        (lambda s: s.agg(n=fp.count("no")), "operator aggregate: there is no column no; there are: k, ts, v, unused"),
    ):
        with pytest.raises(fp.BadInput, match=text):
            fp.PipelineKit(lambda stream, build=build: build(stream).write("memory"), rows=ROWS)
    for wrong in (
        lambda: fp.sliding("1 second", "2 seconds"),
        lambda: fp.count_window(0),
        lambda: fp.every("0 seconds"),
        lambda: fp.every_rows(0),
        lambda: fp.every_rows("3"),
        lambda: fp.count_window(2.5),
        lambda: fp.session("0 seconds"),
    ):
        with pytest.raises(fp.BadInput):
            wrong()


@pytest.mark.parametrize("type_", ["string", "double", "date", "decimal(20,0)", "boolean"])
def test_what_is_no_time_is_refused_before_anything_runs(type_):
    """In windows, in order, and for a watermark of our own: by name and type, with what to do."""
    rows = f"k string, ts timestamp, x {type_}, s struct<x: {type_}>"
    of_type = r"is of type .*, which is no time: make it a timestamp before, as in timestamp\("
    for build, text in (
        (lambda s: s.watermark("ts", "0 s").window(fp.session("1 s"), on="x").agg(n=fp.count()), "operator windows: column x"),
        (lambda s: s.watermark("ts", "0 s").window(fp.count_window(2), on="x").agg(n=fp.count()), "operator windows: column x"),
        (lambda s: s.watermark("x", "0 s").key_by("k").last(in_order=True), "operator last: column x"),
        (lambda s: s.watermark("x", "0 s", policy="min").key_by("k").last(), "watermark: column x"),
        (lambda s: s.watermark("ts", heartbeat="s.x").key_by("k").last(), "watermark: column s.x"),
        (lambda s: s.watermark("ts", punctuation="x").key_by("k").last(), "watermark: column x"),
    ):
        with pytest.raises(fp.BadInput, match=f"{text} {of_type}"):
            fp.PipelineKit(lambda stream, build=build: build(stream).write("memory"), rows=rows)
