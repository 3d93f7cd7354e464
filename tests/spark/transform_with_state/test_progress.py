"""``lastProgress`` and ``recentProgress``: the numbers of the drop-in are those of Spark for the same programs."""

import random
from itertools import product

import pytest
from pyspark.sql.streaming.listener import StateOperatorProgress, StreamingQueryProgress

from tests.spark.transform_with_state.flows import NO_DATA, ROCKS, SIDES, Flow, conf
from tests.spark.transform_with_state.programs import INPUT, OUTPUT, Interpreter, PandasInterpreter

pytestmark = pytest.mark.spark

OPS = (
    *("count.update(({i},))", "count.get()", "count.clear()", "pair.update(({i}, 's'))", "pair.clear()"),
    *("items.appendValue(({i},))", "items.appendList([({i},), ({i},)])", "list(items.get())", "items.clear()"),
    *("words.updateValue(('w{j}',), ({i}, 'x'))", "words.removeKey(('w{j}',))", "list(words.keys())", "words.clear()"),
    *("handle.registerTimer(LATER + {j})", "handle.deleteTimer(LATER + {j})", "list(handle.listTimers())"),
)
TTL_OPS = (
    *("brief.update(({i},))", "briefItems.appendList([({i},), ({i},)])", "briefWords.updateValue(('w{j}',), ({i},))"),
    *("lasting.update(({i},))", "lastingItems.appendValue(({i},))", "lastingWords.updateValue(('w{j}',), ({i},))"),
    *("lasting.clear()", "lastingItems.clear()", "lastingWords.clear()", "untimed.update(({i},))"),
    *("lasting.update((1,))", "lastingWords.updateValue(('w',), (1,))"),
    *("brief.clear()", "briefItems.clear()", "briefItems.put([({i},)])", "briefWords.clear()"),
)
EQUAL = (
    *("operatorName", "numRowsTotal", "numRowsUpdated", "numRowsRemoved", "allRemovalsTimeMs", "numRowsDroppedByWatermark"),
    *("numShufflePartitions", "numStateStoreInstances"),
)
TIMES = ("timerProcessingTimeMs", "initialStateProcessingTimeMs")


def steps(seed, ops):
    chance = random.Random(seed)
    numbers = iter(range(10**6))
    return [
        [
            {
                "k": f"k{key}",
                "n": next(numbers),
                "g": 0,
                "ops": [op.format(i=chance.randrange(9), j=chance.randrange(3)) for op in chance.choices(ops, k=6)],
            }
            for key in chance.sample(range(5), 3)
        ]
        for _ in range(6)
    ]


def progress_of(flow, given):
    query = flow.start()
    last = []
    for number, rows in enumerate(given):
        flow.feed(number, rows)
        query.processAllAvailable()
        last.append(query.lastProgress)
    query.stop()
    recent = query.recentProgress
    assert [report.batchId for report in recent if report.numInputRows] == list(range(len(given)))
    assert [report.json for report in recent if report.numInputRows] == [report.json for report in last]
    return query, recent


SEEDED = [(1, True, False), (2, False, True)]
OTHERS = [each for each in product((1, 2), (False, True), (False, True)) if each not in SEEDED]


@pytest.mark.parametrize(("seed", "ttl", "pandas"), [*SEEDED, *(pytest.param(*each, marks=pytest.mark.soak) for each in OTHERS)])
def test_state_operators_have_the_numbers_of_spark(spark, tmp_path, seed, ttl, pandas):
    given = steps(seed, (*OPS, *TTL_OPS) if ttl else OPS)
    sides = {}
    for side in SIDES:
        processor = (PandasInterpreter if pandas else Interpreter)(ttl=ttl)
        (tmp_path / side).mkdir()
        with conf(spark, {**ROCKS, NO_DATA: False}):
            flow = Flow(spark, tmp_path / side, side, processor, INPUT, OUTPUT, "processingTime", pandas=pandas)
            _, recent = progress_of(flow, given)
        sides[side] = [report.stateOperators for report in recent if report.numInputRows]
    for theirs, ours in zip(sides["spark"], sides["ours"], strict=True):
        assert len(theirs) == len(ours) == 1 and type(ours[0]) is StateOperatorProgress
        assert {name: ours[0][name] for name in EQUAL} == {name: theirs[0][name] for name in EQUAL}
        custom = {name: value for name, value in theirs[0].customMetrics.items() if not name.startswith(("rocksdb", "Snap"))}
        assert ours[0].customMetrics.keys() == custom.keys()
        assert [(name, ours[0].customMetrics[name]) for name in custom if name not in TIMES] == [
            (name, value) for name, value in custom.items() if name not in TIMES
        ]
        assert ours[0].keys() == theirs[0].keys() and ours[0].memoryUsedBytes > 0


