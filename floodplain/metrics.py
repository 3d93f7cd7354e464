"""Counters, and every metric name in one place."""

import threading
from collections import Counter

from floodplain.clock import Clock, SystemClock
from floodplain.tier_use import UseTally, count_use

TIER_HITS = "tier_hits"
TIER_MISSES = "tier_misses"
TIER_REQUESTS = "tier_requests"
TIER_READ_BYTES = "tier_read_bytes"
TIER_WRITTEN_BYTES = "tier_written_bytes"
TIER_RETRIES = "tier_retries"
TIER_EVICTED_BYTES = "tier_evicted_bytes"
LOOKUPS = "lookups"
"""Multi-gets of a table, by its name."""
LOOKUP_ROWS = "lookup_rows"
"""Rows that multi-gets of a table returned."""


class Counters:
    """Adds up by (metric name, label). Safe from several threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        """``clock``: what waits are measured by."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.clock: Clock = clock or SystemClock()
        self.tally = UseTally()
        """What is asked for outside any ``tallied`` block."""

    def add(self, name: str, label: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name, label] += by

    def use(self, tier: str, what: str, by: int) -> None:
        """Count for whoever asks: ``what`` is a field of ``TierUse``."""
        count_use(self.tally, tier, what, by)

    def get(self, name: str, label: str) -> int:
        return self._counts[name, label]

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Label → metric name → count, in name order."""
        with self._lock:
            items = sorted(self._counts.items(), key=lambda item: (item[0][1], item[0][0]))
        by_label: dict[str, dict[str, int]] = {}
        for (name, label), count in items:
            by_label.setdefault(label, {})[name] = count
        return by_label
