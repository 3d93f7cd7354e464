"""Rows handed over: what does not fit is named before anything is written, and what fits is stored as it is."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.keys import hash_columns
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.store import Store
from tests.store import forge

TABLES = {
    "counts": value_table(
        "counts", {"user": pa.string(), "site": pa.int32()}, {"n": Column(pa.int64(), merge="sum", default=4), "s": pa.string()}
    ),
    "pages": map_table("pages", {"user": pa.string()}, {"page": pa.string()}, {"hits": pa.int64()}),
    "trail": list_table("trail", {"user": pa.string()}, {"step": pa.string()}),
    "timers": timer_table("timers", {"user": pa.string()}),
    "brief": value_table("brief", {"user": pa.string()}, {"v": Column(pa.int64(), ttl_ms=50)}, ttl_ms=100),
}
KEY = {"user": ["a"], "site": pa.array([1], pa.int32())}


@pytest.fixture
def store() -> Store:
    store = forge.create()
    with store.writer("test") as writer:
        for schema in TABLES.values():
            writer.define(schema)
    return store


def bad_text() -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], "<i4")), pa.py_buffer(b"\xff\xfe")])


Given = Mapping[str, Any]
REFUSED: dict[str, tuple[str, str, Given, str]] = {
    "key missing": ("put", "counts", {"user": ["a"]}, "'site'"),
    "sub-key missing": ("put", "pages", {"user": ["a"], "hits": [1]}, "'page'"),
    "position missing": ("put", "trail", {"user": ["a"], "step": ["x"]}, "'position'"),
    "time missing": ("put", "timers", {"user": ["a"]}, "'at'"),
    "unknown column": ("put", "counts", {**KEY, "m": [1]}, "'m'"),
    "unknown column in a delete": ("delete", "counts", {**KEY, "m": [1]}, "'m'"),
    "expiry of a column that has none": ("put", "counts", {**KEY, "_expires_n": [1]}, "'_expires_n'"),
    "text for a number": ("put", "counts", {**KEY, "n": ["x"]}, "column n is int64, and string was given"),
    "fraction for a number": ("put", "counts", {**KEY, "n": [1.5]}, "column n is int64"),
    "number beyond the type": ("put", "counts", {"user": ["a"], "site": [2**40]}, "column site is int32"),
    "list for text": ("put", "counts", {**KEY, "s": [["x"]]}, "column s is string"),
    "text that is no text": ("put", "counts", {**KEY, "s": bad_text()}, "column s is string.*UTF8"),
    "key that is no text": ("put", "pages", {"user": bad_text(), "page": ["x"]}, "column user is string.*UTF8"),
    "sub-key that is no text": ("put", "pages", {"user": ["x"], "page": bad_text()}, "column page is string.*UTF8"),
    "null position": ("put", "trail", {"user": ["a"], "position": pa.nulls(1, pa.uint64())}, "column position .* null"),
    "negative position": ("put", "trail", {"user": ["a"], "position": [-1]}, "column position"),
    "null time": ("delete", "timers", {"user": ["a"], "at": pa.nulls(1, pa.int64())}, "column at .* null"),
    "merge without one": ("merge", "counts", {**KEY, "s": ["x"]}, "'s' has no merge"),
    "hash of another type": ("put", "pages", {"user": ["a"], "page": ["x"], "_hash": ["x"]}, "column _hash"),
    "hash that is null": (
        "put",
        "pages",
        {"user": ["a"], "page": ["x"], "_hash": pa.nulls(1, pa.int64())},
        "column _hash has nulls",
    ),
    "end of another type": ("put", "brief", {"user": ["a"], "v": [1], "_expires": ["x"]}, "column _expires"),
    "column's end of another type": ("put", "brief", {"user": ["a"], "v": [1], "_expires_v": ["x"]}, "column _expires_v"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named_and_nothing_is_written(store: Store, name: str) -> None:
    op, table, columns, message = REFUSED[name]
    with store.writer("test") as writer:
        files = [info.name for info in store.history.blobs.list("")]
        epoch = writer.epoch()
        with pytest.raises(SchemaMismatch, match=message) as raised:
            getattr(epoch, op)(table, pa.table(dict(columns)))
        assert table in str(raised.value)
        assert [info.name for info in store.history.blobs.list("")] == files
        epoch.commit()
    assert store.snapshot().table(table).count() == 0


def test_a_column_given_twice(store: Store) -> None:
    rows = pa.table([pa.array(["a"]), pa.array(["x"]), pa.array([1]), pa.array([2])], names=["user", "page", "hits", "hits"])
    with store.writer("test") as writer, pytest.raises(SchemaMismatch, match="given twice"):
        writer.put("pages", rows)


def test_an_unknown_op(store: Store) -> None:
    with store.writer("test") as writer, pytest.raises(SchemaMismatch, match="unknown op 'upsert'"):
        writer.epoch().task("op", "0").write("pages", pa.table({"user": ["a"], "page": ["x"]}), "upsert")


def test_values_are_cast_where_nothing_is_lost(store: Store) -> None:
    rows = {"user": pa.array(["a"]).dictionary_encode(), "site": pa.array([1], pa.int64()), "n": pa.array([2.0]), "s": [None]}
    forge.write(store, "counts", ("put", rows))
    assert forge.rows(store, "counts") == [{"user": "a", "site": 1, "n": 2, "s": None}]


def test_columns_are_found_by_name_and_missing_values_get_defaults(store: Store) -> None:
    forge.write(store, "counts", ("put", {"s": ["x"], "site": [1], "user": ["a"]}))
    assert forge.rows(store, "counts") == [{"user": "a", "site": 1, "n": 4, "s": "x"}]
    forge.write(store, "counts", ("put", {**KEY, "n": pa.nulls(1, pa.int64())}))
    assert forge.rows(store, "counts") == [{"user": "a", "site": 1, "n": None, "s": None}]


def test_batches_tables_and_chunks_are_all_the_same(store: Store) -> None:
    rows = pa.table({"user": pa.chunked_array([["a"], [], ["b", "c"]]), "page": ["x", "y", "z"], "hits": [1, 2, 3]})
    forge.write(store, "pages", ("put", rows))
    first = forge.rows(store, "pages")
    with store.writer("test") as writer:
        writer.put("pages", rows.combine_chunks().to_batches()[0])
    assert forge.rows(store, "pages") == first
    assert len(first) == 3


def test_a_sliced_table_is_its_slice(store: Store) -> None:
    rows = pa.table({"user": [f"u{n}" for n in range(100)], "page": ["x"] * 100, "hits": range(100)})
    forge.write(store, "pages", ("put", rows.slice(40, 3)))
    assert sorted(row["hits"] for row in forge.rows(store, "pages")) == [40, 41, 42]


def test_a_hash_that_is_given_is_believed(store: Store) -> None:
    """Signed, as Spark has it, or not: the same row."""
    hashes = hash_columns([pa.array(["a"])])
    forge.write(store, "pages", ("put", {"user": ["a"], "page": ["x"], "hits": [1], "_hash": pa.array(hashes)}))
    forge.write(store, "pages", ("put", {"user": ["a"], "page": ["x"], "hits": [2], "_hash": pa.array(hashes.view(np.int64))}))
    assert forge.rows(store, "pages") == [{"user": "a", "page": "x", "hits": 2}]
    for column in (pa.array(hashes), pa.array(hashes.view(np.int64))):
        keys = pa.table({"user": ["a"], "_hash": column})
        assert store.snapshot().table("pages").multi_get(keys).rows["hits"].to_pylist() == [2]
    with pytest.raises(SchemaMismatch, match="_hash has nulls"):
        store.snapshot().table("pages").multi_get(pa.table({"user": ["a"], "_hash": pa.nulls(1, pa.int64())}))


def test_two_keys_with_one_hash_are_two_keys(store: Store) -> None:
    same = pa.array([5, 5, 5], pa.uint64())
    forge.write(store, "counts", ("put", {"user": ["a", "b", "a"], "site": [1, 1, 2], "n": [1, 2, 3], "_hash": same}))
    forge.write(store, "counts", ("merge", {"user": ["b"], "site": [1], "n": [10], "_hash": same[:1]}))
    forge.write(store, "counts", ("delete", {"user": ["a"], "site": [2], "_hash": same[:1]}))
    assert {(row["user"], row["site"]): row["n"] for row in forge.rows(store, "counts")} == {("a", 1): 1, ("b", 1): 12}
    asked = pa.table({"user": ["b", "a", "a", "c"], "site": pa.array([1, 2, 1, 1], pa.int32()), "_hash": pa.array([5] * 4)})
    assert store.snapshot().table("counts").multi_get(asked).aligned()["n"].to_pylist() == [12, 4, 1, 4]
    list(store.compact(full=True))
    assert store.snapshot().table("counts").multi_get(asked).aligned()["n"].to_pylist() == [12, 4, 1, 4]


def test_an_epoch_is_committed_once_or_never(store: Store) -> None:
    with store.writer("test") as writer:
        epoch = writer.epoch()
        epoch.put("pages", pa.table({"user": ["a"], "page": ["x"], "hits": [1]}))
        epoch.commit()
        with pytest.raises(BadInput, match="committed or given up already"):
            epoch.commit()
    assert store.head.epoch == 1


def test_two_tasks_must_not_write_one_key_group(store: Store) -> None:
    with store.writer("test") as writer:
        epoch = writer.epoch()
        reports = []
        for part in ("0", "1"):
            task = epoch.task("op", part)
            task.write("pages", pa.table({"user": ["a"], "page": [part], "hits": [1]}))
            reports.append(task.finish())
        with pytest.raises(BadInput, match="two tasks wrote key group"):
            epoch.commit(reports)
    assert store.head.epoch == 0
