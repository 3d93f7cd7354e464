"""Multi-gets: the right rows for any keys, over any runs, and few bytes for few keys."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.metrics import TIER_READ_BYTES, TIER_REQUESTS, Counters
from floodplain.settings import RetrySettings
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.store import Store
from floodplain.tiers.objects import ObjectBlobs
from tests.store import forge

VALUE = value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), default=-1), "w": pa.string()})
MAP = map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.int64()})


def keys(*numbers: int | None) -> pa.Table:
    return pa.table({"k": pa.array(numbers, pa.int64())})


def test_keys_come_back_in_the_order_asked_for() -> None:
    store = forge.with_table(VALUE)
    forge.write(store, "t", ("put", {"k": [*range(100), None], "v": [*range(100), 7]}))
    lookup = store.snapshot().table("t").multi_get(keys(5, 200, 3, None, 5, 99))
    assert lookup.aligned()["v"].to_pylist() == [5, -1, 3, 7, 5, 99]
    assert lookup.found.tolist() == [True, False, True, True, True, True]
    assert len(lookup.found) == 6
    assert lookup.aligned().column_names == ["v", "w"]


def test_nothing_asked_and_nothing_there() -> None:
    store = forge.with_table(VALUE)
    for ask in (keys(), keys(1, 2)):
        lookup = store.snapshot().table("t").multi_get(ask)
        assert lookup.aligned()["v"].to_pylist() == [-1] * len(ask)
    forge.write(store, "t", ("put", {"k": [1], "v": [1]}))
    assert len(store.snapshot().table("t").multi_get(keys()).rows) == 0


def test_columns_may_be_chosen() -> None:
    store = forge.with_table(VALUE)
    forge.write(store, "t", ("put", {"k": [1], "v": [2], "w": ["x"]}))
    table = store.snapshot().table("t")
    assert table.multi_get(keys(1), columns=["w", "k"]).rows.to_pylist() == [{"w": "x", "k": 1}]
    with pytest.raises(SchemaMismatch, match="no column 'nothing'"):
        table.multi_get(keys(1), columns=["nothing"])


def test_keys_that_are_no_keys() -> None:
    table = forge.with_table(MAP).snapshot().table("t")
    with pytest.raises(SchemaMismatch, match="'k' is missing"):
        table.multi_get(pa.table({"s": [1]}))
    with pytest.raises(SchemaMismatch, match="column k is int64"):
        table.multi_get(pa.table({"k": ["x"]}))
    two = map_table("t", {"k": pa.int64()}, {"s": pa.int64(), "r": pa.int64()}, {})
    with pytest.raises(SchemaMismatch, match="all of its sub-key columns"):
        forge.with_table(two).snapshot().table("t").multi_get(pa.table({"k": [1], "s": [1]}))


def test_rows_that_are_many_cannot_be_aligned() -> None:
    store = forge.with_table(MAP)
    forge.write(store, "t", ("put", {"k": [1, 1], "s": [1, 2], "v": [1, 2]}))
    with pytest.raises(BadInput, match="several rows per key"):
        store.snapshot().table("t").multi_get(keys(1)).aligned()


Op = tuple[str, list[int]]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.integers(0, 30)), max_size=12), min_size=1, max_size=6),
    st.lists(st.integers(-2, 33), max_size=20),
    st.sampled_from(["memory", "objects"]),
)
def test_the_newest_row_counts(epochs: list[list[tuple[str, int]]], asked: list[int], tier: str) -> None:
    """Against a plain dictionary; chunks of a row or two."""
    store = forge.with_table(VALUE, getattr(forge, tier)(), replace(forge.SETTINGS, chunk_bytes=60))
    model: dict[int, int] = {}
    for number, changes in enumerate(epochs):
        rows = [(op, {"k": [key], "v": [number]} if op == "put" else {"k": [key]}) for op, key in changes]
        forge.write(store, "t", *rows)
        for op, key in changes:
            if op == "put":
                model[key] = number
            else:
                model.pop(key, None)
    store = forge.reopen(store.history.blobs)
    found = store.snapshot().table("t").multi_get(keys(*asked)).aligned()["v"].to_pylist()
    assert found == [model.get(key, -1) for key in asked]
    assert {row["k"]: row["v"] for row in forge.rows(store, "t")} == model


class Far:
    """A store on an object store in memory, opened anew, and the bytes that were read since."""

    def __init__(self, store: Store, counters: Counters, blobs: ObjectBlobs) -> None:
        self.store = store
        self._counters = counters
        self.size = max(info.size_bytes for info in blobs.list("runs/"))
        self.mark = (0, 0)

    def read(self) -> tuple[int, int]:
        """(bytes, requests) since the last call."""
        now = self._counters.get(TIER_READ_BYTES, "object"), self._counters.get(TIER_REQUESTS, "object")
        since = now[0] - self.mark[0], now[1] - self.mark[1]
        self.mark = now
        return since


def far(schema: Any, rows: pa.Table, chunk_bytes: int) -> Far:
    counters = Counters()
    blobs = ObjectBlobs("memory:///", {}, RetrySettings(), counters)
    chosen = replace(forge.SETTINGS, chunk_bytes=chunk_bytes, memory_bytes=0)
    forge.write(forge.with_table(schema, blobs, chosen), "t", ("put", rows))
    return Far(forge.reopen(blobs, chosen), counters, blobs)


def noise(count: int) -> pa.Array:
    return pa.array(np.random.default_rng(3).integers(0, 2**62, count))


def test_a_delete_hides_what_is_older_beside_operands_of_other_keys() -> None:
    """Where a run has operands, rows are gathered run by run until each key is settled."""
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), merge="sum", default=-1)}))
    forge.write(store, "t", ("put", {"k": [1, 2, 3], "v": [1, 2, 3]}))
    forge.write(store, "t", ("delete", {"k": [1]}), ("merge", {"k": [3], "v": [10]}))
    forge.write(store, "t", ("merge", {"k": [4], "v": [4]}))
    lookup = store.snapshot().table("t").multi_get(keys(2, 1))
    assert (lookup.found.tolist(), lookup.aligned()["v"].to_pylist()) == ([True, False], [2, -1])


def test_bytes_follow_the_keys() -> None:
    count = 50_000
    world = far(VALUE, pa.table({"k": range(count), "v": noise(count)}), 1 << 13)
    table = world.store.snapshot().table("t")
    table.multi_get(keys(-1))
    world.read()
    assert world.size > 600_000
    assert table.multi_get(keys(17)).found.all()
    one, requests = world.read()
    assert requests == 1
    assert one < 10_000
    table.multi_get(keys(*range(0, count, count // 10)))
    ten, _ = world.read()
    assert one < ten < world.size


def test_one_entry_of_a_big_map_reads_one_chunk() -> None:
    """A key of 30,000 entries over many chunks."""
    count = 30_000
    world = far(MAP, pa.table({"k": pa.array([7] * count), "s": range(count), "v": noise(count)}), 1 << 13)
    table = world.store.snapshot().table("t")
    table.multi_get(pa.table({"k": [7], "s": [count + 1]}))
    world.read()
    for entry in (0, 12_345, count - 1):
        lookup = table.multi_get(pa.table({"k": [7], "s": [entry]}))
        assert lookup.rows["s"].to_pylist() == [entry]
        size, requests = world.read()
        assert requests == 1
        assert size < 12_000
    assert len(table.multi_get(keys(7)).rows) == count
    assert world.read()[0] > 20 * 12_000


def test_one_element_of_a_long_list_and_one_timer_read_one_chunk() -> None:
    count = 20_000
    shapes = {
        "position": list_table("t", {"k": pa.int64()}, {"v": pa.int64()}),
        "at": timer_table("t", {"k": pa.int64()}, {"v": pa.int64()}),
    }
    for subkey, schema in shapes.items():
        spread = [7] * count if subkey == "position" else range(count)
        world = far(schema, pa.table({"k": pa.array(spread, pa.int64()), subkey: range(count), "v": noise(count)}), 1 << 13)
        table = world.store.snapshot().table("t")
        asked = pa.table({"k": [7 if subkey == "position" else 500], subkey: [500]})
        assert table.multi_get(asked).rows[subkey].to_pylist() == [500]
        world.read()
        assert table.multi_get(asked).rows[subkey].to_pylist() == [500]
        assert world.read() < (12_000, 2)


def test_keys_that_straddle_chunks_are_found_whole() -> None:
    store = forge.with_table(MAP, settings=replace(forge.SETTINGS, chunk_bytes=100))
    entries = [(key, sub) for key in range(5) for sub in range(40)]
    forge.write(store, "t", ("put", {"k": [k for k, _ in entries], "s": [s for _, s in entries], "v": range(200)}))
    lookup = store.snapshot().table("t").multi_get(keys(3, 9, 0))
    assert np.bincount(lookup.key_number, minlength=3).tolist() == [40, 0, 40]
    subkeys = [set() for _ in range(3)]
    for key_number, sub in zip(lookup.key_number.tolist(), lookup.rows["s"].to_pylist(), strict=True):
        subkeys[key_number].add(sub)
    assert subkeys == [set(range(40)), set(), set(range(40))]


def test_a_filter_keeps_lookups_away_from_runs_without_the_key() -> None:
    counters = Counters()
    blobs = ObjectBlobs("memory:///", {}, RetrySettings(), counters)
    chosen = replace(forge.SETTINGS, memory_bytes=0, chunk_bytes=1 << 14)
    store = forge.with_table(VALUE, blobs, chosen)
    for epoch in range(6):
        forge.write(store, "t", ("put", {"k": range(epoch * 2000, (epoch + 1) * 2000), "v": noise(2000)}))
    table = forge.reopen(blobs, chosen).snapshot().table("t")
    table.multi_get(keys(-5))
    before = counters.get(TIER_REQUESTS, "object")
    assert table.multi_get(keys(7000)).found.all()
    assert counters.get(TIER_REQUESTS, "object") - before <= 2, "more than the one run that has it, give or take a false positive"


EXACT = {
    "ordered": (list_table("t", {"k": pa.int64()}, {"v": pa.int64()}), "position"),
    "hashed": (MAP, "s"),
    "time": (timer_table("t", {"k": pa.int64()}, {"v": pa.int64()}), "at"),
}


@pytest.mark.parametrize("shape", EXACT)
@pytest.mark.parametrize("chunk_bytes", [1, 200, 1 << 20])
def test_exact_sub_keys_in_any_order_give_these_rows_and_no_others(shape: str, chunk_bytes: int) -> None:
    """Keys that are asked for in any order of their hashes, some twice, some with sub-keys that are not there."""
    schema, subkey = EXACT[shape]
    store = forge.with_table(schema, settings=replace(forge.SETTINGS, chunk_bytes=chunk_bytes))
    there = {(k, sub): 100 * k + sub for k in range(12) for sub in range(k + 1)}
    for part in (0, 1):
        rows = {entry: v for entry, v in there.items() if entry[1] % 2 == part}
        columns = {"k": [k for k, _ in rows], subkey: [sub for _, sub in rows], "v": list(rows.values())}
        forge.write(store, "t", ("put", columns))
    rng = np.random.default_rng(7)
    for count in (1, 2, 5, 40):
        asked = list(zip(rng.integers(0, 14, count).tolist(), rng.integers(0, 13, count).tolist(), strict=True))
        wanted = pa.table({"k": [k for k, _ in asked], subkey: [sub for _, sub in asked]})
        found = store.snapshot().table("t").multi_get(wanted)
        got = [
            (asked[key_number], row["v"])
            for key_number, row in zip(found.key_number.tolist(), found.rows.to_pylist(), strict=True)
        ]
        assert got == [(entry, there[entry]) for entry in asked if entry in there]
