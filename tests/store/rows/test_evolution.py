"""Changing a table: old runs are read as they are, and a change that could not be read is refused before anything is written."""

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from floodplain.errors import SchemaMismatch
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.rows.widening import WIDER
from floodplain.store.store import Store
from floodplain.versions.records.schema import TableSchema
from tests.store import forge

KEY = {"k": pa.int64()}


def table(values: dict[str, Any], **more: Any) -> TableSchema:
    return value_table("t", KEY, values, **more)


def change(store: Store, schema: TableSchema, renames: dict[str, str] | None = None) -> TableSchema:
    with store.writer("test") as writer:
        return writer.define(schema, renames=renames)


def started(schema: TableSchema, rows: dict[str, Any], op: str = "put") -> Store:
    store = forge.with_table(schema)
    forge.write(store, "t", (op, rows))
    return store


def unrewritten(store: Store) -> list[dict[str, Any]]:
    """The rows, read by another process from the very runs that were there, and the same after compacting them."""
    runs = [info.name for info in store.history.blobs.list("runs/")]
    store = forge.reopen(store.history.blobs)
    rows = sorted(forge.rows(store, "t"), key=repr)
    assert [info.name for info in store.history.blobs.list("runs/")] == runs
    by_key = store.snapshot().table("t").multi_get(pa.table({"k": [row["k"] for row in rows]})).rows.to_pylist()
    assert sorted(by_key, key=repr) == rows
    return rows


def test_an_added_column_has_its_default_in_old_rows() -> None:
    store = started(table({"a": pa.int64()}), {"k": [1, 2], "a": [10, 20]})
    change(store, table({"a": pa.int64(), "b": Column(pa.string(), default="new"), "c": pa.int8()}))
    assert unrewritten(store) == [{"k": 1, "a": 10, "b": "new", "c": None}, {"k": 2, "a": 20, "b": "new", "c": None}]
    forge.write(store, "t", ("put", {"k": [2], "a": [21], "b": ["set"]}))
    assert unrewritten(store)[1] == {"k": 2, "a": 21, "b": "set", "c": None}


def test_a_merge_that_was_written_before_a_column_leaves_it_alone() -> None:
    store = started(table({"a": Column(pa.int64(), merge="sum")}), {"k": [1], "a": [1]})
    forge.write(store, "t", ("merge", {"k": [1, 2], "a": [5, 5]}))
    change(store, table({"a": Column(pa.int64(), merge="sum"), "b": Column(pa.int64(), merge="sum", default=7)}))
    assert unrewritten(store) == [{"k": 1, "a": 6, "b": 7}, {"k": 2, "a": 5, "b": 7}]
    forge.write(store, "t", ("merge", {"k": [1, 2], "b": [1, 1]}))
    assert unrewritten(store) == [{"k": 1, "a": 6, "b": 8}, {"k": 2, "a": 5, "b": 8}]
    list(store.compact(full=True))
    assert unrewritten(store) == [{"k": 1, "a": 6, "b": 8}, {"k": 2, "a": 5, "b": 8}]


def test_a_dropped_column_is_gone_and_does_not_come_back() -> None:
    store = started(table({"a": pa.int64(), "b": pa.int64()}), {"k": [1], "a": [1], "b": [2]})
    change(store, table({"a": pa.int64()}))
    assert unrewritten(store) == [{"k": 1, "a": 1}]
    change(store, table({"a": pa.int64(), "b": Column(pa.int64(), default=0)}))
    assert unrewritten(store) == [{"k": 1, "a": 1, "b": 0}], "added again, it does not find its old values"
    forge.write(store, "t", ("put", {"k": [1], "a": [1], "b": [5]}))
    assert unrewritten(store) == [{"k": 1, "a": 1, "b": 5}]


def test_columns_may_be_renamed_and_reordered() -> None:
    store = started(table({"a": pa.int64(), "b": pa.string()}), {"k": [1], "a": [1], "b": ["x"]})
    change(store, table({"y": pa.string(), "x": pa.int64()}), {"a": "x", "b": "y"})
    assert unrewritten(store) == [{"k": 1, "y": "x", "x": 1}]
    change(store, table({"x": pa.string(), "y": pa.int64()}), {"x": "y", "y": "x"})
    assert unrewritten(store) == [{"k": 1, "x": "x", "y": 1}], "swapped"
    change(store, value_table("t", {"id": pa.int64()}, {"x": pa.string(), "y": pa.int64()}), {"k": "id"})
    assert forge.rows(store, "t") == [{"id": 1, "x": "x", "y": 1}]
    assert store.snapshot().table("t").multi_get(pa.table({"id": [1]})).found.all()


SAMPLES: dict[Any, list[Any]] = {
    pa.int8(): [-128, 127],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.uint8(): [0, 255],
    pa.uint16(): [0, 2**16 - 1],
    pa.uint32(): [0, 2**32 - 1],
    pa.float32(): [-1.5, float("inf")],
    pa.string(): ["", "é"],
    pa.binary(): [b"", b"\xff"],
    pa.date32(): [date(1, 1, 1), date(9999, 12, 31)],
}
WIDENED = [
    *((before, wider) for before, all_wider in WIDER.items() for wider in all_wider),
    (pa.decimal128(5, 2), pa.decimal128(10, 2)),
    (pa.decimal128(5, 2), pa.decimal128(10, 5)),
    (pa.decimal128(38, 2), pa.decimal256(50, 2)),
]


