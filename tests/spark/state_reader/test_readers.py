"""The readers of state on states of every kind, run as Spark's workers run them, without Spark."""

import json
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

import floodplain as fp
from floodplain.errors import BadInput, Refused
from floodplain.spark.state_reader.state_source import StateStoreSource
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.store.store import Store
from tests.spark.state_reader.directory_kit import DirectoryKit, read_metadata, read_state, rows_of, source_of

LONG = StructType().add("n", LongType())
PAIR = StructType().add("n", LongType(), nullable=False).add("s", StringType())
ROWS = StructType().add("userId", StringType()).add("op", StringType())
OUTPUT = StructType().add("out", StringType())
BOUNDS = ("-1 hour", "1 hour")


class Ops(StatefulProcessor):
    """Runs the expression that a row has."""

    ttl_ms: ClassVar[int | None] = None

    def init(self, handle):
        self.names = {
            "handle": handle,
            "count": handle.getValueState("countState", LONG, self.ttl_ms),
            "pair": handle.getValueState("pairState", PAIR, self.ttl_ms),
            "items": handle.getListState("items", PAIR, self.ttl_ms),
            "words": handle.getMapState("wordsByKey", StructType().add("w", StringType()), LONG, self.ttl_ms),
        }

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            eval(row.op, dict(self.names))
        yield Row(out="")


class Expiring(Ops):
    ttl_ms = 1_000


def built(processor, mode):
    declared, _ = declared_by(processor, mode, lambda text: None)
    process = StatefulProcess(processor, Shape(ROWS, ("userId",), OUTPUT), mode, declared, {}, pandas=False)
    return lambda rows: rows.key_by("userId").process(process, name="transform_with_state").write("memory")


def kit(folder, processor=None, mode="processingtime", **more) -> DirectoryKit:
    return DirectoryKit(folder, built(processor or Ops(), mode), rows="userId string, op string", **more)


def do(made: DirectoryKit, *ops: str, user: str = "ada", now_ms: int | None = None) -> None:
    made.epoch([{"userId": user, "op": op} for op in ops], now_ms=now_ms)


def refusal(**options: object) -> str:
    with pytest.raises((PySparkRuntimeError, BadInput)) as refused:
        rows_of(source_of(StateStoreSource, **options))
    return str(refused.value)


@pytest.fixture
def made(tmp_path) -> DirectoryKit:
    made = kit(tmp_path / "state")
    do(made, "count.update((1,))", "items.put([(1, 'a'), (2, None)])", "words.updateValue(('w',), (5,))")
    do(made, "count.update((None,))", "pair.update((7, 's'))", user="bob")
    do(made, "handle.registerTimer(10**15)", user="bob")
    return made


def test_values(made):
    rows = made.read(stateVarName="countState")
    assert sorted((row["key"]["userId"], row["value"]["n"]) for row in rows) == [("ada", 1), ("bob", None)]
    assert [(row["key"], row["value"]) for row in made.read(stateVarName="pairState")] == [
        ({"userId": "bob"}, {"n": 7, "s": "s"})
    ]


def test_lists(made):
    rows = made.read(stateVarName="items")
    assert [row["list_element"] for row in rows] == [{"n": 1, "s": "a"}, {"n": 2, "s": None}]
    (row,) = made.read(stateVarName="items", flattenCollectionTypes=False)
    assert row["list_value"] == [{"n": 1, "s": "a"}, {"n": 2, "s": None}]


def test_maps(made):
    (row,) = made.read(stateVarName="wordsByKey")
    assert (row["user_map_key"], row["user_map_value"]) == ({"w": "w"}, {"n": 5})
    (row,) = made.read(stateVarName="wordsByKey", flattenCollectionTypes="false")
    assert row["map_value"] == [({"w": "w"}, {"n": 5})]


def test_timers(made):
    for options in ({"readRegisteredTimers": "true"}, {"stateVarName": "$procTimers_keyToTimestamp"}):
        (row,) = made.read(**options)
        assert (row["key"], row["expiration_timestamp_ms"]) == ({"userId": "bob"}, 10**15)


