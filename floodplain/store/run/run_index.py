"""Which runs of a table overlap given key groups: an index, because each task asks for its own few of thousands."""

from collections.abc import Sequence

import numpy as np

from floodplain.versions.records.edit import GroupRanges, RunRef

_BUCKETS = 1024
"""At most; a bucket is some neighbouring key groups."""


class RunIndex:
    """The runs of one table of one manifest by key group. Immutable, so threads may share it."""

    def __init__(self, runs: Sequence[RunRef], key_groups: int) -> None:
        self.runs = runs
        self._key_groups = key_groups
        self._width = max(key_groups // _BUCKETS, 1)
        ranges = [(number, *bounds) for number, run in enumerate(runs) for bounds in run.groups]
        # Whoever opens a run checks its key groups, so one with impossible ones is handed out whatever is asked for.
        sound = [_possible(low, high, key_groups) for _, low, high in ranges]
        self._always = [number for (number, _, _), good in zip(ranges, sound, strict=True) if not good]
        kept = np.array([each for each, good in zip(ranges, sound, strict=True) if good], np.int64).reshape(-1, 3)
        self._run, self._low, self._high = kept.T
        first, last = self._low // self._width, (self._high - 1) // self._width
        counts = last - first + 1
        entries = np.repeat(np.arange(len(kept)), counts)
        bucket = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        self._entries = entries[np.argsort(bucket, kind="stable")]
        self._starts = np.searchsorted(np.sort(bucket), np.arange(key_groups // self._width + 1))

    def over(self, wanted: np.ndarray) -> list[RunRef]:
        """The runs that overlap ``wanted``, a mask of key groups, in the order they were given."""
        near = np.flatnonzero(wanted.reshape(-1, self._width).any(axis=1)).tolist()
        parts = [self._entries[self._starts[bucket] : self._starts[bucket + 1]] for bucket in near]
        ranges = np.concatenate(parts) if parts else self._entries[:0]
        before = np.append(0, np.cumsum(wanted))
        hit = ranges[before[self._high[ranges]] > before[self._low[ranges]]]
        return [self.runs[number] for number in np.unique(np.append(self._run[hit], self._always).astype(np.int64)).tolist()]

    def over_ranges(self, groups: GroupRanges) -> list[RunRef]:
        wanted = np.zeros(self._key_groups, bool)
        for low, high in groups:
            wanted[low:high] = True
        return self.over(wanted)


def _possible(low: int, high: int, key_groups: int) -> bool:
    return 0 <= low < high <= key_groups