@pytest.mark.parametrize(("before", "wider"), WIDENED, ids=str)
def test_every_wider_type_reads_every_old_value(before: pa.DataType, wider: pa.DataType) -> None:
    samples = [*SAMPLES.get(before, [Decimal("-999.99"), Decimal("0.01")]), None]
    store = started(table({"v": before}), {"k": range(3), "v": pa.array(samples, before)})
    change(store, table({"v": wider}))
    found = forge.reopen(store.history.blobs).snapshot().table("t").to_arrow().sort_by("k")
    assert found["v"].type == wider
    assert found["v"].to_pylist() == samples
    forge.write(store, "t", ("put", {"k": [1], "v": pa.nulls(1, wider)}))
    list(store.compact(full=True))
    assert [row["v"] for row in sorted(forge.rows(store, "t"), key=lambda row: row["k"])] == [samples[0], None, None]


def test_operands_widen_too() -> None:
    store = started(table({"v": Column(pa.int8(), merge="sum")}), {"k": [1], "v": pa.array([100], pa.int8())}, "merge")
    change(store, table({"v": Column(pa.int64(), merge="sum")}))
    forge.write(store, "t", ("merge", {"k": [1], "v": [100]}))
    assert unrewritten(store) == [{"k": 1, "v": 200}]


def with_a(column: Column, **more: Any) -> TableSchema:
    return table({"a": column, "b": pa.string()}, ttl_ms=100, **more)


