"""A bounded cache on this machine's disk or tmpfs, in front of a slower tier."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from floodplain.clock import Clock
from floodplain.metrics import Counters
from floodplain.settings import CacheSettings
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable
from floodplain.tiers.cache.files import CacheFiles
from floodplain.tiers.derived import DerivedCache
from floodplain.tiers.files.modes import AS_UMASK, Modes
from floodplain.tiers.meter import Meter
from floodplain.tiers.paths import RUNS, checked_blob
from floodplain.tiers.ranges import EMPTY, checked_ranges

WHOLE = "whole"


def is_run(name: str) -> bool:
    return name.startswith(RUNS)


class CachedBlobs(Blobs):
    """Keeps what was read from ``lower``, whole blobs or ranges as they were asked for, up to ``settings.size_bytes``; and in
    ``derived`` what readers made of it, unless it may not be mapped.

    Only names that are ``cacheable`` are kept: those that are never written twice. All else goes to ``lower`` and
    nothing is remembered. Several processes share one directory; the bound is over all of them and includes files
    being written. An evicted file that someone still has mapped frees its room on disk when the last mapping goes.

    ``space`` tells this store from others that share the directory, where its URL alone does not. With ``mapped`` off files are
    read into memory, and verified each time.

    A cache never makes a read fail: a file that is missing, damaged or another's counts as a miss, and a full or
    broken disk as a cache that keeps nothing.
    """

    def __init__(
        self,
        lower: Blobs,
        settings: CacheSettings,
        *,
        tier: str = "disk",
        cacheable: Callable[[str], bool] = is_run,
        space: str | None = None,
        mapped: bool = True,
        modes: Modes = AS_UMASK,
        clock: Clock,
        counters: Counters,
    ) -> None:
        self.tier = tier
        self.url = lower.url
        self._lower = lower
        self._cacheable = cacheable
        self._mapped = mapped
        self._meter = Meter(counters, tier)
        self._files = CacheFiles(settings, space or lower.url, tier=tier, mapped=mapped, modes=modes, clock=clock)
        self.derived = DerivedCache(self._files, self._meter, clock, lower.derived) if mapped else None

    def create(self, name: str, data: Writable) -> None:
        self._lower.create(name, data)

    def put(self, name: str, data: Data) -> None:
        self._lower.put(name, data)
        self._drop([name])

    def get(self, name: str) -> pa.Buffer:
        if not self._cacheable(checked_blob(name)):
            return self._lower.get(name)
        self._meter.count_requests()
        kept = self._files.find(name, WHOLE)
        if kept is not None:
            self._meter.hit()
            self._meter.read(kept.size)
            return kept
        self._meter.missed()
        data = self._lower.get(name)
        self._keep([(name, WHOLE, data)])
        return data

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        if not self._cacheable(checked_blob(name)):
            return self._lower.get_ranges(name, ranges)
        wanted = {range_ for range_ in checked_ranges(name, ranges) if range_[1]}
        self._meter.count_requests()
        kept = self._find_ranges(name, wanted)
        missing = sorted(wanted - kept.keys())
        self._meter.hit(len(kept))
        self._meter.read(sum(data.size for data in kept.values()))
        self._meter.missed(len(missing))
        if missing:
            fetched = dict(zip(missing, self._lower.get_ranges(name, missing), strict=True))
            # A short one says that the blob is damaged below: remembering it would outlive the repair.
            self._keep([(name, _part(range_), data) for range_, data in fetched.items() if data.size == range_[1]])
            kept |= fetched
        return [kept.get(range_, EMPTY) for range_ in ranges]

    def fetch_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        return self._lower.fetch_ranges(name, ranges)

    def map(self, name: str) -> pa.Buffer | None:
        """The blob mapped if all of it is here, else what ``lower`` can map."""
        if self._mapped and self._cacheable(checked_blob(name)) and (kept := self._files.find(name, WHOLE)) is not None:
            self._meter.count_requests()
            self._meter.hit()
            return kept
        return self._lower.map(name)

    def at_hand(self, name: str, ranges: Sequence[Range]) -> list[bool]:
        lower = self._lower.at_hand(name, ranges)
        if not self._cacheable(checked_blob(name)) or all(lower):
            return lower
        if self._files.has(name, WHOLE):
            return [True] * len(ranges)
        return [below or self._files.has(name, _part(range_)) for below, range_ in zip(lower, ranges, strict=True)]

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        return self._lower.list(prefix, after)

    def top(self) -> Iterable[str]:
        return self._lower.top()

    def delete(self, names: Iterable[str]) -> None:
        held = [*names]
        self._lower.delete(held)
        self._drop(held)

    def size(self, name: str) -> int:
        return self._lower.size(name)

    def modified_ms(self, name: str) -> int | None:
        return self._lower.modified_ms(name)

    def sweep(self, clock: Clock, older_than_ms: int) -> int:
        return self._lower.sweep(clock, older_than_ms)

    def close(self) -> None:
        self._lower.close()

    def forget(self, names: Iterable[str]) -> None:
        held = [*names]
        self._lower.forget(held)
        self._drop(held)

    def _drop(self, names: Sequence[str]) -> None:
        self._files.drop(names=filter(self._cacheable, names))

    def _keep(self, pieces: Sequence[tuple[str, str, pa.Buffer]]) -> None:
        written_bytes, evicted_bytes = self._files.keep(pieces)
        self._meter.wrote(written_bytes)
        self._meter.evicted(evicted_bytes)

    def _find_ranges(self, name: str, wanted: Iterable[Range]) -> dict[Range, pa.Buffer]:
        whole = self._files.find(name, WHOLE, count=False)
        if whole is not None:
            return {(offset, length): whole[offset : offset + length] for offset, length in wanted}
        buffers = {range_: self._files.find(name, _part(range_)) for range_ in wanted}
        return {range_: data for range_, data in buffers.items() if data is not None}


def _part(range_: Range) -> str:
    return f"{range_[0]}-{range_[1]}"
