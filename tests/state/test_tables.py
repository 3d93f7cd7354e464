import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import BadName, SchemaMismatch
from floodplain.state.descriptors import Timers
from floodplain.state.positions import pack, unpack
from floodplain.state.tables import StateColumn, define, safe_names, tables_for
from tests.state.test_descriptors import average

SETTINGS = fp.StoreSettings(key_groups=4, sync=False)
STATES = {
    "views": fp.Value("long", default=0),
    "name": fp.Value("string", ttl="1 second"),
    "total": fp.Reducing("long", "sum"),
    "mean": average(),
    "last": fp.Value("string", ttl="10 seconds", ttl_clock="event"),
    "trail": fp.List("string"),
    "pages": fp.Map("string", "long", ttl="1 hour"),
    "seen": fp.Set("struct<a: int>"),
    "due": Timers("event"),
    "tick": Timers("processing"),
}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def writer(tmp_path, clock):
    store = fp.open(tmp_path, create=True, settings=SETTINGS, clock=clock, randomness=SeededRandomness(1))
    with store.writer("test") as writer:
        yield writer


def schema(tables, name):
    return next(schema for schema in tables.schemas if schema.table == name)


def columns(schema) -> dict[str, pa.DataType]:
    return {field.name: field.arrow for field in schema.fields}


def test_values_stand_side_by_side_and_the_rest_alone():
    tables = tables_for("sessions", "user string", STATES)
    assert {schema.table: schema.shape for schema in tables.schemas} == {
        "sessions": "value",
        "sessions___event": "value",
        "sessions__due": "time",
        "sessions__pages": "hashed",
        "sessions__seen": "hashed",
        "sessions__tick": "time",
        "sessions__trail": "ordered",
    }
    assert columns(schema(tables, "sessions")) == {
        "user": pa.string(),
        "views": pa.int64(),
        "views__null": pa.bool_(),
        "name": pa.string(),
        "name__null": pa.bool_(),
        "total": pa.int64(),
        "mean": pa.struct([("n", pa.int64()), ("total", pa.float64())]),
    }
    assert schema(tables, "sessions___event").ttl_clock == "event_time"
    assert schema(tables, "sessions__pages").ttl_ms == 3_600_000
    assert tables.places["views"] == StateColumn("sessions", "views", null_mark="views__null")
    assert tables.places["total"] == StateColumn("sessions", "total")
    assert tables.places["pages"] == StateColumn("sessions__pages", "value", subkey="key")
    assert tables.places["due"] == StateColumn("sessions__due", None, subkey="event_time")


def test_each_value_has_its_own_time_to_live():
    ttls = {field.name: field.ttl_ms for field in schema(tables_for("o", "k long", STATES), "o").values}
    assert ttls == {"views": 0, "views__null": 0, "name": 1000, "name__null": 1000, "total": 0, "mean": 0}


def test_no_states_are_no_tables():
    assert tables_for("o", "k long", {}).schemas == ()
    assert [schema.table for schema in tables_for("o", "k long", {"trail": fp.List("int")}).schemas] == ["o__trail"]


def test_a_value_that_is_never_null_needs_no_mark():
    tables = tables_for("o", "k long", {"v": fp.Value("long", nullable=False)})
    assert columns(schema(tables, "o")) == {"k": pa.int64(), "v": pa.int64()}
    assert tables.places["v"].null_mark is None


def test_key_columns_of_any_name_get_one_that_tables_allow():
    tables = tables_for("o", pa.schema({"userId": pa.string(), "User Id": pa.int64(), "_": pa.int32()}), {"v": fp.Value("int")})
    assert dict(tables.key_columns) == {"userId": "userid", "User Id": "user_id", "_": "key"}
    assert safe_names({"A": 0, "a": 0, "ä": 0, "a_2": 0}) == {"A": "a", "a": "a_2", "ä": "key", "a_2": "a_2_2"}
    assert len(safe_names({"x" * 200: 0})["x" * 200]) <= 64