def test_schemas_are_those_that_were_declared(made):
    schema = source_of(StateStoreSource, path=made.folder, stateVarName="items").schema()
    assert schema.names == ["key", "list_element", "partition_id"]
    assert schema["list_element"].dataType == PAIR
    assert schema["key"].dataType == StructType().add("userId", StringType())


def test_a_schema_of_the_users_own_is_refused(made):
    source = source_of(StateStoreSource, path=made.folder, stateVarName="items")
    with pytest.raises(BadInput, match="schema of its own"):
        source.reader(LONG)


def test_time_to_live(tmp_path):
    made = kit(tmp_path, Expiring())
    do(made, "count.update((1,))", "items.appendValue((1, None))", "words.updateValue(('w',), (5,))", now_ms=10_000)
    assert [row["value"] for row in made.read(stateVarName="countState")] == [{"value": {"n": 1}, "ttlExpirationMs": 11_000}]
    (element,) = made.read(stateVarName="items")
    assert element["list_element"] == {"value": {"n": 1, "s": None}, "ttlExpirationMs": 11_000}
    (entry,) = made.read(stateVarName="wordsByKey")
    assert entry["user_map_value"] == {"value": {"n": 5}, "ttlExpirationMs": 11_000}
    do(made, "count.update((1,))", now_ms=10_500)
    feed = {"stateVarName": "countState", "readChangeFeed": True, "changeStartBatchId": 1}
    (change,) = made.read(**feed)
    assert change["value"] == {"value": {"n": 1}, "ttlExpirationMs": 11_500}, "the same value for longer is a change"
    do(made, "words.keys()", now_ms=20_000)
    assert not any(made.read(stateVarName=name) for name in ("countState", "items", "wordsByKey"))
    assert [(row["batch_id"], row["change_type"], row["value"]) for row in made.read(**feed)][-1] == (2, "delete", None)


def test_batches_are_epochs_from_0_on(made):
    assert [row["value"]["n"] for row in made.read(stateVarName="countState", batchId=0)] == [1]
    assert len(made.read(stateVarName="countState", batchId=1)) == 2
    assert "STDS_COMMITTED_BATCH_UNAVAILABLE" in refusal(path=made.folder, stateVarName="items", batchId=9)


def test_a_batch_whose_output_is_not_through_does_not_count_yet(made):
    commits = made.folder / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    assert len(made.read(stateVarName="pairState")) == 1
    assert read_metadata(path=made.folder)[0][4:6] == (0, 1), "batch 2 is not noted"
    made.tick(now_ms=1)
    (commits / "2").touch()
    assert read_metadata(path=made.folder)[0][4:6] == (0, 2)


def test_the_first_batch_whose_output_is_not_through(tmp_path):
    made = kit(tmp_path)
    do(made, "count.update((1,))")
    (tmp_path / "checkpoint").mkdir()
    assert "STDS_COMMITTED_BATCH_UNAVAILABLE" in refusal(path=tmp_path, stateVarName="countState")
    assert read_metadata(path=tmp_path)[0][4:6] == (-1, -1)


def test_a_read_stays_with_its_epoch_while_the_query_goes_on(made):
    source = source_of(StateStoreSource, path=made.folder, stateVarName="countState")
    do(made, "count.update((99,))", "items.clear()")
    assert sorted(str(row["value"]["n"]) for batch in rows_of(source) for row in batch.to_pylist()) == ["1", "None"]


def test_what_is_planned_can_be_read_though_the_epoch_is_forgotten_and_its_files_collected(tmp_path):
    settings = fp.StoreSettings(key_groups=16, retention=fp.RetentionSettings(newest=1, every_ms=()))
    made = kit(tmp_path, settings=settings)
    do(made, "count.update((1,))")
    reader = source_of(StateStoreSource, path=tmp_path, stateVarName="countState").reader(
        source_of(StateStoreSource, path=tmp_path, stateVarName="countState").schema()
    )
    planned = reader.partitions()
    for n in range(5):
        do(made, f"count.update(({n},))")
        made._epochs.writer.collect_garbage()
    assert 1 not in [mark.epoch for mark in made.store.head.epochs]
    (row,) = [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]
    assert row["value"] == {"n": 1}


