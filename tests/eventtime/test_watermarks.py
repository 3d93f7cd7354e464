"""Watermarks by rule: slack in time and rows, several sources, idle ones, promises, options that make no sense."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.errors import BadInput
from floodplain.eventtime.measure import observe, timed
from floodplain.eventtime.options import WatermarkOptions, ingestion_rule, ingestion_time, source_rule, time_ms
from floodplain.eventtime.times import NONE_MS
from floodplain.eventtime.watermarks import Slack, SourceObservation, WatermarkRule, newest_of
from floodplain.state.descriptors import EVENT_TIME

TWO = {"a": ["ts"], "b": ["ts"]}


def follow(rule, epochs, started_ms=NONE_MS):
    """Watermark of each epoch and of one more at its end; ``epochs`` are (time, source → seen)."""
    manifest, found = {}, []
    for now_ms, seen in epochs:
        watermark_ms = rule.watermark_ms(manifest, now_ms, started_ms)
        found.append(watermark_ms)
        manifest |= {EVENT_TIME: watermark_ms, **rule.advanced(manifest, seen, now_ms)}
    return [*found, rule.watermark_ms(manifest, epochs[-1][0], started_ms)], manifest


def test_rows_count_for_the_epoch_after_them():
    rule = WatermarkRule("ts", {"": Slack(10)})
    assert follow(rule, [(0, {"": SourceObservation(1, (100,))}), (1, {"": SourceObservation(1, (50,))})])[0] == [NONE_MS, 90, 90]


def test_the_slowest_source_counts_or_the_fastest():
    epochs = [(0, {"a": SourceObservation(1, (100,)), "b": SourceObservation(1, (40,))}), (1, {"b": SourceObservation(1, (60,))})]
    slacks = {"a": Slack(0), "b": Slack(5)}
    assert follow(WatermarkRule("ts", slacks), epochs)[0] == [NONE_MS, 35, 55]
    assert follow(WatermarkRule("ts", slacks, "max"), epochs)[0] == [NONE_MS, 100, 100]
    assert follow(WatermarkRule("ts", slacks), [(0, {"a": SourceObservation(1, (100,))})])[0] == [NONE_MS, NONE_MS], (
        "b is waited for"
    )


def test_an_idle_source_holds_nobody_back_until_it_speaks_again():
    rule = WatermarkRule("ts", {"a": Slack(0), "b": Slack(0)}, idle_ms=1000)
    both, only_a = {"a": SourceObservation(1, (100,)), "b": SourceObservation(1, (10,))}, {"a": SourceObservation(1, (500,))}
    marks, manifest = follow(rule, [(0, both), (900, only_a), (1000, only_a)])
    assert marks == [NONE_MS, 10, 500, 500], "b had its last rows at 0"
    back = rule.advanced(manifest, {"b": SourceObservation(1, (20,))}, 1100)
    assert rule.watermark_ms(manifest | back, 1200) == 500, "it never goes back"
    assert rule.watermark_ms(manifest, 1900, started_ms=1500) == 500
    silent = {**manifest, EVENT_TIME: 10}
    assert rule.watermark_ms(silent, 5000) == 500, "if all are idle, all have said what they had to say"
    assert rule.watermark_ms(silent, 5000, started_ms=4500) == 10, "a new driver waits for each of them again"


def test_a_source_that_never_speaks_is_idle_after_a_while():
    rule = WatermarkRule("ts", {"a": Slack(0), "b": Slack(0)}, idle_ms=1000)
    assert follow(rule, [(0, {"a": SourceObservation(1, (7,))}), (999, {"a": SourceObservation(1, (8,))}), (1000, {})])[0] == [
        NONE_MS,
        NONE_MS,
        8,
        8,
    ]


def test_promises_count_without_slack_and_alone_where_there_is_none():
    rule = WatermarkRule("ts", {"": Slack(10)})
    assert follow(rule, [(0, {"": SourceObservation(1, (100,), 95)})])[0] == [NONE_MS, 95]
    alone = WatermarkRule("ts", {"": Slack()})
    assert follow(alone, [(0, {"": SourceObservation(5, ())}), (1, {"": SourceObservation(1, (), 7)})])[0] == [
        NONE_MS,
        NONE_MS,
        7,
    ]


@given(st.lists(st.lists(st.integers(0, 50), max_size=8), max_size=8), st.integers(1, 6))
def test_slack_in_rows_does_not_depend_on_order_or_epochs(epochs, rows):
    slack, held = Slack(rows=rows), ()
    for times in epochs:
        held = newest_of(held, tuple(times), slack.kept)
    every = sorted((time for times in epochs for time in times), reverse=True)
    assert slack.mark_ms(held) == (every[rows] if len(every) > rows else NONE_MS)
    if len(every) > rows:
        assert sum(time >= slack.mark_ms(held) for time in every) > rows


@given(st.lists(st.tuples(st.integers(0, 100), st.dictionaries(st.sampled_from("ab"), st.integers(0, 1000)))), st.booleans())
def test_it_only_advances(steps, fastest):
    rule = WatermarkRule("ts", {"a": Slack(3), "b": Slack(0)}, "max" if fastest else "min", idle_ms=50)
    manifest, now_ms = {}, 0
    for pause, newest in steps:
        now_ms += pause
        watermark_ms = rule.watermark_ms(manifest, now_ms)
        moved = {
            EVENT_TIME: watermark_ms,
            **rule.advanced(manifest, {s: SourceObservation(1, (at,)) for s, at in newest.items()}, now_ms),
        }
        assert all(time >= manifest.get(name, NONE_MS) for name, time in moved.items())
        manifest |= moved


def test_what_rows_show():
    rows = pa.table(
        {
            "ts": pa.array([1000, 3000, 2000, None, 9000], pa.int64()),
            "source": ["a", "a", "a", "b", "a"],
            "beat": pa.array([None, None, None, None, 2500], pa.int64()),
            "mark": pa.array([None, 700, None, None, None], pa.timestamp("ms", "UTC")),
        }
    )
    rule = WatermarkRule("ts", {"a": Slack(0, 1), "b": Slack(0)}, heartbeat=("beat",), punctuation=("mark",))
    assert observe(rows, rule, "source") == {"a": SourceObservation(4, (3000, 2000), 2500), "b": SourceObservation(1, ())}
    assert timed(rows, rule, 0).column("ts").to_pylist() == [1000, 3000, 2000, None], "a heartbeat is no data"
    whole = WatermarkRule("ts", {"": Slack(0)})
    assert observe(rows.slice(0, 0), whole, "source") == {"": SourceObservation()}


def test_ingestion_time_follows_the_epochs():
    rule = ingestion_rule(ingestion_time("came"), WatermarkOptions(), {"": ["user"]})
    assert timed(pa.table({"user": ["x"]}), rule, 1500)["came"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 1, 500000, UTC)]
    assert rule.watermark_ms({}, 1500) == 1499 and rule.watermark_ms({EVENT_TIME: 1600}, 1500) == 1600
    with pytest.raises(BadInput, match="needs no further option"):
        ingestion_rule(ingestion_time(), WatermarkOptions(idle="1 second"), {"": ["user"]})
    with pytest.raises(BadInput, match="there is a column user already"):
        ingestion_rule(ingestion_time("user"), WatermarkOptions(), {"": ["user"]})


def test_options_become_a_rule_or_are_refused():
    options = WatermarkOptions("4 seconds", idle="1 minute", sources={"b": 50})
    assert source_rule("ts", options, {**TWO, "c": ["no"]}) == WatermarkRule(
        "ts", {"a": Slack(4000), "b": Slack(rows=50)}, idle_ms=60_000
    )
    for wrong, message in [
        (WatermarkOptions("1 second", sources={"z": "1 second"}), "no source 'z' with a column ts; there are: a, b"),
        (WatermarkOptions("1 second", policy="avg"), "policy='avg' is not known"),
        (WatermarkOptions(idle="1 second"), "nothing moves it"),
        (WatermarkOptions(slack_rows=0), "a slack of 0 rows"),
        (WatermarkOptions(punctuation="done"), "punctuation='done' is not one of the columns: ts"),
    ]:
        with pytest.raises(BadInput, match=message):
            source_rule("ts", wrong, TWO)
    assert WatermarkOptions("1 second").is_plain and not WatermarkOptions(slack_rows=3).is_plain
    assert time_ms(datetime(1970, 1, 1, 0, 0, 2)) == time_ms(2000) == 2000  # noqa: DTZ001 — without a zone it is UTC
    with pytest.raises(BadInput, match="not a point in time"):
        time_ms(True)


def test_seen_is_plain_numbers():
    rows = pa.table({"ts": pa.array(np.arange(5), pa.int64())})
    (seen,) = observe(rows, WatermarkRule("ts", {"": Slack(0)}), "source").values()
    assert type(seen.newest[0]) is int and type(seen.rows) is int and type(seen.promised_ms) is int
