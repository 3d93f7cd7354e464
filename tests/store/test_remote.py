"""A store over a real S3 server: the whole life of it, and what travels."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.errors import Corrupt, Fenced, LeaseHeld, SnapshotExpired, StoreNotFound
from floodplain.metrics import TIER_HITS, TIER_READ_BYTES, TIER_REQUESTS
from floodplain.settings import CacheSettings, RetentionSettings, RetrySettings, StoreSettings
from floodplain.store.rows.definition import Column, map_table, value_table
from floodplain.store.store import Store
from tests.conftest import S3Server

pytestmark = pytest.mark.s3

VALUE = value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), merge="sum")})
SETTINGS = StoreSettings(
    retry=RetrySettings(timeout_ms=10_000), retention=RetentionSettings(newest=2, every_ms=()), memory_bytes=0, checkpoint_every=4
)

Open = Callable[..., Store]


@pytest.fixture
def open_store(s3_server: S3Server) -> Open:
    """Opens one and the same place each time, as another process would."""
    url = s3_server.url(f"remote/{uuid.uuid4().hex}")

    def run(*, create: bool = False, **changes: Any) -> Store:
        return Store.open(url, create=create, settings=replace(SETTINGS, **changes), options=s3_server.options)

    return run


def keys(*numbers: int) -> pa.Table:
    return pa.table({"k": pa.array(numbers, pa.int64())})


def read_bytes(store: Store) -> int:
    return store.counters.get(TIER_READ_BYTES, "object")


def requests(store: Store) -> int:
    return store.counters.get(TIER_REQUESTS, "object")


def content(store: Store, epoch: int | None = None) -> dict[int, int]:
    snapshot = store.snapshot() if epoch is None else store.at(epoch)
    return {row["k"]: row["v"] for row in snapshot.table("t").to_arrow().to_pylist()}


def test_the_life_of_a_store(open_store: Open) -> None:
    with pytest.raises(StoreNotFound):
        open_store()
    store = open_store(create=True)
    with store.writer("one") as writer:
        writer.define(VALUE)
        writer.put("t", pa.table({"k": [1, 2], "v": [1, 2]}))
        store.tag("start")
        for n in range(4):
            epoch = writer.epoch()
            epoch.merge("t", pa.table({"k": [1, 3], "v": [10, n]}))
            epoch.commit()
        other = open_store()
        assert content(other) == {1: 41, 2: 2, 3: 6}
        assert content(other, 2) == {1: 11, 2: 2, 3: 0}
        assert len(list(other.compact(full=True))) == 1
        assert content(store) == {1: 41, 2: 2, 3: 6}
        collected = writer.collect_garbage()
        assert collected.epochs == (2, 3)
    fresh = open_store()
    assert fresh.at(tag="start").table("t").count() == 2
    with pytest.raises(SnapshotExpired):
        fresh.at(2)
    assert [sum(change.added.num_rows for change in fresh.diff("t", 1, 5))] == [1]
    verdict = fresh.verify()
    assert verdict.good
    assert (verdict.epochs, content(fresh)) == (3, {1: 41, 2: 2, 3: 6})


def test_one_writer_at_a_time(open_store: Open) -> None:
    first = open_store(create=True).writer("one")
    with pytest.raises(LeaseHeld):
        open_store().writer("two")
    with open_store().writer("two", force=True) as second:
        second.define(VALUE)
        second.put("t", pa.table({"k": [1], "v": [1]}))
        with pytest.raises(Fenced):
            first.epoch().commit()


@pytest.fixture(scope="module")
def million(s3_server: S3Server) -> str:
    """A million rows in one compressed run, and small runs of later epochs."""
    url = s3_server.url(f"remote/{uuid.uuid4().hex}")
    store = Store.open(url, create=True, settings=SETTINGS, options=s3_server.options)
    noise = pa.array(np.random.default_rng(1).integers(0, 2**40, 1_000_000))
    with store.writer("one") as writer:
        writer.define(VALUE)
        writer.put("t", pa.table({"k": range(1_000_000), "v": noise}))
        for n in range(3):
            first = (n + 1) * 1_000_000
            writer.put("t", pa.table({"k": range(first, first + 50_000), "v": [n] * 50_000}))
    return url


def test_bytes_follow_the_keys_asked_for(million: str, s3_server: S3Server) -> None:
    store = Store.open(million, settings=SETTINGS, options=s3_server.options)
    table = store.snapshot().table("t")
    size = max(info.size_bytes for info in store.history.blobs.list("runs/"))
    assert size > 8_000_000
    table.multi_get(keys(-1))
    opened = read_bytes(store)
    assert opened < size // 4, "opening reads manifests, footers and filters"
    assert table.multi_get(keys(123_456)).found.all()
    one = read_bytes(store) - opened
    assert 0 < one < size // 10
    before = read_bytes(store)
    assert table.multi_get(keys(*range(0, 1_000_000, 1000))).found.all()
    assert read_bytes(store) - before > 5 * one


def test_filters_keep_reads_away_from_runs_without_the_key(million: str, s3_server: S3Server) -> None:
    store = Store.open(million, settings=SETTINGS, options=s3_server.options)
    table = store.snapshot().table("t")
    table.multi_get(keys(-1))
    for key in (2_000_001, 999_999):
        before = requests(store)
        assert table.multi_get(keys(key)).found.all()
        assert requests(store) - before <= 2, "one run has it, another may by mistake"
    before = requests(store)
    absent = table.multi_get(keys(*range(-50, -1)))
    assert not absent.found.any()
    assert requests(store) - before <= 4


def test_with_a_cache_on_disk_the_second_read_fetches_nothing(million: str, s3_server: S3Server, tmp_path: Path) -> None:
    chosen = replace(SETTINGS, cache=CacheSettings(str(tmp_path), 64 << 20))
    asked = keys(5, 500_000, 2_000_002)

    def read() -> tuple[list[int], int, int]:
        store = Store.open(million, settings=chosen, options=s3_server.options)
        table = store.snapshot().table("t")
        before = read_bytes(store)
        found = table.multi_get(asked).aligned()["v"].to_pylist()
        return found, read_bytes(store) - before, store.counters.get(TIER_HITS, "disk")

    cold, cold_bytes, _ = read()
    warm, warm_bytes, hits = read()
    assert warm == cold
    assert cold_bytes > 10_000
    assert warm_bytes == 0
    assert hits > 3


def test_a_big_map_touched_at_one_entry_reads_one_chunk(open_store: Open) -> None:
    store = open_store(create=True, chunk_bytes=1 << 16)
    count = 100_000
    with store.writer("one") as writer:
        writer.define(map_table("m", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.int64()}))
        noise = pa.array(np.random.default_rng(1).integers(0, 2**62, count))
        writer.put("m", pa.table({"k": pa.array([1] * count), "s": range(count), "v": noise}))
    table = open_store(chunk_bytes=1 << 16)
    view = table.snapshot().table("m")
    assert len(view.multi_get(pa.table({"k": [1], "s": [count]})).rows) == 0
    before = read_bytes(table), requests(table)
    assert view.multi_get(pa.table({"k": [1], "s": [777]})).rows["s"].to_pylist() == [777]
    assert requests(table) - before[1] == 1
    assert read_bytes(table) - before[0] <= 1 << 16


def test_damage_on_the_server_is_named(open_store: Open) -> None:
    store = open_store(create=True)
    with store.writer("one") as writer:
        writer.define(VALUE)
        writer.put("t", pa.table({"k": range(1000), "v": range(1000)}))
    (run,) = store.history.blobs.list("runs/")
    data = bytearray(store.history.blobs.get(run.name).to_pybytes())
    data[len(data) // 2] ^= 1
    store.history.blobs.put(run.name, bytes(data))
    fresh = open_store()
    assert [damage.file for damage in fresh.verify().damages] == [run.name]
    with pytest.raises(Corrupt, match=run.name):
        content(fresh)
    store.history.blobs.delete([run.name])
    with pytest.raises(Corrupt, match="no such file"):
        content(open_store())