def test_changes(made):
    do(made, "count.clear()", "items.appendValue((3, 'c'))", "words.removeKey(('w',))")
    do(made, "items.put([(9, None)])", "count.update((4,))")
    do(made, "items.clear()")
    feed = {"readChangeFeed": True, "changeStartBatchId": 0}
    values = [(row["batch_id"], row["change_type"], row["value"]) for row in made.read(stateVarName="countState", **feed)]
    assert sorted(values, key=str) == sorted(
        [(0, "update", {"n": 1}), (1, "update", {"n": None}), (3, "delete", None), (4, "update", {"n": 4})], key=str
    )
    items = [
        (row["batch_id"], row["change_type"], row["list_element"] and row["list_element"]["n"])
        for row in made.read(stateVarName="items", **feed)
    ]
    expected = [(0, "append", 1), (0, "append", 2), (3, "append", 3), (4, "update", 9), (5, "delete", None)]
    assert sorted(items, key=str) == expected
    words = [(row["batch_id"], row["change_type"], row["user_map_value"]) for row in made.read(stateVarName="wordsByKey", **feed)]
    assert words == [(0, "update", {"n": 5}), (3, "delete", None)]
    assert made.read(stateVarName="pairState", **{**feed, "changeEndBatchId": 0}) == []


def test_partitions(tmp_path):
    made = kit(tmp_path, slots=3)
    made.epoch([{"userId": f"u{n}", "op": f"count.update(({n},))"} for n in range(40)])
    rows = made.read(stateVarName="countState")
    assert {row["partition_id"] for row in rows} == {0, 1, 2} and len(rows) == 40
    for number in range(3):
        some = made.read(stateVarName="countState", snapshotStartBatchId=0, snapshotPartitionId=number)
        assert some == [row for row in rows if row["partition_id"] == number]
    assert read_metadata(path=tmp_path)[0][3] == 3
    told = refusal(path=tmp_path, stateVarName="countState", snapshotStartBatchId=0, snapshotPartitionId=3)
    assert "CANNOT_LOAD_STATE_STORE.SNAPSHOT_PARTITION_ID_NOT_FOUND" in told


def test_metadata(made):
    ((number, name, store, _, first, last, properties),) = read_metadata(path=made.folder)
    assert (number, name, store, first, last) == (0, "transformWithStateInPySparkExec", "default", 0, 2)
    assert json.loads(properties) == {
        "timeMode": "ProcessingTime",
        "outputMode": "Append",
        "stateVariables": [
            {"stateName": "countState", "stateVariableType": "ValueState", "ttlEnabled": False},
            {"stateName": "pairState", "stateVariableType": "ValueState", "ttlEnabled": False},
            {"stateName": "items", "stateVariableType": "ListState", "ttlEnabled": False},
            {"stateName": "wordsByKey", "stateVariableType": "MapState", "ttlEnabled": False},
            {"stateName": "$procTimers_keyToTimestamp", "stateVariableType": "TimerState", "ttlEnabled": False},
        ],
    }


