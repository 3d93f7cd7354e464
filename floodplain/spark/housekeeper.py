"""Beside the epochs: the heartbeat that fires timers when no data comes, compaction, garbage collection."""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from floodplain.errors import Conflict, Unavailable
from floodplain.spark.driver import Driver
from floodplain.store.store import Store
from floodplain.versions.manifest import Manifest

COLLECT_EVERY = 64
"""Epochs between two garbage collections."""
NICENESS = 10
"""Of compaction: it runs in what time epochs leave."""
UNMAPPED_AFTER = 2
"""Epochs after which no task has a run mapped any more that was replaced: each unmaps what its own epoch does not name."""
SPREAD_OVER = 4
"""Epochs in which what was replaced leaves: as many as mostly lie between two compactions, or fewer."""
PASSING = (Unavailable, Conflict)
"""What keeps compaction and garbage collection from their work for a while, and not for good."""

_log = logging.getLogger(__name__)


class Housekeeper:
    """Two threads, so that a long compaction does not hold up the heartbeat. They end with the query, or when told to.

    A heartbeat that fails ends the query: a timer's function failed. So does a lease that was lost: its driver was superseded.
    """

    def __init__(self, driver: Driver, running: Callable[[], bool], end: Callable[[], None]) -> None:
        self._driver = driver
        self._running = running
        self.end = end
        """Has Spark end the query."""
        self._stopped = threading.Event()
        self._untidy = threading.Event()
        driver.after_epoch = self._untidy.set
        driver.running = running
        driver.on_lost = self.fail
        self._pause_s = driver.store.history.settings.lease_ms / 3000
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._tidy)]
        self._put_off, self._again_at = 0, 0
        self.failure: Exception | None = None
        self.ended_by: Exception | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._untidy.set()
        for thread in self._threads:
            thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(min(self._pause_s, 1.0)) and self._running():
            try:
                self._driver.tick()
            except Exception as error:
                self.fail(error)
                return

    def fail(self, error: Exception) -> None:
        """End the query at once, its running epoch with it, and say why."""
        self.failure = self.ended_by = self.ended_by or error
        self._driver.give_up()
        self.end()

    def _tidy(self) -> None:
        _give_way()
        store, collected = self._driver.store, self._driver.store.head.epoch
        leavers = Leavers(store)
        while self._running():
            self._untidy.wait(1.0)
            self._untidy.clear()
            if self._stopped.is_set():
                return
            if store.head.epoch < self._again_at:
                continue
            try:
                leavers.let_go()
                for _ in store.compact():
                    if self._stopped.is_set():
                        return
                if store.head.epoch - collected >= COLLECT_EVERY:
                    store.collect_garbage()
                    self._driver.epochs.sweep_staged()
                    collected = store.head.epoch
                self._work_again()
            except PASSING as error:
                self._put_it_off(error)
            except Exception as error:
                # Whatever it is, it must be seen: a state that is never compacted only grows.
                self.failure = self.failure or error
                return

    def _put_it_off(self, error: Exception) -> None:
        """Try again some epochs later, twice as many each time, and say so meanwhile."""
        self._put_off += 1
        self._again_at = self._driver.store.head.epoch + min(1 << self._put_off, COLLECT_EVERY)
        tries = f"compaction could not be done, {self._put_off} tries so far, the next at epoch {self._again_at}"
        self._driver.epochs.concern = f"{tries}: {error}"
        _log.warning("%s: %s", tries, error)

    def _work_again(self) -> None:
        self._put_off, self._driver.epochs.concern = 0, None


class Leavers:
    """Objects whose runs were all replaced. Only who reads past epochs asks for them: they leave the caches, of which the page
    cache is one, so that they neither push out what epochs read nor have every new run find fresh memory.

    They go a few at a time, about as fast as new ones come: a machine may take back much memory that is free at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._named = _objects(store.head)
        self._leaving: deque[_Leaver] = deque()
        self._few = 1

    def let_go(self) -> None:
        """To be called after each epoch, before compaction: an object that comes and goes between two calls is never seen to go.
        Objects leave once no task of a later epoch can have them mapped."""
        head = self._store.head
        named, before = _objects(head), self._named
        if gone := sorted(before - named):
            self._store.readers.keep_only(run for runs in head.runs.values() for run in runs)
            self._leaving.extend(_Leaver(head.epoch + UNMAPPED_AFTER, name) for name in gone)
            self._few = max(-(-len(self._leaving) // SPREAD_OVER), 1)
        self._named = named
        few = [self._leaving.popleft() for leaver in list(self._leaving)[: self._few] if leaver.after <= head.epoch]
        self._store.history.blobs.forget([leaver.name for leaver in few])


class _Leaver(NamedTuple):
    after: int
    """The epoch."""
    name: str


def _objects(manifest: Manifest) -> set[str]:
    return {run.object for runs in manifest.runs.values() for run in runs}


def _give_way() -> None:
    """Lower the priority of this thread, where threads have one of their own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
