"""What keeps a state small while a query runs: compaction, and the collection of garbage. Each goes on after it has failed."""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from floodplain.errors import Conflict, NoSpace, Unavailable
from floodplain.store.compaction.budget import Budget
from floodplain.store.compaction.compactor import Announce, announce_to_nobody
from floodplain.store.store import Store
from floodplain.tier_use import UPKEEP, tallied
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.records.manifest import Manifest

COLLECT_EVERY = 128
"""Log positions between two garbage collections. Renewals of the lease count: an idle query has nothing but these."""
COLLECT_EPOCHS = 100
COLLECT_S = 600.0
"""Epochs, or seconds, between two garbage collections: each lists the store."""
UNMAPPED_AFTER = 2
"""Epochs after which no task has a run mapped any more that was replaced: each unmaps what its own epoch does not name."""
SPREAD_OVER = 4
"""Epochs in which what was replaced leaves: as many as mostly lie between two compactions, or fewer."""
LAST_BYTES = 64 << 20
"""What the end of a query may wait for: many short queries never leave their runs to the next one."""
MOST_LEVELS = 32
"""Of runs over one key group, before it is a concern that nobody compacts. A compaction keeps about a third of that."""
MOST_EPOCHS = 64
MOST_PAUSE_S = 600.0
"""What failed is tried again after so many epochs or so much time at the latest."""
PASSING = (Unavailable, Conflict, NoSpace)
"""What keeps compaction and garbage collection from their work for a while: a warning, and no failure."""

_log = logging.getLogger(__name__)


class Duty:
    """Work that may fail. It is then put off, for twice as many epochs or twice as long each time, whichever is over first."""

    def __init__(self, what: str, store: Store) -> None:
        self._what = what
        self._store = store
        self._tries, self._again_at, self._again_s = 0, 0, 0.0
        self.concern: str | None = None
        """What is wrong, as long as it is."""
        self.failure: Exception | None = None
        """What made it fail first, if that does not pass by itself; None once it is done again."""

    def do(self, work: Callable[[], object]) -> None:
        """Do it, unless it is put off. Raises nothing."""
        if self._tries and self._store.head.epoch < self._again_at and self._now_s() < self._again_s:
            return
        try:
            work()
        except Exception as error:
            self._put_off(error)
        else:
            self._tries, self.concern, self.failure = 0, None, None

    def _put_off(self, error: Exception) -> None:
        self._tries += 1
        pause_s = min(float(1 << min(self._tries, 16)), MOST_PAUSE_S)
        self._again_at = self._store.head.epoch + min(1 << min(self._tries, 16), MOST_EPOCHS)
        self._again_s = self._now_s() + pause_s
        if not isinstance(error, PASSING):
            self.failure = self.failure or error
        again = f"the next at epoch {self._again_at} or in {pause_s:.0f} s"
        tries = f"{self._what} could not be done, {self._tries} tries so far, {again}"
        self.concern = f"{tries}: {error}"
        _log.warning("%s: %s", tries, error)

    def _now_s(self) -> float:
        return self._store.history.clock.monotonic_s()


