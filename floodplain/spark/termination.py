"""The end of a streaming query, whoever ends it and whether or not anybody waits for it."""

import logging
import threading
from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from floodplain.spark.driver import Driver
from floodplain.spark.maintenance import Maintenance

LOOK_S = 1
"""Between two looks whether the session was stopped. The end of the query itself is seen at once."""

_log = logging.getLogger(__name__)


class Termination:
    """A thread that waits for Spark to end the query, fires the last timers where the query ended by itself, and lets go of the
    state. So the lease is free at once: after a stop, a failure, a stop by Spark's own means, and when the session is gone.
    """

    def __init__(self, query: StreamingQuery, driver: Driver, maintenance: Maintenance, *, last_timers: bool) -> None:
        """``last_timers``: the query ends by itself, and timers that are due then fire."""
        self._query = query
        self._driver = driver
        self._maintenance = maintenance
        self._last_timers = last_timers
        self._lock = threading.Lock()
        self._after: list[Callable[[], object]] = []
        self._released, self._over = threading.Event(), threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="floodplain-ending", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def then(self, call: Callable[[], object]) -> None:
        """Call this at the very end; now, if that was."""
        with self._lock:
            if not self.over:
                self._after.append(call)
                return
        call()

    @property
    def over(self) -> bool:
        """Whether the query has ended, and the state is let go."""
        return self._over.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it is over, or so long; whether it is. Raises ``BadInput`` within an epoch of the query, which would wait for
        itself."""
        if seconds is None:
            self._driver.check_outside()
        return self._over.wait(seconds)

    def wait_released(self) -> None:
        """Until the lease on the state is free, which is before compaction has come to its end. Raises as ``wait``."""
        self._driver.check_outside()
        self._released.wait()

    @property
    def failure(self) -> Exception | None:
        """What ended the query, once that is known; None if it was stopped or has ended by itself."""
        return self._maintenance.ended_by or self._failure

    def _run(self) -> None:
        try:
            self._failure = self._end_of_spark()
            if self._last_timers and self.failure is None:
                while self._driver.tick():
                    pass
        except Exception as error:
            self._failure = error
        finally:
            # Nobody who waits for the state need wait for the last compaction, which needs no lease.
            self._close(self._maintenance.stop_heartbeat, self._driver.close)
            self._released.set()
            self._close(self._maintenance.stop)
            with self._lock:
                self._close(*self._after)
                self._over.set()

    def _end_of_spark(self) -> Exception | None:
        try:
            while not self._query.awaitTermination(LOOK_S):
                if self._query._jsq.sparkSession().sparkContext().isStopped():
                    # Spark itself would look for new data for ever, and can run nothing any more.
                    self._maintenance.end()
                    return None
        except Exception as error:
            return self._driver.failure or error
        return None

    @staticmethod
    def _close(*steps: Callable[[], object]) -> None:
        """Each may fail, as where the place of the state cannot be reached: then the lease runs out."""
        for step in steps:
            try:
                step()
            except Exception as error:
                _log.warning("at the end of a query: %s: %s", type(error).__name__, error)