@pytest.mark.parametrize(
    ("options", "condition", "words"),
    [
        ({}, "STDS_REQUIRED_OPTION_UNSPECIFIED", "'stateVarName' must be specified"),
        ({"stateVarName": "countstate"}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "countstate is not defined"),
        ({"operatorId": -1}, "STDS_INVALID_OPTION_VALUE.IS_NEGATIVE", "'operatorId'"),
        ({"operatorId": "x"}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "'operatorId'"),
        ({"operatorId": 1}, "STDS_FAILED_TO_READ_STATE_SCHEMA", "0 (transform_with_state)"),
        ({"storeName": " "}, "STDS_INVALID_OPTION_VALUE.IS_EMPTY", "'storeName'"),
        ({"storeName": "left-keyToNumValues"}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "'storeName'"),
        ({"storeName": "x", "joinSide": "left"}, "STDS_CONFLICT_OPTIONS", "['joinSide', 'storeName']"),
        ({"joinSide": "middle"}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "left,right,none"),
        ({"joinSide": "left"}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "'joinSide'"),
        ({"batchId": -1}, "STDS_INVALID_OPTION_VALUE.IS_NEGATIVE", "'batchId'"),
        ({"readRegisteredTimers": "yes"}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "Boolean value is expected"),
        (
            {"readRegisteredTimers": True, "stateVarName": "a"},
            "STDS_CONFLICT_OPTIONS",
            "['readRegisteredTimers', 'stateVarName']",
        ),
        ({"readRegisteredTimers": True, "readChangeFeed": True}, "STDS_CONFLICT_OPTIONS", "'readChangeFeed'"),
        ({"flattenCollectionTypes": 1}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "'flattenCollectionTypes'"),
        ({"_readAllColumnFamilies": True}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "'_readAllColumnFamilies'"),
        ({"readChangeFeed": True}, "STDS_REQUIRED_OPTION_UNSPECIFIED", "'changeStartBatchId'"),
        ({"readChangeFeed": True, "batchId": 0}, "STDS_CONFLICT_OPTIONS", "['batchId', 'readChangeFeed']"),
        ({"readChangeFeed": True, "joinSide": "left"}, "STDS_CONFLICT_OPTIONS", "['joinSide', 'readChangeFeed']"),
        ({"readChangeFeed": True, "snapshotPartitionId": 0}, "STDS_CONFLICT_OPTIONS", "'snapshotPartitionId'"),
        ({"readChangeFeed": True, "snapshotStartBatchId": 0}, "STDS_CONFLICT_OPTIONS", "'snapshotStartBatchId'"),
        ({"readChangeFeed": True, "changeStartBatchId": -2}, "STDS_INVALID_OPTION_VALUE.IS_NEGATIVE", "'changeStartBatchId'"),
        ({"readChangeFeed": True, "changeStartBatchId": 3}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "cannot be smaller"),
        ({"changeStartBatchId": 0}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "Only specify this option"),
        ({"changeEndBatchId": 0}, "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE", "Only specify this option"),
        ({"snapshotStartBatchId": 0}, "STDS_REQUIRED_OPTION_UNSPECIFIED", "'snapshotPartitionId'"),
        ({"snapshotPartitionId": 0}, "STDS_REQUIRED_OPTION_UNSPECIFIED", "'snapshotStartBatchId'"),
        (
            {"snapshotStartBatchId": 5, "snapshotPartitionId": 0},
            "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE",
            "less than or equal to 2",
        ),
    ],
    ids=str,
)
def test_what_spark_refuses_is_refused_with_its_condition(made, options, condition, words):
    told = refusal(path=made.folder, **options)
    assert told.startswith(f"[{condition}]") and words in told and "SQLSTATE" in told


def test_a_change_feed_of_timers_is_refused(made):
    told = refusal(path=made.folder, stateVarName="$procTimers_keyToTimestamp", readChangeFeed=True, changeStartBatchId=0)
    assert "STDS_INVALID_OPTION_VALUE" in told


def test_timers_without_a_time_mode_are_refused(tmp_path):
    made = kit(tmp_path, mode="none")
    do(made, "count.update((1,))")
    assert "TimeMode=None" in refusal(path=tmp_path, readRegisteredTimers=True)
    assert "$procTimers" not in read_metadata(path=tmp_path)[0][6]


def test_without_a_path():
    assert "'path' must be specified" in refusal(stateVarName="a")


def test_where_there_is_no_state(tmp_path):
    assert "STDS_COMMITTED_BATCH_UNAVAILABLE" in refusal(path=tmp_path / "none", stateVarName="a")
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").touch()
    assert "of Spark itself" in refusal(path=tmp_path, stateVarName="a")


