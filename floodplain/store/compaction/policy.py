"""When to compact: a policy sees the manifest and proposes. Pure, so it can be tried on any manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from floodplain.versions.records.edit import GroupRanges, RunRef
from floodplain.versions.records.groups import intersect, size
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import PROCESSING_TIME


@dataclass(frozen=True, slots=True)
class Proposal:
    """Merge these runs for these key groups: whole levels, neighbours in recency."""

    table: str
    groups: GroupRanges
    runs: tuple[RunRef, ...]
    """Newest first."""
    size_bytes: int
    """About how much is read."""


@dataclass(frozen=True, slots=True)
class TieredPolicy:
    """Merges runs of like size, so that each row is rewritten about once per power of the fan-in.

    The key groups are cut into bands small enough that a step stays below ``step_bytes``; each band is judged by itself.
    """

    step_bytes: int = 256 << 20
    """Most a step reads. A smaller step finishes sooner and leaves more runs."""
    fan_in: int = 6
    """Runs of like size that make a merge worth it. Fewer: faster reads, more rewriting."""
    likeness: float = 1.2
    """A run joins a merge if it is at most this many times the size of all newer ones in it."""
    most_runs: int = 10
    """Beyond this many levels over a band the cheapest neighbours are merged, alike or not."""

    def propose(self, manifest: Manifest) -> list[Proposal]:
        """All that is worth doing now, the smallest first; no two touch the same runs in the same key groups."""
        proposals = [
            proposal
            for table in sorted(manifest.runs)
            for band, runs in _runs_by_band(manifest, table, self.step_bytes)
            if (proposal := self._for_band(table, band, runs)) is not None
        ]
        return sorted(proposals, key=lambda proposal: proposal.size_bytes)

    def _for_band(self, table: str, band: GroupRanges, runs: list[RunRef]) -> Proposal | None:
        band_levels = _levels(runs)
        sizes = [sum(_size_within(run, band) for run in level) for level in band_levels]
        span = self._alike(sizes) or self._too_many(sizes)
        if span is None:
            return None
        merged = tuple(run for level in band_levels[slice(*span)] for run in level)
        return Proposal(table, band, merged, sum(sizes[slice(*span)]))

    def _alike(self, sizes: list[int]) -> tuple[int, int] | None:
        for first in range(len(sizes)):
            total, end = sizes[first], first + 1
            while end < len(sizes) and sizes[end] <= self.likeness * total:
                total += sizes[end]
                end += 1
            if end - first >= self.fan_in:
                return first, end
        return None

    def _too_many(self, sizes: list[int]) -> tuple[int, int] | None:
        extra = len(sizes) - self.most_runs + 1
        if extra < 2:
            return None
        starts = range(len(sizes) - extra + 1)
        first = min(starts, key=lambda start: sum(sizes[start : start + extra]))
        return first, first + extra


def full(manifest: Manifest, step_bytes: int) -> list[Proposal]:
    """Everything into one run per band: deletes, expired rows and merges below are settled for good."""
    proposals = []
    for table in sorted(manifest.runs):
        for band, over in _runs_by_band(manifest, table, step_bytes):
            if len(over) > 1 or any(run.deletes or run.merges or _expired(run, manifest) for run in over):
                proposals.append(Proposal(table, band, tuple(over), sum(_size_within(run, band) for run in over)))
    return proposals


def levels(manifest: Manifest, table: str, band: GroupRanges) -> list[list[RunRef]]:
    """The runs over these key groups, newest first, those that end with the same epoch together.

    A compaction takes all runs of a level or none. They hold different key groups; merged with older runs, a part of them
    would give a run that ends with the same epoch as the rest and has key groups in common: which is newer could not be told.
    """
    return _levels([run for run in manifest.runs.get(table, ()) if intersect(run.groups, band)])


def _levels(runs: Sequence[RunRef]) -> list[list[RunRef]]:
    return [list(level) for _, level in groupby(runs, key=lambda run: run.high)]


def _runs_by_band(manifest: Manifest, table: str, step_bytes: int) -> list[tuple[GroupRanges, list[RunRef]]]:
    """Each band with the runs over it, newest first, in one pass over the runs."""
    parts = bands(manifest, table, step_bytes)
    width, over = manifest.key_groups // len(parts), [list[RunRef]() for _ in parts]
    for run in manifest.runs.get(table, ()):
        for number in {number for low, high in run.groups for number in range(low // width, (high - 1) // width + 1)}:
            over[number].append(run)
    return list(zip(parts, over, strict=True))


def _expired(run: RunRef, manifest: Manifest) -> bool:
    """Whether any of its rows has ended by now: a rewrite before that would change nothing."""
    schema = manifest.schema(run.table)
    clock = schema.ttl_clock if schema else PROCESSING_TIME
    return 0 < run.first_expiry_ms <= manifest.watermarks.get(clock, 0)


def bands(manifest: Manifest, table: str, step_bytes: int) -> list[GroupRanges]:
    """Equal ranges of key groups, a power of two of them, so that larger tables only ever split bands that were there."""
    total = sum(_size_within(run, run.groups) for run in manifest.runs.get(table, ()))
    count = 1
    while count < manifest.key_groups and total / count > step_bytes:
        count *= 2
    width = manifest.key_groups // count
    return [((start, start + width),) for start in range(0, manifest.key_groups, width)]


def _size_within(run: RunRef, groups: GroupRanges) -> int:
    """The run's bytes that fall into ``groups``, as if its rows were spread evenly over the key groups it was written with."""
    return run.length * size(intersect(run.groups, groups)) // max(run.written_groups, 1)
