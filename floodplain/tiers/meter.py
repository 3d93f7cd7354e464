"""Counts what a tier does, under the tier's label and for whoever asked."""

from collections.abc import Iterator
from contextlib import contextmanager

from floodplain.metrics import (
    TIER_EVICTED_BYTES,
    TIER_HITS,
    TIER_MISSES,
    TIER_READ_BYTES,
    TIER_REQUESTS,
    TIER_RETRIES,
    TIER_WRITTEN_BYTES,
    Counters,
)

PUT, GET, LIST, DELETE, HEAD = "puts", "gets", "lists", "deletes", "heads"
"""Kinds of requests."""


class Meter:
    def __init__(self, counters: Counters, tier: str) -> None:
        self._counters = counters
        self._tier = tier

    def count_requests(self, requests: int = 1, kind: str = GET) -> None:
        """Counted before the answer is known: a request that fails was made too."""
        self._add(TIER_REQUESTS, requests, kind)

    @contextmanager
    def asking(self, kind: str, requests: int = 1) -> Iterator[None]:
        """Counts requests of this kind, and how long the block waits for them."""
        self.count_requests(requests, kind)
        began_s = self._counters.clock.monotonic_s()
        try:
            yield
        finally:
            self.waited(self._counters.clock.monotonic_s() - began_s)

    def waited(self, seconds: float) -> None:
        self._counters.use(self._tier, "waited_us", int(seconds * 1e6))

    def read(self, size_bytes: int) -> None:
        self._add(TIER_READ_BYTES, size_bytes, "read_bytes")

    def wrote(self, size_bytes: int) -> None:
        self._add(TIER_WRITTEN_BYTES, size_bytes, "written_bytes")

    def hit(self, count: int = 1) -> None:
        self._add(TIER_HITS, count, "hits")

    def missed(self, count: int = 1) -> None:
        self._add(TIER_MISSES, count, "misses")

    def retried(self) -> None:
        self._add(TIER_RETRIES, 1, "retries")

    def evicted(self, size_bytes: int) -> None:
        self._add(TIER_EVICTED_BYTES, size_bytes, "evicted_bytes")

    def _add(self, name: str, by: int, what: str) -> None:
        if by:
            self._counters.add(name, self._tier, by)
            self._counters.use(self._tier, what, by)