REPORTED = {
    0: (1, "1970-01-01T00:00:00.000Z", 0, 0, 0, 1, 0),
    1: (0, "2020-01-01T00:00:01.000Z", 0, 0, 0, 0, 1),
    2: (1, "2020-01-01T00:00:01.000Z", 1, 1, 0, 0, 0),
    4: (1, "2020-01-01T00:00:09.000Z", 1, 0, 1, 0, 0),
}
"""Batch → rows, watermark, rows of state, how many were updated, late rows, timers registered and deleted. In batch 3 only the
watermark moves, for which we run no task."""


@pytest.mark.parametrize("side", SIDES)
def test_epochs_for_timers_have_reports_and_late_rows_are_counted(spark, tmp_path, side):
    with conf(spark, ROCKS):
        flow = Flow(spark, tmp_path, side, Interpreter(), INPUT, OUTPUT, "eventTime")
        query = flow.start(name="reported")
        for number, (second, op) in enumerate([(1, "handle.registerTimer(watermark + 1)"), (9, "count.update((1,))"), (2, "1")]):
            flow.feed(number, [{"k": "a", "n": 0, "g": 0, "ops": [op], "at": f"2020-01-01T00:00:0{second}Z"}])
            query.processAllAvailable()
        query.stop()
    recent = [report for report in query.recentProgress if not only_waited(report)]
    assert all(type(report) is StreamingQueryProgress for report in recent)
    assert {(str(report.id), str(report.runId), report.name) for report in recent} == {(query.id, query.runId, "reported")}
    assert [report.timestamp for report in recent] == sorted(report.timestamp for report in recent)
    ran = {report.batchId: told(report) for report in recent if {"addBatch"} <= set(report.durationMs) or side == "ours"}
    assert {number: ran[number] for number in REPORTED} == REPORTED
    assert ran.keys() - REPORTED.keys() <= {3} and query.lastProgress.batchId == 4
    if side == "ours":
        fired = recent[1].stateOperators[0].customMetrics
        assert (fired["numExpiredTimers"], fired["timerProcessingTimeMs"] >= 0) == (1, True)
        assert [report.sink.numOutputRows for report in recent] == [1, 1, 1, 0]


def only_waited(report):
    """Whether it says that no data has come for ten seconds, which on a busy machine may be so at any time."""
    return "latestOffset" in report.durationMs and "addBatch" not in report.durationMs


def told(report):
    (state,) = report.stateOperators
    timers = (state.customMetrics["numRegisteredTimers"], state.customMetrics["numDeletedTimers"])
    counts = (state.numRowsTotal, state.numRowsUpdated, state.numRowsDroppedByWatermark)
    return (report.numInputRows, report.eventTime["watermark"], *counts, *timers)


def test_a_state_that_is_thrown_away_is_counted_before(spark, tmp_path):
    with conf(spark, {NO_DATA: False}):
        flow = Flow(spark, tmp_path, "ours", Interpreter(), INPUT, OUTPUT, "none")
        rows = spark.readStream.schema(INPUT).json(str(tmp_path / "in"))
        frame = flow._transformed(rows.groupBy("k"), (Interpreter(), OUTPUT, "append", "none"))
        query = frame.writeStream.format("noop").start()
        assert query.lastProgress is None or not query.lastProgress.stateOperators
        for number in range(3):
            flow.feed(number, [{"k": "a", "n": 0, "g": 0, "ops": ["count.update((1,))"]}])
            query.processAllAvailable()
        query.stop()
    assert query.lastProgress.stateOperators[0].numRowsTotal == 1
    assert query.recentProgress[-1].json == query.lastProgress.json
