"""Counters, and every metric name in one place."""

import threading
from collections import Counter

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

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, label: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name, label] += by

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
