"""What a compaction writes reaches the caches of those that will read it before it is committed, so no epoch waits for it."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from floodplain.clock import Clock
from floodplain.runtime.task_store import opened
from floodplain.store.compaction.budget import Budget
from floodplain.store.run.cached_run import Read, admit, stored
from floodplain.tiers.blobs import Range
from floodplain.workers.answers import WorkerLost
from floodplain.workers.kit import WorkerKit
from floodplain.workers.messages import Prefetch, Prefetched

LOOK_S = 0.25
WAIT_S = 60.0
"""How long a compaction waits for this before it is committed anyway. Then epochs fetch what they need."""

_log = logging.getLogger(__name__)


class Prefetcher:
    """The worker's side: fetches in a thread of its own."""

    def __init__(self, kit: WorkerKit, clock: Clock, answer: Callable[[Prefetched], None]) -> None:
        self._kit, self._clock, self._answer = kit, clock, answer
        self._queue: queue.SimpleQueue[Prefetch | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        threading.Thread(target=self._work, name="floodplain-prefetch", daemon=True).start()

    def take(self, order: Prefetch) -> None:
        self._queue.put(order)

    def close(self) -> None:
        self._closing.set()
        self._queue.put(None)

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            try:
                self._fetch(order)
            except Exception as error:
                # Epochs name it, if it is damage: they read the same.
                _log.warning("a run is not fetched before it is committed: %s", error)
            self._answer(Prefetched(order.id))

    def _fetch(self, order: Prefetch) -> None:
        blobs = opened(self._kit.location, self._kit.settings, self._kit.options, order.store).blobs
        budget = Budget(order.bytes_per_s, self._clock, self._closing.is_set)
        if blobs.derived is None:
            return
        for run in order.runs:
            if self._closing.is_set():
                return
            admit(run, order.store, blobs.derived, _bounded(stored(run, blobs), budget), order.groups, order.key_groups)


def _bounded(read: Read, budget: Budget) -> Read:
    def bounded(ranges: Sequence[Range]) -> list[pa.Buffer]:
        budget.spend(sum(length for _, length in ranges))
        return read(ranges)

    return bounded


class Prefetches:
    """The driver's side: one order at a time, and who has not answered it yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._number = 0
        self._owing: set[int] = set()
        self._closed = False

    def ask(self, orders: Callable[[int], Mapping[int, Prefetch]], tell: Callable[[int, Prefetch], None]) -> bool:
        """Tell each worker its order, and wait until all have answered, or are lost. Whether they have, in ``WAIT_S``.

        ``orders``: worker → order, for the number of this call. For one thread.
        """
        with self._changed:
            self._number += 1
            made = orders(self._number)
            self._owing = set(made)
        for worker, order in made.items():
            try:
                tell(worker, order)
            except WorkerLost:
                self.lose(worker)
        until_s = self._clock.monotonic_s() + WAIT_S
        with self._changed:
            while self._owing and not self._closed and self._clock.monotonic_s() < until_s:
                self._changed.wait(LOOK_S)
            done, self._owing = not self._owing, set()
        return done

    def take(self, worker: int, answer: Prefetched) -> None:
        with self._changed:
            if answer.id == self._number:
                self._owing.discard(worker)
                self._changed.notify_all()

    def lose(self, worker: int) -> None:
        with self._changed:
            self._owing.discard(worker)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is waited for any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
