"""Background work of a query: the heartbeat that fires timers when no data comes, compaction, garbage collection."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from floodplain.runtime.store_upkeep import StoreUpkeep
from floodplain.spark.driver import Driver

NICENESS = 10
"""Of compaction: it runs in what time epochs leave."""


@dataclass(frozen=True)
class _Query:
    """What maintenance works for."""

    driver: Driver
    running: Callable[[], bool]
    end: Callable[[], None]
    upkeep: StoreUpkeep


class Maintenance:
    """Two threads, so that a long compaction does not hold up the heartbeat. They end when told to.

    It is the driver's listener. A heartbeat that fails ends the query: a timer's function failed. So does a lease that was lost:
    its driver was superseded.
    """

    def __init__(self) -> None:
        self._query: _Query | None = None
        self._stopped = threading.Event()
        self._untidy = threading.Event()
        self._heartbeat, self._tidying = (threading.Thread(target=work, daemon=True) for work in (self._beat, self._tidy))
        self.ended_by: Exception | None = None

    def attach(self, driver: Driver, running: Callable[[], bool], end: Callable[[], None]) -> None:
        """Begin to work for a query: ``driver`` has this object as its listener, and ``end`` has Spark end the query."""
        upkeep = StoreUpkeep(driver.store, driver.epochs.publisher.delete_discarded, driver.prefetch)
        self._query = _Query(driver, running, end, upkeep)

    @property
    def _attached(self) -> "_Query":
        if self._query is None:
            raise AssertionError("attach comes first")
        return self._query

    def is_running(self) -> bool:
        return self._query is None or self._query.running()

    def concern(self) -> str | None:
        return None if self._query is None else self._query.upkeep.concern

    def epoch_done(self) -> None:
        self._untidy.set()

    def lease_lost(self, error: Exception) -> None:
        if self._query is not None:
            self.fail(error)

    @property
    def failure(self) -> Exception | None:
        """What ended the query, or what keeps compaction or garbage collection from their work now. These try again."""
        return self.ended_by or self._attached.upkeep.failure

    def start(self) -> None:
        self._heartbeat.start()
        self._tidying.start()

    def stop_heartbeat(self) -> None:
        """No timer fires any more; compaction is told to come to its end."""
        self._stopped.set()
        self._untidy.set()
        self._heartbeat.join()

    def stop(self) -> None:
        self.stop_heartbeat()
        self._tidying.join()

    def _beat(self) -> None:
        query = self._attached
        pause_s = min(query.driver.store.history.settings.lease_ms / 3000, 1.0)
        while not self._stopped.wait(pause_s) and query.running():
            try:
                query.driver.tick()
            except Exception as error:
                self.fail(error)
                return

    def fail(self, error: Exception) -> None:
        """End the query at once, its running epoch with it, and say why."""
        self.ended_by = self.ended_by or error
        self._attached.driver.give_up()
        self.end()

    def end(self) -> None:
        """Have Spark end the query."""
        self._attached.end()

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
            self._attached.upkeep.round(self._stopped.is_set)


def _give_way() -> None:
    """Lower the priority of this thread, where threads have one of their own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