def test_key_columns_may_be_called_like_our_own():
    tables = tables_for("o", {"key": "string", "value": "int", "position": "int", "event_time": "int", "element": "int"}, STATES)
    assert tables.places["pages"].subkey == "key_"
    assert tables.places["trail"] == StateColumn("o__trail", "value_", subkey="position_")
    assert tables.places["due"].subkey == "event_time_"


@pytest.mark.parametrize(
    ("operator", "state", "message"),
    [
        ("Sessions", "views", "operator name 'Sessions'"),
        ("a__b", "views", "operator name 'a__b'"),
        ("a_", "views", "operator name 'a_'"),
        ("a", "_views", "state name '_views'"),
        ("a", "b__c", "state name 'b__c'"),
        ("a", "Views", "state name 'Views'"),
        ("a" * 40, "b" * 40, "table name"),
        ("a", "b" * 60, "column name"),
    ],
)
def test_names_that_cannot_be(operator, state, message):
    with pytest.raises(BadName, match=message):
        tables_for(operator, "k long", {state: fp.List("int") if "table" in message else fp.Value("int")})


def test_a_state_called_like_a_key_is_refused():
    with pytest.raises(SchemaMismatch, match="operator o, state user"):
        tables_for("o", "user string", {"user": fp.Value("int")})


def test_two_operators_never_share_a_table():
    one = tables_for("a", "k long", {"b_c": fp.List("int")})
    two = tables_for("a_b", "k long", {"c": fp.List("int")})
    assert {schema.table for schema in one.schemas}.isdisjoint(schema.table for schema in two.schemas)


def test_every_kind_of_state_goes_through_a_store(writer):
    tables = tables_for("s", "user string", STATES)
    define(writer, tables)
    kept = pa.array([{"n": 2, "total": 5.0}], schema(tables, "s").values[-1].arrow)
    epoch = writer.epoch()
    epoch.put("s", pa.table({"user": ["a"], "views": [3], "name": ["A"]}))
    epoch.merge("s", pa.table({"user": ["a"], "total": [4], "mean": kept}))
    epoch.put("s__trail", pa.table({"user": ["a", "a"], "position": pack(epoch.number, [0, 1]), "value": ["x", None]}))
    epoch.merge("s__pages", pa.table({"user": ["a", "a"], "key": ["p", "p"], "value": [1, 1]}))
    epoch.put("s__seen", pa.table({"user": ["a", "a"], "element": [{"a": 1}, {"a": None}]}))
    epoch.put("s__due", pa.table({"user": ["a"], "event_time": [50]}))
    epoch.commit()
    epoch = writer.epoch()
    epoch.merge("s", pa.table({"user": ["a"], "total": [5], "mean": kept}))
    epoch.put("s__trail", pa.table({"user": ["a"], "position": pack(epoch.number, [0]), "value": ["z"]}))
    epoch.commit()
    now = writer.store.snapshot()
    (row,) = now.table("s").to_arrow().to_pylist()
    assert (row["views"], row["name"], row["total"], row["mean"]) == (3, "A", 9, {"n": 4, "total": 10.0})
    trail = now.table("s__trail").to_arrow()
    assert trail["value"].to_pylist() == ["x", None, "z"]
    assert [part.tolist() for part in unpack(trail["position"].to_numpy())] == [[1, 1, 2], [0, 1, 0]]
    assert now.table("s__pages").to_arrow().to_pylist() == [{"user": "a", "key": "p", "value": 2}]
    assert sorted(map(str, now.table("s__seen").to_arrow()["element"].to_pylist())) == ["{'a': 1}", "{'a': None}"]
    assert now.table("s__due").to_arrow(columns=["user", "event_time"]).to_pylist() == [{"user": "a", "event_time": 50}]


