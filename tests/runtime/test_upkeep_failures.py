"""What compaction replaced leaves the caches, and only that, and not before tasks can have let go of it."""

from collections.abc import Iterable

import pyarrow as pa

from floodplain.runtime.store_upkeep import SPREAD_OVER, UNMAPPED_AFTER, EvictionQueue
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store
from floodplain.tiers.memory import MemoryBlobs
from tests.store import forge

TABLE = value_table("t", {"k": pa.int64()}, {"v": pa.int64()})


class Forgetful(MemoryBlobs):
    """Remembers what it was told to forget."""

    forgotten: list[str]

    def forget(self, names: Iterable[str]) -> None:
        self.forgotten += names


def put(store: Store) -> None:
    forge.write(store, "t", ("put", {"k": range(100), "v": range(100)}))


def objects(store: Store) -> set[str]:
    return {run.object for run in store.head.runs["t"]}


def test_replaced_runs_leave_the_caches_some_epochs_later_and_not_all_at_once() -> None:
    blobs = Forgetful("memory://forge", forge.Counters())
    blobs.forgotten = []
    store = forge.with_table(TABLE, blobs)
    for _ in range(2 * SPREAD_OVER):
        put(store)
    queue, replaced = EvictionQueue(store), objects(store)
    list(store.compact(full=True))
    kept = objects(store)
    queue.evict()
    for _ in range(UNMAPPED_AFTER - 1):
        put(store)
        queue.evict()
        assert blobs.forgotten == []
    for epoch in range(1, SPREAD_OVER + 1):
        put(store)
        queue.evict()
        assert len(blobs.forgotten) == 2 * epoch
    assert set(blobs.forgotten) == replaced
    assert kept <= objects(store)
    put(store)
    queue.evict()
    assert len(blobs.forgotten) == len(replaced)
