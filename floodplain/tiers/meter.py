"""Counts what a tier does, under the tier's label."""

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


class Meter:
    def __init__(self, counters: Counters, tier: str) -> None:
        self._counters = counters
        self._tier = tier

    def count_requests(self, requests: int = 1) -> None:
        """Counted before the answer is known: a request that fails was made too."""
        self._add(TIER_REQUESTS, requests)

    def read(self, size_bytes: int) -> None:
        self._add(TIER_READ_BYTES, size_bytes)

    def wrote(self, size_bytes: int) -> None:
        self._add(TIER_WRITTEN_BYTES, size_bytes)

    def hit(self, count: int = 1) -> None:
        self._add(TIER_HITS, count)

    def missed(self, count: int = 1) -> None:
        self._add(TIER_MISSES, count)

    def retried(self) -> None:
        self._add(TIER_RETRIES, 1)

    def evicted(self, size_bytes: int) -> None:
        self._add(TIER_EVICTED_BYTES, size_bytes)

    def _add(self, name: str, by: int) -> None:
        if by:
            self._counters.add(name, self._tier, by)
