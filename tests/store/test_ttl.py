"""Time to live, of rows and of single values, by processing time and by event time: every reader of an epoch agrees."""

from typing import Any

import pyarrow as pa
import pytest

from floodplain.store.rows.definition import Column, list_table, map_table, value_table
from floodplain.store.store import Store
from tests.store import forge

ROWS = value_table("t", {"k": pa.int64()}, {"v": pa.int64()}, ttl_ms=100)
T0 = forge.NOW_MS


def content(store: Store, epoch: int | None = None, **options: Any) -> dict[int, Any]:
    snapshot = store.snapshot() if epoch is None else store.at(epoch)
    rows = snapshot.table("t").to_arrow(**options).to_pylist()
    by_key = snapshot.table("t").multi_get(pa.table({"k": range(5)}), **options).rows.to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, by_key))
    return {row["k"]: row["v"] for row in rows}


def tick(store: Store, now_ms: int, **more: Any) -> None:
    """An epoch without rows at this time."""
    forge.write(store, "t", now_ms=now_ms, **more)


def test_a_row_lives_for_its_time_since_it_was_last_written() -> None:
    store = forge.with_table(ROWS)
    forge.write(store, "t", ("put", {"k": [1, 2], "v": [1, 2]}), now_ms=T0)
    forge.write(store, "t", ("put", {"k": [2], "v": [3]}), now_ms=T0 + 60)
    tick(store, T0 + 99)
    assert content(store) == {1: 1, 2: 3}
    tick(store, T0 + 100)
    assert content(store) == {2: 3}
    tick(store, T0 + 160)
    assert content(store) == {}
    assert [len(content(store, epoch)) for epoch in range(1, 6)] == [2, 2, 2, 1, 0], "an epoch is for ever what it was"


def test_a_run_counts_until_its_last_row_has_ended() -> None:
    store = forge.with_table(ROWS)
    forge.write(store, "t", ("put", {"k": [1, 2, 3], "v": [1, 2, 3], "_expires": [T0 + 10, T0 + 30, T0 + 20]}), now_ms=T0)
    for after_ms, left in ((9, {1: 1, 2: 2, 3: 3}), (10, {2: 2, 3: 3}), (20, {2: 2}), (29, {2: 2}), (30, {})):
        tick(store, T0 + after_ms)
        assert content(store) == left, after_ms


def test_now_may_be_asked_for() -> None:
    store = forge.with_table(ROWS)
    forge.write(store, "t", ("put", {"k": [1], "v": [1]}), now_ms=T0)
    assert content(store, now_ms=T0 + 99) == {1: 1}
    assert content(store, now_ms=T0 + 100) == {}
    assert store.snapshot().table("t").count(now_ms=T0 + 100) == 0


def test_what_ended_does_not_come_back_when_compacted_in_part() -> None:
    """The newer rows end first; the older run, which lives longer, must not shine through."""
    store = forge.with_table(ROWS)
    with store.writer("test") as writer:
        epoch = writer.epoch(now_ms=T0)
        epoch.put("t", pa.table({"k": [1], "v": [1], "_expires": [T0 + 10_000]}))
        epoch.commit()
    for _ in range(4):
        forge.write(store, "t", ("put", {"k": [1], "v": [2]}), now_ms=T0 + 1)
    tick(store, T0 + 500)
    assert content(store) == {}
    while list(store.compact()):
        pass
    assert content(store) == {}
    list(store.compact(full=True))
    assert content(store) == {}
    assert store.head.runs["t"] == ()


def test_full_compaction_drops_what_ended_and_keeps_the_rest() -> None:
    store = forge.with_table(ROWS)
    forge.write(store, "t", ("put", {"k": [1, 2], "v": [1, 2]}), now_ms=T0)
    forge.write(store, "t", ("put", {"k": [2], "v": [2]}), now_ms=T0 + 50)
    tick(store, T0 + 120)
    list(store.compact(full=True))
    assert [run.rows for run in store.head.runs["t"]] == [1]
    assert content(store) == {2: 2}
    tick(store, T0 + 150)
    assert content(store) == {}


COLUMNS = value_table(
    "t",
    {"k": pa.int64()},
    {"v": Column(pa.int64(), ttl_ms=100, default=-1), "w": pa.int64(), "n": Column(pa.int64(), merge="sum", ttl_ms=100)},
)


def values(store: Store) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in forge.rows(store, "t")]


def test_a_value_ends_and_its_row_stays() -> None:
    store = forge.with_table(COLUMNS)
    forge.write(store, "t", ("put", {"k": [1], "v": [1], "w": [2], "n": [3]}), now_ms=T0)
    tick(store, T0 + 99)
    assert values(store) == [(1, 1, 2, 3)]
    tick(store, T0 + 100)
    assert values(store) == [(1, -1, 2, None)]
    list(store.compact(full=True))
    assert values(store) == [(1, -1, 2, None)]