def test_a_state_that_a_release_without_names_has_written(tmp_path, monkeypatch):
    monkeypatch.setattr(StatefulProcess, "_in_sparks_terms", lambda self: None)
    made = kit(tmp_path)
    do(made, "count.update((1,))", "items.appendValue((2, 'b'))", "words.updateValue(('w',), (5,))")
    listed = [each["stateName"] for each in json.loads(read_metadata(path=tmp_path)[0][6])["stateVariables"]]
    count = next(name for name in listed if name.startswith("countstate_"))
    ((key, value),) = [(row["key"], row["value"]) for row in made.read(stateVarName=count)]
    assert key == {"userId": "ada"} and value == {count: 1}
    assert [row["list_element"] for row in made.read(stateVarName="items")] == [{"n": 2, "s": "b"}]


def test_a_variable_that_came_later_has_no_changes_before_it_came(tmp_path):
    class Fewer(Ops):
        def init(self, handle):
            self.names = {"count": handle.getValueState("countState", LONG)}

    made = kit(tmp_path, Fewer())
    do(made, "count.update((1,))")
    made.stop()
    made.restart(built(Ops(), "processingtime"))
    do(made, "items.appendValue((1, 'a'))")
    rows = made.read(stateVarName="items", readChangeFeed=True, changeStartBatchId=0)
    assert [row["change_type"] for row in rows] == ["append"]


class Native(fp.KeyedProcess):
    views = fp.Value("long", default=0)
    place = fp.Value("struct<x: int, y: string>")
    total = fp.Reducing("long", "sum")
    trail = fp.List("string", ttl="1 hour")
    pages = fp.Map("string", "long")
    tags = fp.Set("string")
    output = "user string"

    def process(self, key, rows, ctx):
        for row in rows:
            self.views.set(self.views.get() + 1)
            self.place.set({"x": row.n, "y": "p"})
            self.total.add(row.n)
            self.trail.append(f"t{row.n}")
            self.pages.put("a", row.n)
            self.tags.add("t")
        ctx.processing_timer(10**12)
        yield (key.User,)

    def on_timer(self, key, at, ctx):
        return ()


@pytest.fixture
def native(tmp_path) -> DirectoryKit:
    def build(rows):
        named = rows.key_by("User").process(Native(), name="sessions")
        return named.key_by("user").agg(n=fp.count(), name="counts").write("memory")

    made = DirectoryKit(tmp_path / "native", build, rows="User string, n long")
    made.epoch([{"User": "ada", "n": 3}], now_ms=5)
    return made


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("views", {"value": {"views": 1}}),
        ("place", {"value": {"x": 3, "y": "p"}}),
        ("total", {"value": {"total": 3}}),
        ("trail", {"list_element": {"value": {"value": "t3"}, "ttlExpirationMs": 3_600_005}}),
        ("pages", {"user_map_key": {"key": "a"}, "user_map_value": {"value": 3}}),
        ("tags", {"list_element": {"element": "t"}}),
        ("$procTimers_keyToTimestamp", {"expiration_timestamp_ms": 10**12}),
        ("sessions__pages", {"user_map_key": {"key": "a"}, "user_map_value": {"value": 3}}),
    ],
)
def test_states_of_our_own_operators(native, name, columns):
    (row,) = native.read(stateVarName=name)
    assert {column: value for column, value in row.items() if column != "partition_id"} == {"key": {"User": "ada"}, **columns}


def test_without_a_variable_all_values_of_a_key_come_side_by_side(native):
    (row,) = native.read()
    assert row["value"] == {"views": 1, "place": {"x": 3, "y": "p"}, "total": 3}
    (row,) = native.read(operatorId=1)
    assert row["key"] == {"user": "ada"} and 1 in row["value"].values()


def test_metadata_of_our_own_operators(native):
    found = {row[1]: row for row in read_metadata(path=native.folder)}
    assert {name: row[0] for name, row in found.items()} == {"sessions": 0, "counts": 1}
    listed = json.loads(found["sessions"][6])["stateVariables"]
    assert {"stateName": "trail", "stateVariableType": "ListState", "ttlEnabled": True} in listed