WIDE = with_a(Column(pa.int32(), merge="sum", ttl_ms=50))
MAP = map_table("t", KEY, {"s": pa.int32()}, {"v": pa.int64()})
TWO = table({"a": pa.int64(), "b": pa.int64()})
A = Column(pa.int32(), merge="sum", ttl_ms=50)
REFUSED: dict[str, tuple[TableSchema, TableSchema, dict[str, str], str]] = {
    "narrower": (table({"a": pa.int64()}), table({"a": pa.int32()}), {}, "column a is int64 and cannot become int32"),
    "lossy": (table({"a": pa.int64()}), table({"a": pa.float64()}), {}, "column a is int64"),
    "lossy float": (table({"a": pa.int32()}), table({"a": pa.float32()}), {}, "column a is int32"),
    "unsigned": (table({"a": pa.int32()}), table({"a": pa.uint64()}), {}, "column a is int32"),
    "another kind": (table({"a": pa.string()}), table({"a": pa.int64()}), {}, "column a is string"),
    "fewer digits": (table({"a": pa.decimal128(5, 2)}), table({"a": pa.decimal128(5, 1)}), {}, "column a is decimal"),
    "fewer whole digits": (table({"a": pa.decimal128(5, 2)}), table({"a": pa.decimal128(5, 3)}), {}, "column a is decimal"),
    "another zone": (table({"a": pa.timestamp("us")}), table({"a": pa.timestamp("us", "UTC")}), {}, "column a is timestamp"),
    "inner type": (
        table({"a": pa.list_(pa.int8())}),
        table({"a": pa.list_(pa.string())}),
        {},
        "column a.element is int8",
    ),
    "key type": (table({}), value_table("t", {"k": pa.int32()}, {}), {}, "key column k is int64"),
    "another key": (table({}), value_table("t", {"q": pa.int64()}, {}), {}, "key column k cannot be replaced by q"),
    "one more key": (table({}), value_table("t", {**KEY, "q": pa.int64()}, {}), {}, "1 key columns and cannot have 2"),
    "key as a value": (table({"a": pa.int64()}), value_table("t", {"a": pa.int64()}, {"k": pa.int64()}), {}, "column k is a key"),
    "value as a key": (
        table({"a": pa.int64()}),
        value_table("t", {"a": pa.int64()}, {}),
        {},
        "key column k cannot be replaced by a",
    ),
    "sub-key type": (MAP, map_table("t", KEY, {"s": pa.int64()}, {"v": pa.int64()}), {}, "sub-key column s is int32"),
    "shape": (MAP, timer_table("t", KEY, {"v": pa.int64()}), {}, "shape hashed and cannot become time"),
    "other shape": (table({}), list_table("t", KEY, {}), {}, "shape value and cannot become ordered"),
    "another merge": (
        WIDE,
        with_a(Column(pa.int32(), merge="max", ttl_ms=50)),
        {},
        "column a folds",
    ),
    "no merge": (WIDE, with_a(Column(pa.int32(), ttl_ms=50)), {}, "column a folds"),
    "no time to live": (WIDE, table({"a": A, "b": pa.string()}), {}, "rows cannot lose the time to live"),
    "another time to live": (WIDE, table({"a": A, "b": pa.string()}, ttl_ms=200), {}, "rows with merges cannot change"),
    "column without one": (
        WIDE,
        with_a(Column(pa.int32(), merge="sum")),
        {},
        "column a cannot lose",
    ),
    "another clock": (WIDE, with_a(A, ttl_clock="event_time"), {}, "by processing_time and cannot expire by event_time"),
    "another clock of a column": (
        table({"a": A}),
        table({"a": A}, ttl_clock="event_time"),
        {},
        "by processing_time and cannot expire by event_time",
    ),
    "rename of nothing": (table({"a": pa.int64()}), table({"b": pa.int64()}), {"x": "b"}, "no column 'x'"),
    "rename onto another": (TWO, table({"b": pa.int64()}), {"a": "b"}, "two columns are called b"),
    "two renames to one": (TWO, table({"c": pa.int64()}), {"a": "c", "b": "c"}, "two columns are called c"),
    "rename to nothing": (TWO, table({"c": pa.int64()}), {"a": "b"}, "column a is to be renamed to b"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_old_rows_could_not_be_read_under_is_refused(name: str) -> None:
    before, after, renames, message = REFUSED[name]
    store = forge.with_table(before)
    with store.writer("test") as writer:
        files = [info.name for info in store.history.blobs.list("")]
        with pytest.raises(SchemaMismatch, match=message):
            writer.define(after, renames=renames)
        assert [info.name for info in store.history.blobs.list("")] == files
    assert store.head.schema("t") == before


def test_the_same_definition_is_no_change() -> None:
    schema = table({"a": Column(pa.int64(), default=3, merge="sum"), "b": pa.list_(pa.string())}, ttl_ms=5)
    store = forge.with_table(schema)
    with store.writer("test") as writer:
        position = store.head.position
        again = table({"a": Column(pa.int64(), default=3, merge="sum"), "b": pa.list_(pa.string())}, ttl_ms=5)
        assert writer.define(again).id == 1
        assert store.head.position == position


def test_a_default_stays_what_it_was() -> None:
    """Rows that did not have the column take its default when read, or when compacted: both must find the same."""
    store = started(table({"a": pa.int64()}), {"k": [1], "a": [1]})
    change(store, table({"a": pa.int64(), "b": Column(pa.int64(), default=5)}))
    for default in (6, None):
        with pytest.raises(SchemaMismatch, match="column b has the default 5"):
            change(store, table({"a": pa.int64(), "b": Column(pa.int64(), default=default)}))
    assert unrewritten(store) == [{"k": 1, "a": 1, "b": 5}]


def test_a_merge_may_be_added_to_a_column() -> None:
    store = started(table({"a": pa.int64()}), {"k": [1], "a": [5]})
    change(store, table({"a": Column(pa.int64(), merge="sum")}))
    forge.write(store, "t", ("merge", {"k": [1], "a": [5]}))
    assert unrewritten(store) == [{"k": 1, "a": 10}]


def test_a_time_to_live_may_be_added_and_old_rows_stay() -> None:
    store = started(table({"a": pa.int64(), "b": pa.int64()}), {"k": [1], "a": [1], "b": [2]})
    change(store, table({"a": pa.int64(), "b": Column(pa.int64(), ttl_ms=10)}, ttl_ms=100))
    forge.write(store, "t", ("put", {"k": [2], "a": [1], "b": [2]}), now_ms=forge.NOW_MS)
    forge.write(store, "t", now_ms=forge.NOW_MS + 50)
    assert unrewritten(store) == [{"k": 1, "a": 1, "b": 2}, {"k": 2, "a": 1, "b": None}]
    forge.write(store, "t", now_ms=forge.NOW_MS + 500)
    assert unrewritten(store) == [{"k": 1, "a": 1, "b": 2}]
    list(store.compact(full=True))
    assert unrewritten(store) == [{"k": 1, "a": 1, "b": 2}]


def test_a_past_epoch_is_read_under_its_own_definition() -> None:
    store = started(table({"a": pa.int8()}), {"k": [1], "a": pa.array([1], pa.int8())})
    change(store, table({"b": pa.int64()}), {"a": "b"})
    forge.write(store, "t", ("put", {"k": [2], "b": [2**40]}))
    assert store.at(1).table("t").to_arrow().schema.names == ["k", "a"]
    assert store.at(1).table("t").to_arrow().to_pylist() == [{"k": 1, "a": 1}]
    assert sorted(row["b"] for row in store.at(2).table("t").to_arrow().to_pylist()) == [1, 2**40]


def test_many_versions_are_read_side_by_side() -> None:
    """Ten versions, a row of each, one run of each."""
    store = forge.with_table(table({"c0": pa.int64()}))
    for version in range(1, 10):
        forge.write(store, "t", ("put", {"k": [version], f"c{version - 1}": [version]}))
        change(store, table({f"c{version}": pa.int64()}, ttl_ms=0), {f"c{version - 1}": f"c{version}"})
    assert unrewritten(store) == [{"k": version, "c9": version} for version in range(1, 10)]
    list(store.compact(full=True))
    assert unrewritten(store) == [{"k": version, "c9": version} for version in range(1, 10)]
