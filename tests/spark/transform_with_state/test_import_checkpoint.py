"""A job of Spark's own ``transformWithState`` that goes on with the drop-in, beside one that stays on Spark."""

import json
import shutil
from functools import reduce

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import floodplain as fp
from floodplain.runtime.checkpoint.files import write
from floodplain.spark.checkpoint_import.stock_batch import CheckpointFiles, committed_batch
from tests.spark.transform_with_state.flows import NO_DATA, ROCKS, Flow, conf
from tests.spark.transform_with_state.programs import Declaring
from tests.spark.transform_with_state.test_traces import Engine, Scenario, write_step
from tests.spark.transform_with_state.traces import lives

pytestmark = pytest.mark.spark

SCENARIOS = [
    Scenario("rows", "None", 20, 3, keys=("g", "k"), slots=2),
    Scenario("pandas by event time", "EventTime", 20, 4, pandas=True),
    Scenario("rows by event time", "EventTime", 30, 6, seed=2, keys=("k", "g"), slots=3),
    Scenario("rows by processing time, with ttl", "ProcessingTime", 30, 4, ttl=True),
]
SCHEMA, OUTPUT = "k string, at timestamp", "k string, n long"


@pytest.fixture
def rocks(spark):
    with conf(spark, ROCKS):
        fp.register_state_sources(spark)
        yield spark


def state(spark, prefix, location):
    """All rows of state, of all variables and with their ends, as text."""
    (operator,) = spark.read.format(f"{prefix}state-metadata").load(str(location)).collect()
    frames = []
    for variable in json.loads(operator.operatorProperties)["stateVariables"]:
        name, kind = variable["stateName"], variable["stateVariableType"]
        option = ("readRegisteredTimers", "true") if kind == "TimerState" else ("stateVarName", name)
        reader = spark.read.format(f"{prefix}statestore").option(*option).option("flattenCollectionTypes", kind != "ListState")
        rows = reader.load(str(location)).drop("partition_id")
        frames.append(rows.select(F.lit(name), F.to_json(F.struct(*rows))))
    return sorted(map(tuple, reduce(DataFrame.union, frames).collect()))


