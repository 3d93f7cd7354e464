"""Beside the epochs: the heartbeat that fires timers when no data comes, compaction, garbage collection."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from floodplain.runtime.store_upkeep import StoreUpkeep
from floodplain.spark.driver import Driver

NICENESS = 10
"""Of compaction: it runs in what time epochs leave."""


class Maintenance:
    """Two threads, so that a long compaction does not hold up the heartbeat. They end when told to.

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
        self._upkeep = StoreUpkeep(driver.store, driver.epochs.publisher.sweep_staged)
        self.ended_by: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """What ended the query, or what keeps compaction or garbage collection from their work now. These try again."""
        return self.ended_by or self._upkeep.failure

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
        self.ended_by = self.ended_by or error
        self._driver.give_up()
        self.end()

    def _tidy(self) -> None:
        """Until the end, and once more then: a query that ends after an epoch or two is kept small as well."""
        _give_way()
        over = False
        while not over:
            self._untidy.wait(1.0)
            self._untidy.clear()
            over = self._stopped.is_set()
            self.tidy()

    def tidy(self) -> None:
        """A round of compaction and garbage collection, unless the query has failed. For the thread that does it, or before that
        starts."""
        if self.ended_by is None:
            self._upkeep.round(self._stopped.is_set)
            self._driver.epochs.concern = self._upkeep.concern


def _give_way() -> None:
    """Lower the priority of this thread, where threads have one of their own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