def test_a_merge_renews_its_value_only() -> None:
    store = forge.with_table(COLUMNS)
    forge.write(store, "t", ("put", {"k": [1], "v": [1], "w": [2], "n": [3]}), now_ms=T0)
    forge.write(store, "t", ("merge", {"k": [1], "n": [10]}), now_ms=T0 + 60)
    tick(store, T0 + 110)
    assert values(store) == [(1, -1, 2, 13)]
    forge.write(store, "t", ("merge", {"k": [1], "n": [10]}), now_ms=T0 + 170)
    assert values(store) == [(1, -1, 2, 10)], "what had ended at 160 was not added to"
    list(store.compact(full=True))
    assert values(store) == [(1, -1, 2, 10)]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_blind_merge_is_a_read_and_a_write(compacted: bool) -> None:
    """Whatever the gaps between merges: the same as reading, adding and writing back at those times."""
    schema = value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), merge="sum")}, ttl_ms=100)
    for gaps in ((10, 10), (10, 100), (100, 10), (99, 99), (150, 150), (99, 101)):
        blind, read = forge.with_table(schema), forge.with_table(schema)
        now = T0
        for gap in (0, *gaps):
            now += gap
            forge.write(blind, "t", ("merge", {"k": [1], "v": [1]}), now_ms=now)
            old = content(read, now_ms=now).get(1, 0)
            forge.write(read, "t", ("put", {"k": [1], "v": [old + 1]}), now_ms=now)
            if compacted:
                list(blind.compact(full=True))
        assert content(blind) == content(read), gaps


EVENT = value_table("t", {"k": pa.int64()}, {"v": pa.int64()}, ttl_ms=100, ttl_clock="event_time")


def test_event_time_ends_rows_by_its_watermark_and_not_by_the_clock() -> None:
    store = forge.with_table(EVENT)
    forge.write(store, "t", ("put", {"k": [1], "v": [1], "_expires": [1_100]}), now_ms=T0, watermarks={"event_time": 1_000})
    tick(store, T0 + 10**6)
    assert content(store) == {1: 1}, "the clock went on, event time did not"
    tick(store, T0 + 10**6, watermarks={"event_time": 1_099})
    assert content(store) == {1: 1}
    tick(store, T0 + 10**6, watermarks={"event_time": 1_100})
    assert content(store) == {}
    list(store.compact(full=True))
    assert store.head.runs["t"] == ()


def test_before_any_watermark_nothing_has_ended() -> None:
    store = forge.with_table(EVENT)
    forge.write(store, "t", ("put", {"k": [1], "v": [1], "_expires": [5]}))
    assert content(store) == {1: 1}


def test_what_is_written_before_any_watermark_does_not_end_until_it_is_written_again() -> None:
    values = {"v": Column(pa.int64(), merge="sum"), "w": Column(pa.int64(), ttl_ms=50)}
    merging = value_table("t", {"k": pa.int64()}, values, ttl_ms=100, ttl_clock="event_time")
    for schema in (EVENT, merging):
        store = forge.with_table(schema)
        forge.write(store, "t", ("put", {"k": [1, 2, 3], "v": [1, 2, 3]}), ("put", {"k": [3], "v": [4]}))
        if schema is merging:
            forge.write(store, "t", ("merge", {"k": [1], "v": [10]}))
        tick(store, T0, watermarks={"event_time": 10**6})
        assert content(store) == {1: 11 if schema is merging else 1, 2: 2, 3: 4}
        forge.write(store, "t", ("put", {"k": [2], "v": [5]}), watermarks={"event_time": 10**6})
        tick(store, T0, watermarks={"event_time": 10**6 + 100})
        list(store.compact(full=True))
        assert content(store) == {1: 11 if schema is merging else 1, 3: 4}


def test_lists_and_maps_lose_entries_one_by_one() -> None:
    for schema, subkey in (
        (list_table("t", {"k": pa.int64()}, {"v": pa.int64()}, ttl_ms=100), "position"),
        (map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.int64()}, ttl_ms=100), "s"),
    ):
        store = forge.with_table(schema)
        for step in range(4):
            forge.write(store, "t", ("put", {"k": [1], subkey: [step], "v": [step]}), now_ms=T0 + 40 * step)
        assert sorted(row["v"] for row in forge.rows(store, "t")) == [1, 2, 3]
        list(store.compact(full=True))
        assert sorted(row["v"] for row in forge.rows(store, "t")) == [1, 2, 3]


def test_a_caller_that_rewrites_a_row_can_keep_its_ends() -> None:
    schema = value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), ttl_ms=100)}, ttl_ms=1000)
    store = forge.with_table(schema)
    forge.write(store, "t", ("put", {"k": [1], "v": [1]}), now_ms=T0)
    found = store.snapshot().table("t").multi_get(pa.table({"k": [1]}), expiries=True).rows
    assert found.select(["_expires", "_expires_v"]).to_pylist() == [{"_expires": T0 + 1000, "_expires_v": T0 + 100}]
    forge.write(store, "t", ("put", found), now_ms=T0 + 50)
    tick(store, T0 + 100)
    assert content(store) == {1: None}
    tick(store, T0 + 1000)
    assert content(store) == {}


def test_processing_time_never_goes_back() -> None:
    """A clock that was set back must not bring rows back to life."""
    store = forge.with_table(ROWS)
    forge.write(store, "t", ("put", {"k": [1], "v": [1]}), now_ms=T0)
    tick(store, T0 + 200)
    tick(store, T0 - 10**6)
    assert content(store) == {}
    assert store.head.watermarks["processing_time"] == T0 + 200