def test_a_change_feed_of_our_own_operators(native):
    native.epoch([{"User": "ada", "n": 4}, {"User": "bob", "n": 1}], now_ms=6)
    rows = native.read(stateVarName="total", readChangeFeed=True, changeStartBatchId=1)
    assert sorted((row["key"]["User"], row["value"]["total"]) for row in rows) == [("ada", 7), ("bob", 1)]


def test_a_side_of_a_join(tmp_path):
    def build(clicks):
        timed = clicks.watermark("at", "0 seconds")
        return (
            timed.source("clicks")
            .join(timed.source("buys"), "user", within=BOUNDS, suffixes=("_l", "_r"), name="join")
            .write("memory")
        )

    columns = {"clicks": "user string, at timestamp", "buys": "user string, at timestamp"}
    made = DirectoryKit(tmp_path, build, rows=columns)
    made.epoch([{"source": "clicks", "user": "ada", "at": 5_000_000}])
    (row,) = made.read(joinSide="left")
    assert row["key"] == {"user": "ada"} and set(row) == {"key", "value", "partition_id"}
    assert made.read(joinSide="right") == []


def test_a_state_that_a_program_has_written(tmp_path):
    with Store.open(tmp_path, create=True).writer("program") as writer:
        writer.define(fp.value_table("counts", {"user": pa.string()}, {"n": fp.Column(pa.int64())}))
        writer.put("counts", pa.table({"user": ["ada"], "n": [1]}))
    assert read_state(path=tmp_path) == [{"key": {"user": "ada"}, "value": {"n": 1}, "partition_id": 0}]
    assert read_metadata(path=tmp_path)[0][:6] == (0, "counts", "default", 1, 0, 0)


def test_a_schema_that_has_changed(tmp_path):
    class Wider(Ops):
        def init(self, handle):
            wider = StructType().add("s", StringType()).add("more", LongType()).add("n", LongType())
            self.names = {"pair": handle.getValueState("pairState", wider), "items": handle.getListState("items", wider)}

    made = kit(tmp_path)
    do(made, "pair.update((1, 'a'))", "items.appendValue((1, 'a'))", user="old")
    made.stop()
    made.restart(built(Wider(), "processingtime"))
    do(made, "pair.update(('b', 2, 3))", "items.appendValue(('b', 2, 3))", user="new")
    was, now = {"s": "a", "more": None, "n": 1}, {"s": "b", "more": 2, "n": 3}
    assert sorted((row["value"] for row in made.read(stateVarName="pairState")), key=str) == sorted([was, now], key=str)
    feed = {"readChangeFeed": True, "changeStartBatchId": 0}
    for name, column in (("pairState", "value"), ("items", "list_element")):
        rows = sorted((row["batch_id"], row[column]) for row in made.read(stateVarName=name, **feed))
        assert [value for _, value in rows] == [was, now]
    (row,) = made.read(stateVarName="pairState", batchId=0)
    assert row["value"] == {"n": 1, "s": "a"}


def test_a_state_in_an_object_store(s3_server):
    url = s3_server.url("state-reader")
    with Store.open(url, create=True, options=s3_server.options).writer("program") as writer:
        writer.define(fp.value_table("counts", {"user": pa.string()}, {"n": fp.Column(pa.int64())}))
        writer.put("counts", pa.table({"user": ["ada"], "n": [1]}))
    access = {f"floodplain.store.{name}": value for name, value in s3_server.options.items()}
    assert read_state(path=url, **access) == [{"key": {"user": "ada"}, "value": {"n": 1}, "partition_id": 0}]
    assert read_metadata(path=url, **access)[0][1] == "counts"


def test_a_state_that_may_only_be_read_is_read_without_pins(made, monkeypatch):
    def refuse(*args):
        raise Refused("read only")

    monkeypatch.setattr("floodplain.spark.state_reader.state_source.pin", refuse)
    assert len(made.read(stateVarName="countState")) == 2
    assert len(made.read(stateVarName="countState", readChangeFeed=True, changeStartBatchId=0)) == 2
