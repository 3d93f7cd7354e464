"""Names that Spark allows and our tables do not: users see the ones that they gave. No Spark runs."""

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

from floodplain.cli.inspection import inspect_store
from floodplain.errors import BadInput, SchemaMismatch
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit
from floodplain.tiers.paths import is_name
from floodplain.versions.log.commit import commit
from floodplain.versions.records.edit import PutDefinition
from tests.cli.stores import run, run_json

LONG = StructType().add("n", LongType())
TEXT = StructType().add("s", StringType())
ROWS = StructType().add("userId", StringType()).add("n", LongType())
OUTPUT = StructType().add("userId", StringType())
NAMES = ("countState", "Zähler", "a pair, with Blanks", "[bold]", "x" * 200, "userId", "数", "plain", "a.b/../c", "a__b")


class Named(StatefulProcessor):
    """Has a value, a list and a map of each name it is given, in turn."""

    def __init__(self, names, schema=LONG):
        self.names, self.schema = names, schema

    def init(self, handle):
        kinds = [handle.getValueState, handle.getListState, lambda name, schema: handle.getMapState(name, LONG, schema)]
        self.states = [kinds[at % 3](name, self.schema) for at, name in enumerate(self.names)]

    def handleInputRows(self, key, rows, timerValues):
        n = (sum(row.n for row in rows),)
        for at, state in enumerate(self.states):
            write(at, state, n)
        yield Row(userId=key[0])


def write(at, state, value):
    if at % 3 == 0:
        state.update(value)
    elif at % 3 == 1:
        state.appendValue(value)
    else:
        state.updateValue((1,), value)


def stateful(names, schema=LONG) -> StatefulProcess:
    processor = Named(names, schema)
    declared, _ = declared_by(processor, "none", lambda text: None)
    return StatefulProcess(processor, Shape(ROWS, ("userId",), OUTPUT), "none", declared, {}, pandas=False)


def pipeline(process) -> PipelineKit:
    return PipelineKit(built(process), rows="userId string, n long")


def built(process):
    return lambda rows: rows.key_by("userId").process(process, name="tws").write("memory")


@pytest.fixture
def kit() -> PipelineKit:
    made = pipeline(stateful(NAMES))
    made.epoch([{"userId": "ada", "n": 1}, {"userId": "bob", "n": 2}])
    return made


def test_what_the_log_has_are_names_that_paths_could_bear(kit):
    for table, versions in kit.store.head.schemas.items():
        assert is_name(table) and all(is_name(field.name) for field in versions[-1].fields)


def test_tables_have_the_names_of_their_users(kit):
    own = [f"tws__{name}" for at, name in enumerate(NAMES) if at % 3]
    assert set(kit.store.snapshot().tables) == {"tws", "tws__event_timers", "tws__processing_timers", *own}


@pytest.mark.parametrize(("at", "name"), list(enumerate(NAMES)))
def test_a_state_is_found_by_the_name_of_its_user(kit, at, name):
    snapshot, key = kit.store.snapshot(), pa.table({"userId": ["bob"]})
    if at % 3 == 0:
        (row,) = snapshot.table("tws").multi_get(key).rows.to_pylist()
        assert row["userId"] == "bob" and row[name] == 2
        with pytest.raises(BadInput, match="is a column of tws"):
            snapshot.table(name)
    else:
        for view in (snapshot.table(name), snapshot.table(f"tws__{name}")):
            (row,) = view.multi_get(key).rows.to_pylist()
            assert (row["userId"], row["value"]) == ("bob", 2)
            assert [row["userId"] for row in view.to_arrow(columns=["userId"]).to_pylist()] in (["ada", "bob"], ["bob", "ada"])


def test_names_in_the_log_are_found_too(kit):
    snapshot = kit.store.snapshot()
    for table in kit.store.head.schemas:
        assert snapshot.table(table).count() == snapshot.stored(table).count()


def test_a_state_with_the_name_of_a_key_is_told_apart():
    made = pipeline(stateful(["userId"]))
    made.epoch([{"userId": "ada", "n": 7}])
    (row,) = made.store.snapshot().table("tws").to_arrow().to_pylist()
    assert {"ada", 7} <= set(row.values()) and len(row) == 3


def test_differences_are_found_by_the_name_of_the_user(kit):
    kit.epoch([{"userId": "cem", "n": 3}])
    assert sum(len(change.added) for change in kit.store.diff("tws__Zähler", 1, 2)) == 1


def test_inspect_shows_them(kit):
    shown = inspect_store("memory://kit", kit.store)
    assert {*NAMES} == {*shown.operators[0].states}
    assert shown.operators[0].states["Zähler"] == "ListState n long"
    assert [table.name for table in shown.tables if table.stored_as == "tws"] == ["tws"]
    values = next(table for table in shown.tables if table.name == "tws")
    assert {"userId", "countState", "countState__null", "数"} <= {column.name for column in values.columns}


def test_the_command_prints_them_as_they_are(tmp_path):
    made = ProcessKit(stateful(NAMES), rows="userId string, n long", keys=["userId"], location=str(tmp_path), name="tws")
    made.epoch([{"userId": "ada", "n": 1}])
    made.epoch([{"userId": "ada", "n": 1}])
    made.writer.close()
    text = run("inspect", tmp_path)
    assert text.exit_code == 0 and "tws__Zähler" in text.stdout and "[bold]" in text.stdout
    assert "tws__Zähler" in [table["name"] for table in run_json("rollback", tmp_path, "--to", 1, "--dry-run")["tables"]]
    assert "tws__Zähler" in run_json("compact", tmp_path, "--full")["tables"]


def test_a_refusal_has_them():
    made = pipeline(stateful(NAMES))
    made.epoch([{"userId": "ada", "n": 1}])
    made.stop()
    with pytest.raises(SchemaMismatch, match="countState") as refused:
        made.restart(built(stateful(NAMES, TEXT)))
    assert "countstate_" not in str(refused.value)


def test_a_state_of_a_release_that_recorded_no_names_is_read_by_those_of_its_tables(kit):
    epoch = kit.store.head.epoch
    head = kit.store.head
    definition = msgspec.structs.replace(head.definitions["tws"], spark=None)
    commit(kit.store.history, [PutDefinition("tws", definition)], token=head.lease.token)
    snapshot = kit.store.snapshot()
    assert snapshot.epoch == epoch and set(snapshot.tables) == set(head.schemas)
    kit.restart()
    kit.epoch([{"userId": "ada", "n": 1}])
    assert "tws__Zähler" in kit.store.snapshot().tables
