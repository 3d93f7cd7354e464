"""What changed between two epochs: against the plain comparison of two tables."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput, SnapshotExpired
from floodplain.metrics import TIER_READ_BYTES, Counters
from floodplain.store.read.diff import changes
from floodplain.store.rows.definition import Column, map_table, timer_table, value_table
from floodplain.store.store import Store
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.log.commit import commit
from floodplain.versions.records.edit import DropTable
from tests.store import forge

VALUE = value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), merge="sum"), "l": pa.list_(pa.float64())})
SMALL = replace(forge.SETTINGS, window_bytes=300, chunk_bytes=100)


def kinds(store: Store, older: int, newer: int) -> dict[str, dict[Any, Any]]:
    """By kind, key → value, over all pieces."""
    found: dict[str, dict[Any, Any]] = {"added": {}, "before": {}, "after": {}, "deleted": {}}
    for change in store.diff("t", older, newer):
        assert change.before["f1"].to_pylist() == change.after["f1"].to_pylist()
        for kind, entries in found.items():
            rows = getattr(change, kind)
            for row in rows.to_pylist():
                key = (row["f1"], row["_sub"]) if "_sub" in row else row["f1"]
                assert key not in entries
                entries[key] = row.get("f3" if "_sub" in row else "f2")
    return found


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["put", "delete", "merge"]), st.integers(0, 25), st.integers(0, 2)), max_size=12),
        min_size=2,
        max_size=5,
    ),
    st.booleans(),
)
def test_a_diff_is_the_difference(epochs: list[list[tuple[str, int, int]]], compacted: bool) -> None:
    store = forge.with_table(VALUE, settings=SMALL)
    for number, ops in enumerate(epochs):
        forge.write(store, "t", *((op, {"k": [k]} if op == "delete" else {"k": [k], "v": [v]}) for op, k, v in ops))
        if compacted and number == len(epochs) // 2:
            list(store.compact(full=True))
    for older in range(1, len(epochs) + 1):
        for newer in (older, len(epochs)):
            was, now = ({row["k"]: row["v"] for row in store.at(e).table("t").to_arrow().to_pylist()} for e in (older, newer))
            found = kinds(store, older, newer)
            assert found["added"] == {k: v for k, v in now.items() if k not in was}
            assert found["deleted"] == {k: v for k, v in was.items() if k not in now}
            assert found["before"] == {k: v for k, v in was.items() if k in now and now[k] != v}
            assert found["after"] == {k: v for k, v in now.items() if k in was and was[k] != v}


def test_backwards_it_is_the_opposite() -> None:
    store = forge.with_table(VALUE)
    forge.write(store, "t", ("put", {"k": [1, 2], "v": [1, 2]}))
    forge.write(store, "t", ("put", {"k": [2, 3], "v": [5, 3]}), ("delete", {"k": [1]}))
    there, back = kinds(store, 1, 2), kinds(store, 2, 1)
    assert there == {"added": {3: 3}, "deleted": {1: 1}, "before": {2: 2}, "after": {2: 5}}
    assert back == {"added": there["deleted"], "deleted": there["added"], "before": there["after"], "after": there["before"]}


def test_nan_and_null_are_no_change() -> None:
    store = forge.with_table(VALUE)
    rows = {"k": [1, 2], "v": pa.nulls(2, pa.int64()), "l": [[float("nan"), None], None]}
    forge.write(store, "t", ("put", rows))
    forge.write(store, "t", ("put", rows))
    assert kinds(store, 1, 2) == {"added": {}, "before": {}, "after": {}, "deleted": {}}


def test_maps_and_timers_differ_by_entry() -> None:
    pages = map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.int64()})
    store = forge.with_table(pages)
    forge.write(store, "t", ("put", {"k": [1, 1, 2], "s": [1, 2, 1], "v": [1, 2, 3]}))
    forge.write(store, "t", ("clear", {"k": [1]}), ("put", {"k": [1], "s": [2], "v": [9]}))
    found = kinds(store, 1, 2)
    assert [sorted(found[kind].values()) for kind in ("added", "before", "after", "deleted")] == [[], [2], [9], [1]]
    store = forge.with_table(timer_table("t", {"k": pa.int64()}))
    forge.write(store, "t", ("put", {"k": [1, 2], "at": [10, 10]}))
    forge.write(store, "t", ("delete", {"k": [1], "at": [10]}), ("put", {"k": [1, 2], "at": [20, 10]}))
    found = kinds(store, 1, 2)
    assert [len(found[kind]) for kind in ("added", "before", "after", "deleted")] == [1, 0, 0, 1]


def test_what_ended_meanwhile_is_deleted() -> None:
    """Though no run changed: each side is as its own epoch saw it."""
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": pa.int64()}, ttl_ms=100))
    forge.write(store, "t", ("put", {"k": [1], "v": [1]}), now_ms=forge.NOW_MS)
    forge.write(store, "t", ("put", {"k": [2], "v": [2]}), now_ms=forge.NOW_MS + 50)
    forge.write(store, "t", now_ms=forge.NOW_MS + 120)
    assert kinds(store, 2, 3)["deleted"] == {1: 1}
    assert kinds(store, 1, 3) == {"added": {2: 2}, "before": {}, "after": {}, "deleted": {1: 1}}


def test_only_some_key_groups() -> None:
    store = forge.with_table(VALUE, settings=SMALL)
    for n in range(2):
        forge.write(store, "t", ("put", {"k": list(range(40)), "v": [n] * 40}))
    was, now = (store.history.at(epoch) for epoch in (1, 2))
    half = now.key_groups // 2
    parts = []
    for groups in (((0, half),), ((half, now.key_groups),), None):
        pieces = changes(was, now, "t", store.open_runs, 300, groups=groups)
        parts.append({key for piece in pieces for key in piece.after["f1"].to_pylist()})
    assert parts[0] and parts[1] and not parts[0] & parts[1]
    assert parts[0] | parts[1] == parts[2] == set(range(40))


@pytest.mark.parametrize("own", [True, False])
def test_the_same_value_for_longer_is_a_change_only_if_ends_are_compared(own: bool) -> None:
    column = Column(pa.int64(), ttl_ms=100 if own else 0)
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": column}, ttl_ms=0 if own else 100))
    for at_ms in (forge.NOW_MS, forge.NOW_MS + 50):
        forge.write(store, "t", ("put", {"k": [1], "v": [1]}), now_ms=at_ms)
    was, now = (store.history.at(epoch) for epoch in (1, 2))
    for expiries in (True, False):
        pieces = list(changes(was, now, "t", store.open_runs, 300, expiries=expiries))
        assert sum(len(piece.after) for piece in pieces) == sum(len(piece.before) for piece in pieces) == expiries


def test_across_a_changed_definition_rows_have_the_newer_one() -> None:
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": pa.int8()}))
    forge.write(store, "t", ("put", {"k": [1, 2], "v": [1, 2]}))
    with store.writer("test") as writer:
        writer.define(value_table("t", {"k": pa.int64()}, {"v": pa.int64(), "w": Column(pa.int64(), default=7)}))
    forge.write(store, "t", ("put", {"k": [2], "v": [2**40]}))
    assert kinds(store, 1, 2) == {"added": {}, "before": {2: 2}, "after": {2: 2**40}, "deleted": {}}


def test_a_table_made_meanwhile_is_all_new() -> None:
    store = forge.create()
    with store.writer("test") as writer:
        writer.epoch().commit()
        writer.define(VALUE)
        writer.put("t", pa.table({"k": [1], "v": [1]}))
    assert kinds(store, 1, 2)["added"] == {1: 1}


def test_what_cannot_be_compared() -> None:
    store = forge.with_table(VALUE)
    forge.write(store, "t", ("put", {"k": [1], "v": [1]}))
    with pytest.raises(BadInput, match="no table 'none'"):
        list(store.diff("none", 1, 1))
    with pytest.raises(BadInput, match="not committed yet"):
        list(store.diff("t", 1, 2))
    with pytest.raises(SnapshotExpired):
        list(store.diff("t", 0, 1))


def test_key_groups_that_did_not_change_are_not_read() -> None:
    counters = Counters()
    blobs = MemoryBlobs("memory://diff", counters)
    store = forge.with_table(VALUE, blobs, replace(forge.SETTINGS, chunk_bytes=1 << 12))
    forge.write(store, "t", ("put", {"k": range(20_000), "v": range(20_000)}))
    forge.write(store, "t", ("put", {"k": [5], "v": [-1]}))
    fresh = forge.reopen(blobs, store.history.settings)
    before = counters.get(TIER_READ_BYTES, "memory")
    assert kinds(fresh, 1, 2)["after"] == {5: -1}
    size = max(info.size_bytes for info in blobs.list("runs/"))
    assert counters.get(TIER_READ_BYTES, "memory") - before < size // 3


def defined(store: Store, **values: Any) -> None:
    with store.writer("test") as writer:
        writer.define(value_table("t", {"k": pa.int64()}, values))


INNER = [("x", pa.int64()), ("y", pa.int64())]
ANEW: dict[str, tuple[pa.DataType, pa.DataType | None, pa.DataType, str]] = {
    "same type": (pa.int64(), None, pa.int64(), "b"),
    "another type": (pa.int64(), None, pa.string(), "b"),
    "field": (pa.struct(INNER), pa.struct(INNER[:1]), pa.struct(INNER), "b.y"),
    "field of another type": (pa.struct(INNER), pa.struct(INNER[:1]), pa.struct([INNER[0], ("y", pa.string())]), "b.y"),
    "field in a list": (pa.list_(pa.struct(INNER)), pa.list_(pa.struct(INNER[:1])), pa.list_(pa.struct(INNER)), "b.element.y"),
}


@pytest.mark.parametrize("name", ANEW)
def test_a_column_that_was_dropped_and_made_anew_is_not_taken_for_the_old_one(name: str) -> None:
    """Its old values would be shown as none, and keys that had one would not be shown at all."""
    first, between, again, path = ANEW[name]
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"a": pa.int64(), "b": first}))
    forge.write(store, "t", ("put", {"k": [1], "a": [1]}))
    defined(store, a=pa.int64(), **({} if between is None else {"b": between}))
    forge.write(store, "t", ("put", {"k": [2], "a": [2]}))
    defined(store, a=pa.int64(), b=again)
    forge.write(store, "t", ("put", {"k": [3], "a": [3]}))
    for older, newer in ((1, 3), (3, 1)):
        with pytest.raises(BadInput, match=rf"cannot be compared .*: {path} was dropped and made anew"):
            list(store.diff("t", older, newer))
    assert kinds(store, 1, 2)["added"] == {2: 2}
    assert kinds(store, 2, 3)["added"] == {3: 3}


def test_columns_that_only_took_the_name_of_another_are_compared() -> None:
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"a": pa.int64(), "b": pa.int64()}))
    forge.write(store, "t", ("put", {"k": [1], "a": [1], "b": [5]}))
    with store.writer("test") as writer:
        writer.define(value_table("t", {"k": pa.int64()}, {"c": pa.int64(), "a": pa.int64()}), renames={"a": "c", "b": "a"})
    forge.write(store, "t", ("put", {"k": [1], "c": [2], "a": [5]}))
    assert kinds(store, 1, 2) == {"added": {}, "before": {1: 1}, "after": {1: 2}, "deleted": {}}


@pytest.mark.parametrize("evolved", [False, True])
def test_a_table_that_was_dropped_and_made_anew_has_other_columns(evolved: bool) -> None:
    """Their ids begin again, so that equal ones are not the same column."""
    first = {"a": pa.int64(), "b": pa.int64()} if not evolved else {"a": pa.int64()}
    store = forge.with_table(value_table("t", {"k": pa.int64()}, first))
    if evolved:
        defined(store, a=pa.int64(), b=pa.int64())
    forge.write(store, "t", ("put", {"k": [1], "a": [1], "b": [2]}))
    commit(store.history, [DropTable("t")])
    if evolved:
        defined(store, a=pa.int64())
    defined(store, a=pa.int64(), z=pa.int64())
    forge.write(store, "t", ("put", {"k": [1], "a": [1], "z": [2]}))
    with pytest.raises(BadInput, match="cannot be compared"):
        list(store.diff("t", 1, 2))


def test_a_table_that_was_made_anew_as_it_was_is_compared() -> None:
    store = forge.with_table(VALUE)
    forge.write(store, "t", ("put", {"k": [1, 2], "v": [1, 2]}))
    commit(store.history, [DropTable("t")])
    with store.writer("test") as writer:
        writer.define(VALUE)
    forge.write(store, "t", ("put", {"k": [2, 3], "v": [3, 3]}))
    assert kinds(store, 1, 2) == {"added": {3: 3}, "before": {2: 2}, "after": {2: 3}, "deleted": {1: 1}}
