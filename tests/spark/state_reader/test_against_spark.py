"""Our readers of state against Spark's: the same processor, the same input, the same options."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.spark.transform_with_state.test_traces import PROVIDER, ROCKS, Engine, Scenario, write_step
from tests.spark.transform_with_state.traces import lives

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PLAIN = Scenario("no time", "None", 30, 3, slots=2, initial=True)
TIMED = Scenario("event time", "EventTime", 30, 3, slots=2, keys=("g", "k"), pandas=True, output="update")
EXPIRING = Scenario("time to live", "ProcessingTime", 30, 2, ttl=True)
FORMATS = {False: "", True: "floodplain-"}
TTL = "ttlExpirationMs"


class Both:
    """A scenario run on both engines, and read from both states."""

    def __init__(self, spark, folder: Path, scenario: Scenario) -> None:
        self.spark, self.folder = spark, folder
        (folder / "input").mkdir(parents=True)
        traces = lives(scenario.seed, scenario.traces, scenario.steps, scenario.mode, ttl=scenario.ttl)
        engines = [Engine(spark, folder, scenario, ours) for ours in (False, True)]
        try:
            for number in range(scenario.steps):
                write_step(folder, number, traces)
                for engine in engines:
                    engine.step()
        finally:
            for engine in engines:
                engine.stop()

    def state(self, ours: bool, **options):
        reader = self.spark.read.format(f"{FORMATS[ours]}statestore").options(**options)
        return reader.load(str(self.folder / f"ours-{ours}"))

    def metadata(self, ours: bool):
        return self.spark.read.format(f"{FORMATS[ours]}state-metadata").load(str(self.folder / f"ours-{ours}"))

    def compare(self, **options) -> int:
        """How many rows both have."""
        theirs, ours = (self.state(side, **options) for side in (False, True))
        assert ours.schema.jsonValue() == theirs.schema.jsonValue(), options
        found = [sorted(map(plain, frame.drop("partition_id").collect())) for frame in (theirs, ours)]
        assert found[1] == found[0], options
        return len(found[0])


def plain(row) -> str:
    """A row as text, without times that depend on when it was written, and with the entries of maps in order."""
    return json.dumps(_plain(row), default=str, sort_keys=True)


def _plain(value):
    if hasattr(value, "asDict"):
        return {name: name if name == TTL and part else _plain(part) for name, part in value.asDict(False).items()}
    if isinstance(value, dict):
        return sorted(json.dumps([_plain(key), _plain(part)], default=str) for key, part in value.items())
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


@pytest.fixture(scope="module")
def rocks(spark):
    before = {name: spark.conf.get(name, None) for name in (PROVIDER, CHANGELOG)}
    spark.conf.set(PROVIDER, ROCKS)
    spark.conf.set(CHANGELOG, "true")
    yield spark
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.fixture(scope="module")
def untimed(rocks, tmp_path_factory):
    return Both(rocks, tmp_path_factory.mktemp("none"), PLAIN)


def variables(both: Both, ours: bool) -> dict[str, tuple[str, bool]]:
    (row,) = both.metadata(ours).collect()
    listed = json.loads(row.operatorProperties)["stateVariables"]
    return {each["stateName"]: (each["stateVariableType"], each["ttlEnabled"]) for each in listed}


def check_metadata(both: Both) -> None:
    theirs, ours = (both.metadata(side) for side in (False, True))
    assert ours.schema.jsonValue() == theirs.schema.jsonValue()
    names = ["operatorId", "operatorName", "stateStoreName", "minBatchId"]
    assert ours.select(names).collect() == theirs.select(names).collect()
    modes = [json.loads(frame.collect()[0].operatorProperties) for frame in (theirs, ours)]
    assert [modes[1][name] for name in ("timeMode", "outputMode")] == [modes[0][name] for name in ("timeMode", "outputMode")]
    assert variables(both, True) == variables(both, False)


def check_all_variables(both: Both) -> int:
    compared = 0
    for name, (kind, _) in variables(both, False).items():
        if kind == "TimerState":
            compared += both.compare(readRegisteredTimers=True)
        else:
            compared += both.compare(stateVarName=name)
        if kind in ("ListState", "MapState"):
            both.compare(stateVarName=name, flattenCollectionTypes=False)
    return compared


def test_every_variable_of_a_processor_is_read_as_spark_reads_it(untimed):
    check_metadata(untimed)
    assert check_all_variables(untimed) > 30


def test_event_time_timers_and_keys_of_two_columns(rocks, tmp_path):
    both = Both(rocks, tmp_path, TIMED)
    check_metadata(both)
    assert check_all_variables(both) > 30
    assert both.state(True, readRegisteredTimers=True).count() > 0


def test_time_to_live_is_in_the_columns(rocks, tmp_path):
    both = Both(rocks, tmp_path, EXPIRING)
    check_metadata(both)
    assert check_all_variables(both) > 10
    (value,) = both.state(True, stateVarName="lasting").select(f"value.{TTL}").limit(1).collect()
    assert value[0] > 10**10


@pytest.mark.parametrize("name", ["countState", "items", "wordsByKey"])
def test_each_batch_can_be_read(untimed, name):
    counts = [untimed.compare(stateVarName=name, batchId=batch) for batch in range(PLAIN.steps)]
    assert counts[-1] == untimed.compare(stateVarName=name)


def folded(rows, upto: int) -> dict[str, list[str]]:
    """The state that the changes up to a batch make."""
    state: dict[str, list[str]] = defaultdict(list)
    for row in sorted((row for row in rows if row.batch_id <= upto), key=lambda row: row.batch_id):
        fields = row.asDict()
        entry = plain(row.key) + (plain(row.user_map_key) if "user_map_key" in fields else "")
        value = next(plain(fields[name]) for name in ("value", "list_element", "user_map_value") if name in fields)
        state[entry] = {"update": [value], "append": [*state[entry], value], "delete": []}[row.change_type]
    return {entry: values for entry, values in state.items() if values}


@pytest.mark.parametrize("name", ["countState", "a pair, with Blanks", "items", "pairs", "wordsByKey", "arrayItems"])
def test_changes_add_up_to_what_those_of_spark_add_up_to(untimed, name):
    feeds = [untimed.state(ours, stateVarName=name, readChangeFeed=True, changeStartBatchId=0) for ours in (False, True)]
    assert feeds[1].schema.jsonValue() == feeds[0].schema.jsonValue()
    theirs, ours = (feed.collect() for feed in feeds)
    assert len(ours) >= 3
    for batch in range(PLAIN.steps):
        assert folded(ours, batch) == folded(theirs, batch), batch
    later = untimed.state(True, stateVarName=name, readChangeFeed=True, changeStartBatchId=1, changeEndBatchId=1).collect()
    assert sorted(map(plain, later)) == sorted(plain(row) for row in ours if row.batch_id == 1)


def test_partitions_divide_the_state(untimed):
    rows = untimed.state(True, stateVarName="countState").collect()
    for partition in range(PLAIN.slots):
        some = untimed.state(True, stateVarName="countState", snapshotStartBatchId=0, snapshotPartitionId=partition).collect()
        assert sorted(map(plain, some)) == sorted(plain(row) for row in rows if row.partition_id == partition)
        assert some
