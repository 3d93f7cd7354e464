"""Scans: everything once, in order, in bounded pieces, and only what was asked for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.keys import group_bounds, hash_columns, key_group
from floodplain.metrics import TIER_READ_BYTES, Counters
from floodplain.store.read.scan import plan
from floodplain.store.rows.definition import Column, map_table, timer_table, value_table
from floodplain.store.store import Store
from floodplain.tiers.memory import MemoryBlobs
from tests.store import forge

VALUE = value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), merge="sum")})
MAP = map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.int64()})
TIMERS = timer_table("t", {"k": pa.int64()})
SMALL = replace(forge.SETTINGS, chunk_bytes=1000, window_bytes=3000)


def filled(schema: Any, epochs: int = 3, count: int = 1000, chosen: Any = SMALL) -> Store:
    store = forge.with_table(schema, settings=chosen)
    for epoch in range(epochs):
        columns: dict[str, Any] = {"k": range(epoch * count // 2, epoch * count // 2 + count)}
        if schema is MAP:
            columns |= {"s": [n % 7 for n in range(count)]}
        columns |= {"at": [n * n % 997 for n in range(count)]} if schema is TIMERS else {"v": [epoch] * count}
        forge.write(store, "t", ("put", columns))
    return store


@pytest.mark.parametrize("schema", [VALUE, MAP, TIMERS], ids=lambda schema: schema.shape)
def test_pieces_are_bounded_and_hold_everything_once(schema: Any) -> None:
    store = filled(schema)
    pieces = list(store.snapshot().table("t").scan())
    whole = pa.concat_tables(pieces)
    assert len(pieces) > 5
    told_apart = [field.name for field in (*schema.keys, *schema.subkeys)]
    assert len(whole.group_by(told_apart).aggregate([])) == len(whole)
    assert set(whole["k"].to_pylist()) == set(range(2000))
    chunk_rows = max(int(source.reader.count.max()) for source in store.open_runs.sources(store.head, "t"))
    row_bytes = whole.nbytes / len(whole) + 9
    assert max(map(len, pieces)) <= SMALL.window_bytes / row_bytes + 3 * chunk_rows


def test_memory_follows_the_window_and_not_the_table() -> None:
    chosen = replace(SMALL, chunk_bytes=1 << 16, window_bytes=1 << 18, memory_bytes=1 << 20)
    store = filled(VALUE, epochs=2, count=200_000, chosen=chosen)
    store = forge.reopen(store.history.blobs, store.history.settings)
    start, peak = pa.total_allocated_bytes(), 0
    for _ in store.snapshot().table("t").scan():
        peak = max(peak, pa.total_allocated_bytes() - start)
    assert store.snapshot().table("t").to_arrow().nbytes > 4 << 20
    assert peak < 4 << 20


def test_rows_come_by_hash() -> None:
    whole = pa.concat_tables(filled(VALUE).snapshot().table("t").scan())
    hashes = hash_columns([whole["k"]])
    assert (hashes[1:] > hashes[:-1]).all()


def test_timers_come_by_key_group_and_time() -> None:
    whole = pa.concat_tables(filled(TIMERS).snapshot().table("t").scan())
    order = list(zip(key_group(hash_columns([whole["k"]]), forge.GROUPS).tolist(), whole["at"].to_pylist(), strict=True))
    assert order == sorted(order)


@pytest.mark.parametrize("schema", [VALUE, MAP, TIMERS], ids=lambda schema: schema.shape)
@pytest.mark.parametrize("groups", [((0, 1),), ((3, 9),), ((0, 2), (5, 6), (14, 16)), ((0, 16),)])
def test_key_groups_may_be_chosen(schema: Any, groups: tuple[tuple[int, int], ...]) -> None:
    table = filled(schema).snapshot().table("t")
    whole = table.to_arrow()
    member = np.isin(key_group(hash_columns([whole["k"]]), forge.GROUPS), [g for low, high in groups for g in range(low, high)])
    found = pa.concat_tables([whole.slice(0, 0), *table.scan(groups=groups)])
    assert found.equals(whole.filter(pa.array(member)))


@pytest.mark.parametrize("groups", [((-1, 3),), ((3, 3),), ((5, 2),), ((0, 17),)])
def test_key_groups_that_do_not_exist(groups: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(BadInput, match="do not exist"):
        list(filled(VALUE).snapshot().table("t").scan(groups=groups))


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.integers(-50, 1050), st.integers(-50, 1050))
def test_times_may_be_chosen(first: int, end: int) -> None:
    table = TIMED.snapshot().table("t")
    found = pa.concat_tables([TIMED_ROWS.slice(0, 0), *table.scan(times=(first, end))])
    assert found.to_pylist() == [row for row in TIMED_ROWS.to_pylist() if first <= row["at"] < end]


TIMED = filled(TIMERS)
TIMED_ROWS = TIMED.snapshot().table("t").to_arrow()


def test_times_at_the_ends_of_time() -> None:
    store = forge.with_table(TIMERS)
    ends = [-(2**63), -1, 0, 2**63 - 1]
    forge.write(store, "t", ("put", {"k": [1, 1, 1, 1], "at": pa.array(ends)}))
    table = store.snapshot().table("t")
    assert pa.concat_tables(table.scan(times=(-(2**63), 2**63)))["at"].to_pylist() == ends
    assert pa.concat_tables(table.scan(times=(-(2**70), 2**70)))["at"].to_pylist() == ends
    assert pa.concat_tables(table.scan(times=(0, 2**63 - 1)))["at"].to_pylist() == [0]
    forge.write(store, "t", ("clear", {"k": [1]}))
    assert list(store.snapshot().table("t").scan(times=(-(2**63), 2**63))) == []


def test_times_of_a_table_that_has_none() -> None:
    with pytest.raises(BadInput, match="not in time order"):
        list(filled(VALUE).snapshot().table("t").scan(times=(0, 1)))


def test_a_clear_counts_though_it_is_outside_the_times() -> None:
    store = forge.with_table(TIMERS, settings=replace(SMALL, chunk_bytes=1))
    forge.write(store, "t", ("put", {"k": [1, 1, 2], "at": [10, 20, 10]}))
    forge.write(store, "t", ("clear", {"k": [1]}), ("put", {"k": [1], "at": [30]}))
    found = pa.concat_tables(store.snapshot().table("t").scan(times=(5, 25)))
    assert found.to_pylist() == [{"k": 2, "at": 10}]


def test_due_timers_of_many_read_few_bytes() -> None:
    counters = Counters()
    blobs = MemoryBlobs("memory://timers", counters)
    chosen = replace(forge.SETTINGS, chunk_bytes=1 << 12, memory_bytes=0)
    store = forge.with_table(TIMERS, blobs, chosen)
    count = 50_000
    forge.write(store, "t", ("put", {"k": range(count), "at": pa.array(np.random.default_rng(2).permutation(count))}))
    table = forge.reopen(blobs, chosen).snapshot().table("t")
    list(table.scan(groups=((0, 1),), times=(-10, -5)))
    before = counters.get(TIER_READ_BYTES, "memory")
    due = pa.concat_tables(table.scan(groups=((0, 1),), times=(0, 100)))
    assert 0 < len(due) < 30
    assert counters.get(TIER_READ_BYTES, "memory") - before < 20_000, "more than the first chunk and the one it shares"
    assert max(info.size_bytes for info in blobs.list("runs/")) > 500_000


def test_windows_cover_the_key_groups_without_a_gap() -> None:
    store = filled(VALUE)
    sources = store.open_runs.sources(store.head, "t")
    for groups in (((0, 16),), ((2, 5), (9, 10))):
        windows = plan(sources, VALUE, groups, forge.GROUPS, 2000)
        covered = sorted((window.begin, window.end) for window in windows)
        merged = [list(covered[0])]
        for begin, end in covered[1:]:
            assert begin >= merged[-1][1]
            if begin == merged[-1][1]:
                merged[-1][1] = end
            else:
                merged.append([begin, end])
        assert merged == [[low << 124, high << 124] for low, high in groups]


def test_columns_counts_and_the_empty_table() -> None:
    store = filled(VALUE)
    table = store.snapshot().table("t")
    assert table.count() == 2000
    assert table.to_arrow(columns=["v"]).column_names == ["v"]
    with pytest.raises(SchemaMismatch, match="'nothing'"):
        list(table.scan(columns=["nothing"]))
    empty = forge.with_table(VALUE).snapshot().table("t")
    assert list(empty.scan()) == []
    assert empty.to_arrow().schema.names == ["k", "v"]
    assert empty.count() == 0


def test_a_scan_and_a_lookup_agree() -> None:
    store = filled(VALUE)
    forge.write(store, "t", ("merge", {"k": range(0, 3000, 7), "v": [10] * 429}), ("delete", {"k": range(0, 2000, 11)}))
    table = store.snapshot().table("t")
    whole = {row["k"]: row["v"] for row in table.to_arrow().to_pylist()}
    lookup = table.multi_get(pa.table({"k": range(3100)}))
    assert dict(zip(lookup.rows["k"].to_pylist(), lookup.rows["v"].to_pylist(), strict=True)) == whole


@pytest.mark.parametrize("schema", [VALUE, MAP, TIMERS], ids=lambda schema: schema.shape)
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_a_hash_at_the_very_end_of_a_key_group_is_of_that_group(schema: Any, chunk_bytes: int) -> None:
    """The first and the last one of each, which no test meets by chance."""
    store = forge.with_table(schema)
    ends = [hash_ for group in range(forge.GROUPS) for hash_ in group_bounds(group, group + 1, forge.GROUPS)]
    columns: dict[str, Any] = {"k": range(len(ends))}
    columns |= {"s": [0] * len(ends)} if schema is MAP else {"at": [5] * len(ends)} if schema is TIMERS else {}
    physical = forge.physical_of(forge.built(store, "t", pa.table(columns))).combine_chunks()
    at = physical.column_names.index("_hash")
    physical = physical.set_column(at, physical.schema.field(at), pa.array(ends, pa.uint64()))
    forge.commit_runs(store, forge.raw_run(store, "t", physical, chunk_bytes=chunk_bytes))
    table = store.snapshot().table("t")
    in_order = physical["f1"].to_pylist()
    assert table.to_arrow()["k"].to_pylist() == in_order
    for group in range(forge.GROUPS):
        (found,) = table.scan(groups=((group, group + 1),))
        assert found["k"].to_pylist() == in_order[2 * group : 2 * group + 2]