def given(engine, folder, number, traces):
    """What a step gives out by key."""
    write_step(folder, number, traces)
    return engine.step()


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=() if each.slots == 3 else pytest.mark.soak) for each in SCENARIOS],
)
def test_a_job_that_moves_gives_what_it_would_have_given_on_spark(rocks, tmp_path, scenario):
    checkpoint, moved, stopped = tmp_path / "ours-False", tmp_path / "ours-True", tmp_path / "stopped"
    (tmp_path / "input").mkdir()
    traces = lives(scenario.seed, scenario.traces, scenario.steps, scenario.mode, ttl=scenario.ttl)
    steps = range(scenario.steps // 2, scenario.steps)
    stays, moves = [Engine(rocks, tmp_path, scenario, ours) for ours in (False, True)]
    try:
        for number in range(steps[0]):
            given(stays, tmp_path, number, traces)
        stays.stop()
        shutil.copytree(checkpoint, stopped)
        imported = fp.import_spark_checkpoint(stopped, state=moved)
        kept = state(rocks, "", stopped)
        assert state(rocks, "floodplain-", moved) == kept
        assert sum(imported.states.values()) + imported.timers >= len(kept) > scenario.traces // 2
        theirs = [given(stays, tmp_path, number, traces) for number in steps]
        stays.stop()  # both have the same query id
        for number in steps:
            (tmp_path / "input" / f"{number}.json").unlink()
        for number, wanted in zip(steps, theirs, strict=True):
            ours = given(moves, tmp_path, number, traces)
            for key in sorted({*wanted, *ours}, key=str):
                assert ours.get(key) == wanted.get(key), f"{scenario.name}, step {number}, {key}"
    finally:
        stays.stop()
        moves.stop()
    assert sum(len(out) for wanted in theirs for out in wanted.values()) > scenario.traces
    if scenario.slots > 1:
        assert state(rocks, "floodplain-", moved) == state(rocks, "", checkpoint)


class Timed(StatefulProcessor):
    """Counts, sets a timer at each event time, and gives out the count."""

    def init(self, handle):
        self.handle = handle
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        n = (self.n.get() or (0,))[0] + len(rows)
        self.n.update((n,))
        for row in rows:
            self.handle.registerTimer(int(row.at.timestamp() * 1000))
        yield Row(k=key[0], n=n)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k=f"{key[0]} fired", n=expiredTimerInfo.getExpiryTimeInMs() // 1000 % 60)


def flow(spark, folder, which, processor=None):
    return Flow(spark, folder, which, processor or Timed(), SCHEMA, OUTPUT, "eventTime")


def row(key, second):
    return {"k": key, "at": f"2020-01-01T00:00:{second:02}Z"}


def run(flow, **state):
    flow.start(availableNow=True, **state).awaitTermination()


class Lost(Exception):
    pass


def test_a_batch_that_was_not_committed_is_read_again_with_its_number(rocks, tmp_path):
    stock, ours = (flow(rocks, tmp_path, which) for which in ("spark", "ours"))
    stock.feed(0, [row("a", 1), row("b", 9)])
    run(stock)
    done = stock.seen[-1][0]

    def fail(rows, number):
        raise Lost

    stock.feed(1, [row("a", 10), row("a", 11)])
    stock._keep, kept = fail, stock._keep
    with pytest.raises(Exception, match="Lost"):
        run(stock)
    shutil.copytree(tmp_path / "spark" / "state", tmp_path / "lost")
    imported = fp.import_spark_checkpoint(tmp_path / "lost", state=tmp_path / "ours" / "state")
    assert (imported.batch_id, imported.states, imported.epoch) == (done, {"n": 2}, done + 1)
    assert f"batch {done + 1} was planned and not committed" in imported.warnings[0]
    stock._keep = kept
    run(stock)
    run(ours)
    # No call for the batches that Spark has had, and the next ones have its numbers.
    assert ours.seen == [batch for batch in stock.seen if batch[0] > done]
    assert ("a", 3) in ours.seen[0][1]
    assert json.loads((tmp_path / "ours/state/checkpoint/metadata").read_text()) == json.loads(
        (tmp_path / "lost" / "metadata").read_text()
    )


@pytest.mark.soak
def test_the_watermark_that_spark_had_noted_for_the_next_batch_goes_on(rocks, tmp_path):
    stock, ours = (flow(rocks, tmp_path, which) for which in ("spark", "ours"))
    stock.feed(0, [row("a", 1), row("b", 9)])
    with conf(rocks, {NO_DATA: False}):
        run(stock)
    assert stock.seen == [(0, [("a", 1), ("b", 1)])]
    shutil.copytree(tmp_path / "spark" / "state", tmp_path / "stopped")
    imported = fp.import_spark_checkpoint(tmp_path / "stopped", state=tmp_path / "ours" / "state")
    assert imported.watermark_ms == 1_577_836_809_000 and imported.timers == 2 and imported.warnings == ()
    stock.feed(1, [row("a", 9), row("b", 10)])
    for each in (stock, ours):
        query = each.start()
        query.processAllAvailable()
        query.stop()
    assert ours.seen == stock.seen[1:]
    assert ours.seen[0] == (1, [("a", 2), ("a fired", 1), ("a fired", 9), ("b", 2), ("b fired", 9)])


def test_what_cannot_be_imported_is_refused_and_nothing_is_written(rocks, tmp_path):
    stock = flow(rocks, tmp_path, "spark")
    checkpoint, target = tmp_path / "spark" / "state", tmp_path / "target"

    def refused(match, checkpoint=checkpoint, **more):
        with pytest.raises(fp.BadInput, match=match):
            fp.import_spark_checkpoint(checkpoint, state=target, **more)

    refused("has no committed batch, so there is nothing to import: check", tmp_path / "nowhere")
    stock.feed(0, [row("a", 1)])
    query = stock.start()
    query.processAllAvailable()
    refused("is running: stop it")
    query.stop()
    refused("has no committed batch 7; it has: 0", batch_id=7)
    with pytest.raises(fp.BadInput, match=r"import_spark_checkpoint\("):
        (tmp_path / "ours").mkdir()
        flow(rocks, tmp_path, "ours").start("../spark/state")
    counts = rocks.readStream.schema(SCHEMA).json(str(tmp_path / "in")).groupBy("k").count().writeStream.outputMode("complete")
    counts.format("noop").option("checkpointLocation", str(tmp_path / "counts")).trigger(
        availableNow=True
    ).start().awaitTermination()
    refused("its stateful operators: stateStoreSave", tmp_path / "counts")
    odd = flow(rocks, tmp_path, "spark", Declaring(("map", "byTags", "m map<string, long>", "n long")))
    run(odd, state="odd")
    refused("state 'byTags' of the query at .* cannot be kept", tmp_path / "spark" / "odd")
    assert not target.exists()
    fp.import_spark_checkpoint(checkpoint, state=target)
    refused("there is a state at .* already, at epoch 2")


OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{}}'
LISTED = 'v1\n{"path":"file:///f","timestamp":1,"batchId":0}'


