"""The drop-in against Spark itself: the same processor, the same input, step by step."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

import floodplain as fp
from tests.spark.transform_with_state.programs import INPUT, OUTPUT, Interpreter, PandasInterpreter
from tests.spark.transform_with_state.traces import Life, lives

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Scenario:
    """One query on each engine, with many traces in it."""

    name: str
    mode: str
    traces: int
    steps: int
    seed: int = 1
    pandas: bool = False
    output: str = "append"
    ttl: bool = False
    initial: bool = False
    restart_after: int = -1
    keys: tuple[str, ...] = ("k",)
    slots: int = 1


SCENARIOS = [
    Scenario("rows", "None", 40, 4, initial=True, restart_after=2),
    Scenario("pandas", "None", 40, 3, pandas=True, output="update", slots=2, keys=("k", "g")),
    Scenario("rows by event time", "EventTime", 60, 6, restart_after=3, keys=("g", "k"), slots=2),
    Scenario("pandas by event time", "EventTime", 40, 4, pandas=True, initial=True, output="update", restart_after=2),
    Scenario("rows by processing time, with ttl", "ProcessingTime", 40, 4, ttl=True),
    Scenario("pandas by processing time, with ttl", "ProcessingTime", 30, 3, ttl=True, pandas=True, output="update"),
]


class Engine:
    """Runs a scenario's query and tells what each step gave out, by key and in order."""

    def __init__(self, spark, folder: Path, scenario: Scenario, ours: bool) -> None:
        self.scenario, self.ours, self.folder = scenario, ours, folder
        self.made: list[tuple] = []
        self.query = None
        rows = spark.readStream.schema(INPUT).json(str(folder / "input"))
        if scenario.mode == "EventTime":
            rows = rows.withWatermark("at", "0 seconds")
        processor = (PandasInterpreter if scenario.pandas else Interpreter)(ttl=scenario.ttl)
        initial = None
        if scenario.initial:
            states = [(None if n == 0 else f"key {n}", n % 3, 100 + n, "w0") for n in range(0, scenario.traces + 5, 2)]
            states += [("key 2", 2, 7, "again")]
            initial = spark.createDataFrame(states, "name string, h int, start long, word string")
            initial = initial.groupBy("name") if scenario.keys == ("k",) else initial.groupBy("name", "h")
        arguments = (processor, OUTPUT, scenario.output, scenario.mode, initial)
        grouped = rows.groupBy(*scenario.keys)
        if ours:
            call = fp.transform_with_state_in_pandas if scenario.pandas else fp.transform_with_state
            self.frame = call(grouped, *arguments)
        else:
            self.frame = (grouped.transformWithStateInPandas if scenario.pandas else grouped.transformWithState)(*arguments)

    def start(self):
        writer = self.frame.writeStream.foreachBatch(lambda rows, _: self.made.extend(rows.collect()))
        writer = writer.outputMode(self.scenario.output).option("checkpointLocation", str(self.folder / f"ours-{self.ours}"))
        if self.ours:
            writer = writer.option("floodplain.slots", self.scenario.slots)
        return (writer.trigger(once=True) if self.scenario.mode == "ProcessingTime" else writer).start()

    def step(self) -> dict[str, list[tuple]]:
        # By processing time Spark never has nothing to do: it is asked for one batch at a time.
        if self.scenario.mode == "ProcessingTime":
            self.start().awaitTermination(120)
        else:
            self.query = self.query or self.start()
            self.query.processAllAvailable()
        found: dict[str, list[tuple]] = {}
        for key, number, op, out in self.made:
            found.setdefault(key, []).append((number, op, out))
        self.made.clear()
        return found

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None


def write_step(folder: Path, number: int, traces: list[Life]) -> None:
    lines = []
    for life in traces:
        for order, (at_ms, ops) in enumerate(life.steps[number]):
            at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
            row = {"n": order, "k": life.key, "g": life.group, "ops": ops, "at": at}
            lines.append(json.dumps({name: value for name, value in row.items() if value is not None}))
    temporary = folder / f"step-{number}"
    temporary.write_text("\n".join(lines))
    temporary.rename(folder / "input" / f"{number}.json")


def run(spark, folder: Path, scenario: Scenario) -> int:
    """Both engines through all steps; how many expressions were compared."""
    (folder / "input").mkdir(parents=True)
    traces = lives(scenario.seed, scenario.traces, scenario.steps, scenario.mode, ttl=scenario.ttl)
    engines = [Engine(spark, folder, scenario, ours) for ours in (False, True)]
    compared = 0
    try:
        for number in range(scenario.steps):
            write_step(folder, number, traces)
            theirs, ours = [engine.step() for engine in engines]
            for key in sorted({*theirs, *ours}, key=str):
                assert ours.get(key) == theirs.get(key), f"{scenario.name}, seed {scenario.seed}, step {number}, {key}"
            compared += sum(map(len, theirs.values()))
            if number == scenario.restart_after:
                for engine in engines:
                    engine.stop()
    finally:
        for engine in engines:
            engine.stop()
    return compared


@pytest.fixture
def rocks(spark):
    before = spark.conf.get(PROVIDER, None)
    spark.conf.set(PROVIDER, ROCKS)
    yield spark
    spark.conf.unset(PROVIDER) if before is None else spark.conf.set(PROVIDER, before)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_drop_in_gives_what_spark_gives(rocks, tmp_path, scenario):
    assert run(rocks, tmp_path, scenario) > 3 * scenario.traces


def test_there_are_enough_traces():
    assert sum(scenario.traces for scenario in SCENARIOS) >= 200


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 106))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_drop_in_gives_what_spark_gives_for_long(rocks, tmp_path, scenario, seed):
    longer = {**scenario.__dict__, "seed": seed, "traces": 200, "steps": scenario.steps + 3}
    assert run(rocks, tmp_path, Scenario(**longer)) > 200