def test_absent_set_to_null_and_expired_are_told_apart(writer, clock):
    define(writer, tables_for("s", "user string", STATES))
    users = ["set", "null", "absent"]
    rows = pa.table({"user": users, "name": ["x", None, None], "name__null": pa.array([None, True, None], pa.bool_())})
    writer.put("s", rows)

    def seen() -> dict[str, tuple[object, object]]:
        found = writer.store.snapshot().table("s").multi_get(pa.table({"user": users})).aligned().to_pylist()
        return {user: (row["name"], row["name__null"]) for user, row in zip(users, found, strict=True)}

    assert seen() == {"set": ("x", None), "null": (None, True), "absent": (None, None)}
    clock.advance_ms(2000)
    writer.epoch().commit()
    assert seen() == dict.fromkeys(users, (None, None))


def test_states_come_and_go(writer):
    define(writer, tables_for("s", "user string", {"views": fp.Value("int"), "trail": fp.List("string")}))
    epoch = writer.epoch()
    epoch.put("s", pa.table({"user": ["a"], "views": [3]}))
    epoch.put("s__trail", pa.table({"user": ["a"], "position": pack(1, [0]), "value": ["x"]}))
    epoch.commit()
    now = {"views": fp.Value("long"), "clicks": fp.Reducing("long", "sum"), "pages": fp.Map("string", "long")}
    define(writer, tables_for("s", "user string", now))
    epoch = writer.epoch()
    epoch.merge("s", pa.table({"user": ["a"], "clicks": [2]}))
    epoch.commit()
    (row,) = writer.store.snapshot().table("s").to_arrow().to_pylist()
    assert (row["views"], row["clicks"]) == (3, 2)
    define(writer, tables_for("s", "user string", {"trail": fp.List("string")}))
    assert writer.store.snapshot().table("s__trail").to_arrow()["value"].to_pylist() == ["x"]


def test_declaring_the_same_again_changes_nothing(writer):
    define(writer, tables_for("s", "user string", STATES))
    position = writer.store.head.position
    define(writer, tables_for("s", "user string", STATES))
    assert writer.store.head.position == position


BEFORE = {
    "v": fp.Value("long"),
    "short": fp.Value("long", ttl="1 hour"),
    "total": fp.Reducing("long", "sum"),
    "trail": fp.List("string", ttl="1 hour"),
    "pages": fp.Map("string", "long"),
    "due": Timers("event"),
}


@pytest.mark.parametrize(
    ("state", "now"),
    [
        ("v", fp.Value("string")),
        ("v", fp.Value("long", ttl="1 hour", ttl_clock="event")),
        ("v", fp.List("long")),
        ("short", fp.Value("long")),
        ("short", fp.Value("long", ttl="1 hour", ttl_clock="event")),
        ("total", fp.Reducing("long", "max")),
        ("total", fp.Value("long")),
        ("trail", fp.List("long", ttl="1 hour")),
        ("trail", fp.List("string")),
        ("trail", fp.List("string", ttl="1 hour", ttl_clock="event")),
        ("trail", fp.Value("string")),
        ("trail", fp.Set("string", ttl="1 hour")),
        ("pages", fp.Set("string")),
        ("pages", fp.Map("long", "long")),
        ("pages", fp.Map("string", "long", merge="max")),
        ("due", fp.List("long")),
        ("due", Timers("processing")),
    ],
)
def test_what_cannot_be_read_as_declared_now_is_refused_by_name_and_nothing_changes(writer, state, now):
    define(writer, tables_for("s", "user string", BEFORE))
    position = writer.store.head.position
    with pytest.raises(SchemaMismatch, match=rf"operator s.*\b{state}\b"):
        define(writer, tables_for("s", "user string", {**BEFORE, "another": fp.List("int"), state: now}))
    assert writer.store.head.position == position


def test_another_key_is_refused(writer):
    define(writer, tables_for("s", "user string", BEFORE))
    with pytest.raises(SchemaMismatch, match="user"):
        define(writer, tables_for("s", "user long", BEFORE))