@pytest.fixture
def batch_of(spark, tmp_path):
    def made(offsets, sources, begun=0):
        for name, text in sources.items():
            write(tmp_path / "c" / "sources" / name, text)
        for number in range(begun + 1):
            write(tmp_path / "c" / "offsets" / str(number), offsets)
        write(tmp_path / "c" / "commits" / "0", 'v1\n{"nextBatchWatermarkMs":7}')
        write(tmp_path / "c" / "metadata", '{"id":"q"}')
        return committed_batch(CheckpointFiles(spark, str(tmp_path / "c")), None, tmp_path / "copy")

    return made


def test_files_that_were_listed_for_a_later_batch_are_listed_again(batch_of):
    kafka = '\0v1\n{"topic":{"0":3}}'
    batch = batch_of(
        f'{OFFSETS}\n{{"logOffset":1}}\n-\n{{"topic":{{"0":9}}}}\n-',
        {"0/0": LISTED, "0/1": LISTED, "0/2": LISTED, "1/0": LISTED, "2/0": kafka, "3/0": kafka},
        begun=1,
    )
    assert sorted(batch.entry.position.sources) == ["sources/0/0", "sources/0/1", "sources/2/0", "sources/3/0"]
    assert (batch.number, batch.begun, batch.next_watermark_ms, batch.entry.timestamp_ms) == (0, True, 7, 5)


def test_a_list_that_was_compacted_with_that_of_a_later_batch_is_refused(batch_of):
    with pytest.raises(fp.BadInput, match="sources/0 no longer has which files were read up to batch 0 alone"):
        batch_of(f'{OFFSETS}\n{{"logOffset":1}}', {"0/2.compact": LISTED, "0/1": LISTED}, begun=1)


def test_offsets_by_the_names_of_sources_are_refused(batch_of):
    with pytest.raises(fp.BadInput, match="by the names of sources"):
        batch_of(f'{OFFSETS.replace("v1", "v2")}\nclicks:{{"logOffset":1}}', {})


def test_damage_is_refused_by_the_name_of_the_file(spark, batch_of, tmp_path):
    batch_of(OFFSETS, {})
    (tmp_path / "c" / "offsets" / "0").write_text(OFFSETS.replace("5", "6"))
    with pytest.raises(fp.BadInput, match=r"c/offsets/0 cannot be read: .*[Cc]hecksum"):
        committed_batch(CheckpointFiles(spark, str(tmp_path / "c")), None, tmp_path / "again")
