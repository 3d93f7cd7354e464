"""Types inside types change as columns do: old runs are read as they are, whatever was added, dropped, moved or widened."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from floodplain.errors import Corrupt, SchemaMismatch
from floodplain.keys import hash_columns
from floodplain.store.rows.definition import Column, list_table, map_table, recorded, value_table
from floodplain.store.rows.evolution import adapt, can_read, evolve
from floodplain.store.rows.merge_functions import register_merge
from floodplain.store.rows.reshape import reshaped
from floodplain.store.rows.widening import SAME_HASH
from floodplain.store.store import Store
from floodplain.versions.records.schema import Field, TableSchema, type_to_bytes
from tests.store import forge
from tests.store.rows.nested_model import Nested

KEY = {"k": pa.int64()}
chosen = settings(
    max_examples=120, deadline=None, derandomize=True, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
)


def change(store: Store, schema: TableSchema) -> TableSchema:
    with store.writer("test") as writer:
        return writer.define(schema)


class History:
    """A table of some shape with one nested column, its rows, and what it should show of them."""

    def __init__(self, draw: DrawFn) -> None:
        self.shape = draw(st.sampled_from(("value", "ordered", "hashed", "append")))
        defaulted = self.shape != "append" and draw(st.booleans())
        self.column = Nested(draw, "list" if self.shape == "append" else "struct" if defaulted else "", default=defaulted)
        self.rows: dict[tuple[int, int], Any] = {}
        self.store = forge.with_table(self.schema())
        self.was: dict[int, dict[Any, Any]] = {}

    def schema(self) -> TableSchema:
        default = self.column.shown(self.column.default, default=self.column.default)
        column = Column(self.column.kind.arrow(), default=default, merge="append" if self.shape == "append" else "")
        match self.shape:
            case "ordered":
                return list_table("t", KEY, {"v": column}, position="s")
            case "hashed":
                return map_table("t", KEY, {"s": pa.int64()}, {"v": column})
            case _:
                return value_table("t", KEY, {"v": column})

    def write(self, draw: DrawFn) -> None:
        ids = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=4, unique=True))
        ids = ids if self.shape in ("ordered", "hashed") else list(dict.fromkeys((key, 0) for key, _ in ids))
        values = [self.column.value(draw, self.column.kind) for _ in ids]
        columns: dict[str, Any] = {"k": pa.array([key for key, _ in ids], pa.int64())}
        if self.shape in ("ordered", "hashed"):
            columns["s"] = pa.array([sub for _, sub in ids], pa.uint64() if self.shape == "ordered" else pa.int64())
        merged = self.shape == "append" and draw(st.booleans())
        if self.column.default is not None and draw(st.integers(0, 3)) == 0:
            values = [self.column.default for _ in ids]
            values = [dict(value) if isinstance(value, dict) else value for value in values]
        else:
            columns["v"] = pa.array([self.column.shown(value) for value in values], self.column.kind.arrow())
        for id_, value in zip(ids, values, strict=True):
            before = self.rows.get(id_)
            self.rows[id_] = [*(before or []), *value] if merged and value is not None and before else value
            if merged and value is None:
                self.rows[id_] = before
        forge.write(self.store, "t", ("merge" if merged else "put", columns))
        self.was[self.store.head.epoch] = self.expected()

    def expected(self) -> dict[Any, Any]:
        return {id_: self.column.shown(value, default=self.column.default) for id_, value in self.rows.items()}

    def read(self, rows: pa.Table) -> dict[Any, Any]:
        assert rows.schema.field("v").type == self.column.kind.arrow()
        for row in rows.column("v").chunks:
            row.validate(full=True)
        return {(row["k"], row.get("s", 0)): row["v"] for row in rows.to_pylist()}

    def check(self) -> None:
        store = forge.reopen(self.store.history.blobs)
        view, expected = store.snapshot().table("t"), self.expected()
        assert self.read(view.to_arrow()) == expected
        keys = pa.table({"k": pa.array(range(4), pa.int64())})
        assert self.read(view.multi_get(keys).rows) == expected
        if self.shape != "value":
            pieces = [piece for key in range(4) for piece in view.pieces(keys.slice(key, 1))] if self.shape != "append" else []
            assert not pieces or self.read(pa.concat_tables(pieces)) == expected

    def check_past(self) -> None:
        """Each epoch as it was, by its own definition."""
        for epoch, seen in self.was.items():
            rows = self.store.at(epoch).table("t").to_arrow().to_pylist()
            assert {(row["k"], row.get("s", 0)): row["v"] for row in rows} == seen


@chosen
@given(st.data())
def test_any_chain_of_changes_reads_as_the_model_says(data: st.DataObject) -> None:
    history = History(data.draw)
    history.write(data.draw)
    for _ in range(data.draw(st.integers(2, 4))):
        for _ in range(data.draw(st.integers(1, 3))):
            history.column.evolve(data.draw)
        change(history.store, history.schema())
        history.check()
        if data.draw(st.booleans()):
            list(history.store.compact(full=True))
            history.check()
        if data.draw(st.booleans()):
            history.write(data.draw)
            history.check()
    list(history.store.compact(full=True))
    history.check()
    history.check_past()


@chosen
@given(st.data())
def test_a_difference_shows_both_epochs_in_the_newer_type(data: st.DataObject) -> None:
    history = History(data.draw)
    history.write(data.draw)
    history.column.evolve(data.draw)
    change(history.store, history.schema())
    was = history.expected()
    history.write(data.draw)
    now, view = history.expected(), history.store.snapshot().table("t")
    found: dict[str, dict[Any, Any]] = {side: {} for side in ("added", "before", "after", "deleted")}
    for difference in history.store.diff("t", 1, 2):
        for side, rows in found.items():
            rows.update(history.read(view._logical(getattr(difference, side), None, False)))
    differ = {id_ for id_ in was if id_ in now and was[id_] != now[id_]}
    assert found["added"] == {id_: row for id_, row in now.items() if id_ not in was}
    assert found["before"] == {id_: was[id_] for id_ in differ}
    assert found["after"] == {id_: now[id_] for id_ in differ}


@chosen
@given(st.data())
def test_arrays_are_changed_wherever_they_were_cut_out(data: st.DataObject) -> None:
    """Slices, chunks, nothing at all, and anything below what is null."""
    column = Nested(data.draw)
    values = [column.value(data.draw, column.kind) for _ in range(data.draw(st.integers(0, 9)))]
    before = Field(1, "v", type_to_bytes(column.kind.arrow()))
    array = pa.array([column.shown(value) for value in values], column.kind.arrow())
    column.evolve(data.draw)
    wanted = value_table("t", KEY, {"v": column.kind.arrow()})
    old = value_table("t", KEY, {"v": before.arrow})
    new = evolve(old, wanted)
    low, high = sorted((data.draw(st.integers(0, len(values))), data.draw(st.integers(0, len(values)))))
    expected = [column.shown(value) for value in values]
    for part, shown in [(array, expected), (array.slice(low, high - low), expected[low:high])]:
        found = reshaped(part, old.values[0], new.values[0])
        found.validate(full=True)
        assert (found.type, found.to_pylist()) == (column.kind.arrow(), shown)
    chunked = pa.chunked_array([array.slice(0, low), array.slice(low)], array.type)
    found = reshaped(chunked, old.values[0], new.values[0])
    assert (found.type, found.to_pylist()) == (column.kind.arrow(), expected)
    assert reshaped(all_null(array), old.values[0], new.values[0]).to_pylist() == [None] * len(values)


def all_null(array: pa.Array) -> pa.Array:
    """All null, with the values still below."""
    buffers = array.buffers()
    inner = [array.field(i) for i in range(array.type.num_fields)] if pa.types.is_struct(array.type) else [array.values]
    nothing = pa.py_buffer(np.zeros((len(array) + 7) // 8, np.uint8))
    return pa.Array.from_buffers(array.type, len(array), [nothing, *buffers[1 : array.type.num_buffers]], children=inner)


def struct(**fields: Any) -> pa.DataType:
    return pa.struct([pa.field(name, type_) if isinstance(type_, pa.DataType) else type_ for name, type_ in fields.items()])


def table(**values: Any) -> TableSchema:
    return value_table("t", KEY, values)


def values(store: Store) -> list[Any]:
    return [row["v"] for row in sorted(forge.rows(store, "t"), key=lambda row: row["k"])]


def test_a_field_dropped_and_added_again_does_not_find_its_old_values() -> None:
    store = forge.with_table(table(v=struct(a=pa.int64(), b=pa.int64())))
    forge.write(store, "t", ("put", {"k": [1], "v": [{"a": 1, "b": 2}]}))
    change(store, table(v=struct(a=pa.int64())))
    forge.write(store, "t", ("put", {"k": [2], "v": [{"a": 3}]}))
    change(store, table(v=struct(a=pa.int64(), b=pa.int64())))
    forge.write(store, "t", ("put", {"k": [3], "v": [{"a": 4, "b": 5}]}))
    assert values(store) == [{"a": 1, "b": None}, {"a": 3, "b": None}, {"a": 4, "b": 5}]
    list(store.compact(full=True))
    assert values(store) == [{"a": 1, "b": None}, {"a": 3, "b": None}, {"a": 4, "b": 5}]


def test_what_stays_of_a_struct_may_change_over_many_versions() -> None:
    """The first version and the last have no field in common, and yet each reads the one before."""
    store = forge.with_table(table(v=struct(a=pa.int64())))
    forge.write(store, "t", ("put", {"k": [1], "v": [{"a": 1}]}))
    change(store, table(v=struct(a=pa.int64(), b=pa.int64())))
    forge.write(store, "t", ("put", {"k": [2], "v": [{"a": 1, "b": 2}]}))
    change(store, table(v=struct(b=pa.int64())))
    assert values(store) == [{"b": None}, {"b": 2}]


def test_the_default_of_a_column_says_what_added_fields_are() -> None:
    store = forge.with_table(table(n=pa.int64(), v=Column(struct(a=pa.int64()), default={"a": 1})))
    forge.write(store, "t", ("put", {"k": [1], "v": [{"a": 7}]}))
    forge.write(store, "t", ("put", {"k": [2], "n": [0]}))
    forge.write(store, "t", ("put", {"k": [3], "v": pa.nulls(1, struct(a=pa.int64()))}))
    inner = pa.field("b", struct(c=pa.string()), nullable=False)
    default = {"b": {"c": "new"}, "a": 1}
    change(store, table(n=pa.int64(), v=Column(struct(b=inner, a=pa.int64()), default=default)))
    forge.write(store, "t", ("put", {"k": [4], "n": [0]}))
    expected = [{"b": {"c": "new"}, "a": 7}, default, None, default]
    assert values(store) == expected
    list(store.compact(full=True))
    assert values(store) == expected
    with pytest.raises(SchemaMismatch, match="column v has the default"):
        change(store, table(v=Column(struct(b=inner, a=pa.int64()), default={**default, "a": 2})))


def first_of(older: pa.Array, newer: pa.Array) -> pa.Array:
    return older


FIRST = register_merge(first_of)
ADDRESS = struct(zip=pa.int32(), city=pa.string())
PROFILE = struct(name=pa.string(), address=ADDRESS)
NOT_NULL = pa.field("d", pa.int64(), nullable=False)
INT_KEYS = pa.map_(pa.int32(), pa.int64())
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "another type": (
        PROFILE,
        struct(name=pa.string(), address=struct(zip=pa.string(), city=pa.string())),
        r"column v\.address\.zip is int32 and cannot become string: only wider types",
    ),
    "in a list": (
        pa.list_(PROFILE),
        pa.list_(struct(name=pa.int8())),
        r"column v\.element\.name is string and cannot become int8",
    ),
    "in a map": (pa.map_(pa.string(), ADDRESS), pa.map_(pa.string(), struct(zip=pa.int8())), r"v\.value\.zip is int32 .* int8"),
    "keys with other hashes": (INT_KEYS, pa.map_(pa.int64(), pa.int64()), r"v\.key is int32 and cannot become int64: .* hashes"),
    "keys that become equal": (
        pa.map_(ADDRESS, pa.int8()),
        pa.map_(struct(zip=pa.int32()), pa.int8()),
        r"v\.key\.city is string and cannot go: keys that differ in it only",
    ),
    "keys in another order": (
        pa.map_(ADDRESS, pa.int8()),
        pa.map_(struct(city=pa.string(), zip=pa.int32()), pa.int8()),
        r"v\.key is .* in another order",
    ),
    "keys said to be in order": (INT_KEYS, pa.map_(pa.int32(), pa.int64(), True), r"column v is map.* not in the order"),
    "never null": (ADDRESS, struct(zip=pa.field("zip", pa.int32(), nullable=False)), r"v\.zip is int32 .* may be null"),
    "added and never null": (
        ADDRESS,
        struct(zip=pa.int32(), d=NOT_NULL),
        r"column v\.d cannot be added as int64: it is NOT NULL",
    ),
    "a struct for a value": (pa.int64(), ADDRESS, r"column v is int64 and cannot become struct"),
    "a list for a struct": (ADDRESS, pa.list_(ADDRESS), r"column v is struct.* and cannot become list"),
    "shorter lists": (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), r"column v is fixed_size_list"),
    "smaller lists": (pa.large_list(pa.int8()), pa.list_(pa.int8()), r"column v is large_list"),
    "nothing in common": (ADDRESS, struct(street=pa.string()), r"column v is struct.* no field in common"),
    "a name twice": (pa.struct([("a", pa.int8()), ("a", pa.int8())]), struct(a=pa.int8()), "has one twice"),
    "a merge of one's own": (
        Column(ADDRESS, merge=FIRST),
        Column(struct(zip=pa.int32()), merge=FIRST),
        "operands already written",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_read_is_refused_by_its_path(name: str) -> None:
    before, after, message = REFUSED[name]
    store = forge.with_table(table(v=before))
    with pytest.raises(SchemaMismatch, match=message):
        change(store, table(v=after))
    assert store.history.refresh().schema("t") == table(v=before)


def test_a_variant_is_one_value() -> None:
    inside = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
    variant = pa.struct([pa.field("value", pa.binary(), nullable=False), inside])
    store = forge.with_table(table(v=variant))
    for other in (struct(value=variant.field(0)), pa.struct([variant.field(0), inside.remove_metadata()])):
        with pytest.raises(SchemaMismatch, match="column v is struct"):
            change(store, table(v=other))


def test_what_was_always_null_becomes_anything() -> None:
    store = forge.with_table(table(v=struct(a=pa.int8(), b=pa.null())))
    forge.write(store, "t", ("put", {"k": [1], "v": [{"a": 1, "b": None}]}))
    known = struct(a=pa.int8(), b=pa.map_(pa.string(), ADDRESS))
    change(store, table(v=known))
    forge.write(store, "t", ("put", {"k": [2], "v": pa.array([{"a": 1, "b": [("x", {"zip": 1, "city": None})]}], known)}))
    assert values(store) == [{"a": 1, "b": None}, {"a": 1, "b": [("x", {"zip": 1, "city": None})]}]


@pytest.mark.parametrize("fixed", [(before, wider) for before, all_wider in SAME_HASH.items() for wider in all_wider], ids=str)
def test_wider_keys_have_the_same_hash(fixed: tuple[pa.DataType, pa.DataType]) -> None:
    before, wider = fixed
    some = ["", "é", "long enough for more than one round of it"] if before in (pa.string(), pa.binary()) else [-128, -1, 0, 127]
    given = pa.array([value.encode() if before == pa.binary() else value for value in some], before)
    assert hash_columns([given]).tolist() == hash_columns([given.cast(wider)]).tolist()
    for depth in (pa.list_, lambda type_: pa.struct([("x", type_)])):
        nested = pa.array([[v] if depth is pa.list_ else {"x": v} for v in given.to_pylist()], depth(before))
        wide = pa.array(nested.to_pylist(), depth(wider))
        assert hash_columns([nested]).tolist() == hash_columns([wide]).tolist()


def keyed(key: pa.DataType, sub: pa.DataType) -> TableSchema:
    return map_table("t", {"k": key}, {"s": sub}, {"v": pa.int64()})


def test_keys_and_sub_keys_change_where_they_stay_the_same_keys() -> None:
    old, new = keyed(struct(a=pa.int8()), ADDRESS), keyed(struct(n=pa.null(), a=pa.int32()), struct(**ADDRESS_AND_MORE))
    store = forge.with_table(old)
    forge.write(store, "t", ("put", rows_of(old, [({"a": 1}, {"zip": 1, "city": "x"}, 1), ({"a": 2}, None, 2)])))
    change(store, new)
    again = [({"n": None, "a": 1}, {"zip": 1, "city": "x", "more": None}, 3), ({"n": None, "a": 1}, {"zip": 1, "more": 5}, 4)]
    for _ in range(2):
        forge.write(store, "t", ("put", rows_of(new, again)))
        view = store.snapshot().table("t")
        found = [(row["k"]["a"], row["s"] and row["s"]["more"], row["v"]) for row in view.to_arrow().to_pylist()]
        assert sorted(found, key=repr) == [(1, 5, 4), (1, None, 3), (2, None, 2)]
        asked = rows_of(new, [again[0]]).select(["k", "s"])
        assert view.multi_get(asked).rows["v"].to_pylist() == [3]
        assert sorted(view.multi_get(asked.select(["k"])).rows["v"].to_pylist()) == [3, 4]
        two = rows_of(new, [({"n": None, "a": 2}, None, 0)])
        assert pa.concat_tables(view.pieces(two.select(["k"])))["v"].to_pylist() == [2]
        assert view.multi_get(two.select(["k", "s"])).rows["v"].to_pylist() == [2]
        list(store.compact(full=True))


ADDRESS_AND_MORE = {"zip": pa.int32(), "more": pa.int64(), "city": pa.large_string()}


def rows_of(schema: TableSchema, rows: list[Any]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(
        {field.name: pa.array(list(column), field.arrow) for field, column in zip(schema.fields, columns, strict=True)}
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (pa.int32(), pa.int64(), "key column k is int32 and cannot become int64: .* other hashes"),
        (pa.float32(), pa.float64(), "other hashes"),
        (ADDRESS, struct(zip=pa.int32()), r"key column k\.city is string and cannot go"),
        (ADDRESS, struct(city=pa.string(), zip=pa.int32()), "in another order"),
        (pa.decimal128(18, 2), pa.decimal128(19, 2), "other hashes"),
    ],
    ids=str,
)
def test_keys_that_would_not_stay_the_same_are_refused(before: pa.DataType, after: pa.DataType, message: str) -> None:
    for old, new in ((keyed(before, pa.int8()), keyed(after, pa.int8())), (keyed(pa.int8(), before), keyed(pa.int8(), after))):
        with pytest.raises(SchemaMismatch, match=message.replace(" k", " [ks]")):
            evolve(old, new)


def test_ids_that_nothing_can_have_led_to_are_damage() -> None:
    field = table(v=ADDRESS).values[0]
    for inner, next_inner in [((1,), 3), ((1, 1), 3), ((0, 1), 3), ((1, 5), 5), ((1, 2, 3), 9)]:
        broken = Field(field.id, field.name, field.type, inner=inner, next_inner=next_inner)
        schema = table(v=ADDRESS)
        with pytest.raises(Corrupt, match="fields inside it"):
            recorded(TableSchema(**{**{f: getattr(schema, f) for f in schema.__struct_fields__}, "values": (broken,)}))


def test_versions_that_no_change_leads_to_cannot_read_each_other() -> None:
    old, new = table(v=ADDRESS), table(v=PROFILE)
    assert can_read(old, evolve(old, table(v=struct(zip=pa.int64()))))
    assert not can_read(table(v=struct(zip=pa.string())), old) and not can_read(old, keyed(pa.int64(), pa.int64()))
    assert can_read(old, new) is False


def test_the_same_type_is_no_change_whatever_its_ids() -> None:
    schema = table(v=struct(a=pa.int64(), b=pa.int64()))
    for wanted in (table(v=struct(a=pa.int64())), table(v=struct(a=pa.int64(), b=pa.int64()))):
        schema = evolve(schema, wanted)
        assert evolve(schema, wanted) is schema
    assert schema.values[0].inner == (1, 3)


def test_notes_on_fields_are_not_part_of_their_type() -> None:
    old = table(v=struct(a=pa.field("a", pa.int8(), metadata={"comment": "old"})))
    new = evolve(old, table(v=struct(a=pa.field("a", pa.int8(), metadata={"comment": "new"}))))
    store = forge.with_table(old)
    forge.write(store, "t", ("put", {"k": [1], "v": [{"a": 1}]}))
    change(store, new)
    forge.write(store, "t", ("put", {"k": [2], "v": [{"a": 2}]}))
    list(store.compact(full=True))
    assert values(store) == [{"a": 1}, {"a": 2}]
    assert adapt(pa.table({}), old, old) == pa.table({})