class StoreUpkeep:
    """Compaction and garbage collection of one running query, a round at a time. Used by one thread."""

    def __init__(self, store: Store, delete_discarded: Callable[[], object], announce: Announce = announce_to_nobody) -> None:
        """``delete_discarded`` deletes what epochs left behind. ``announce``: told of the runs of a compaction before they are
        committed, so that no epoch waits for them."""
        self._store = store
        self._delete_discarded = delete_discarded
        self._announce = announce
        self._eviction_queue = EvictionQueue(store)
        self._compaction, self._collection = Duty("compaction", store), Duty("garbage collection", store)
        self._deletion = Duty("deletion of staged files", store)
        self._compacted = -1
        # Of queries before this one, too: one that ends after a few epochs leaves its garbage to the next.
        self._collected = store.head.horizon
        self._next_collection = (0, 0.0)
        """The epoch, or the time, that it waits for."""

    @property
    def concern(self) -> str | None:
        """What is wrong, as long as it is: a warning for people."""
        return "; ".join(filter(None, (*(duty.concern for duty in self._duties), self._backlog()))) or None

    @property
    def _duties(self) -> tuple[Duty, ...]:
        return self._compaction, self._collection, self._deletion

    def _backlog(self) -> str | None:
        """That nobody compacts: the query was told that another process does."""
        if self._store.history.settings.compaction.in_query:
            return None
        levels = {table: len({run.high for run in runs}) for table, runs in self._store.head.runs.items()}
        most = max(levels, key=lambda table: levels[table], default="")
        if levels.get(most, 0) <= MOST_LEVELS:
            return None
        return (
            f"table {most} has {levels[most]} levels of runs, and this query does not compact: run floodplain compact --watch, "
            "or leave CompactionSettings(in_query=…) on"
        )

    @property
    def failure(self) -> Exception | None:
        """What keeps it from its work, if that does not pass by itself."""
        return next(filter(None, (duty.failure for duty in self._duties)), None)

    def round(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """What is due now. Raises nothing. Once ``stopped`` says so, no further step of a compaction begins but small ones."""
        with tallied(self._store.counters.tally, UPKEEP):
            self._round(stopped)

    def _round(self, stopped: Callable[[], bool]) -> None:
        self._deletion.do(self._delete_discarded)
        maybe_checkpoint(self._store.history)
        self._compaction.do(lambda: self._compact(stopped))
        if self._is_collection_due():
            self._collection.do(self._collect)

    def _is_collection_due(self) -> bool:
        head, (epoch, at_s) = self._store.head, self._next_collection
        waited = head.epoch >= epoch or self._store.history.clock.monotonic_s() >= at_s
        return waited and head.position - self._collected >= COLLECT_EVERY

    def _compact(self, stopped: Callable[[], bool]) -> None:
        self._eviction_queue.evict()
        epoch, history = self._store.head.epoch, self._store.history
        if epoch == self._compacted or not history.settings.compaction.in_query:
            return
        done_bytes, budget = 0, Budget(history.settings.compaction.bytes_per_s, history.clock, stopped)
        announce = announce_to_nobody if stopped() else self._announce
        for step in self._store.compact(refresh=False, budget=budget, announce=announce):
            done_bytes += step.bytes_before
            if stopped() and done_bytes >= LAST_BYTES:
                return
        self._compacted = epoch

    def _collect(self) -> None:
        self._store.collect_garbage()
        head = self._store.head
        self._collected = head.position
        self._next_collection = (head.epoch + COLLECT_EPOCHS, self._store.history.clock.monotonic_s() + COLLECT_S)


class EvictionQueue:
    """Evicts objects whose runs were all replaced from the caches, the page cache included. Only reads of past epochs need them.

    So they do not displace what epochs read, and new runs reuse their memory. They are evicted a few at a time, about as fast as
    new ones come: a machine may reclaim much memory that is freed at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._named = _objects(store.head)
        self._queue: deque[_Eviction] = deque()
        self._few = 1

    def evict(self) -> None:
        """To be called after each epoch, before compaction: an object that is made and replaced between two calls is missed.
        Objects are evicted once no task of a later epoch can have them mapped."""
        head = self._store.head
        named, before = _objects(head), self._named
        if gone := sorted(before - named):
            self._store.unmap()
            self._queue.extend(_Eviction(head.epoch + UNMAPPED_AFTER, name) for name in gone)
            self._few = max(-(-len(self._queue) // SPREAD_OVER), 1)
        self._named = named
        due = [self._queue.popleft() for eviction in list(self._queue)[: self._few] if eviction.after <= head.epoch]
        self._store.history.blobs.forget([eviction.name for eviction in due])


class _Eviction(NamedTuple):
    after: int
    """The epoch."""
    name: str


def _objects(manifest: Manifest) -> set[str]:
    return {run.object for runs in manifest.runs.values() for run in runs}
