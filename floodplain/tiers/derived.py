"""A cache of what was made of blobs, such as decoded runs: bytes that are used where they are mapped."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from floodplain.clock import Clock
from floodplain.tiers.cache.files import TOUCH_NS, CacheFiles
from floodplain.tiers.meter import Meter


class DerivedCache:
    """Parts of things that have a key of their own, next to the blobs of the same cache and within the same bound.

    Requires: one key and part always stands for the same bytes, and the caller can make them anew. ``lower``: that of the cache
    below, which keeps them as well.
    """

    def __init__(self, files: CacheFiles, meter: Meter, clock: Clock, lower: "DerivedCache | None" = None) -> None:
        self._files, self._meter, self._clock, self._lower = files, meter, clock, lower
        self._reviewed_s = clock.monotonic_s()

    @property
    def limit_bytes(self) -> int:
        """What it can hold at most, with all that others have in it."""
        return max(self._files.limit_bytes, self._lower.limit_bytes if self._lower else 0)

    def find(self, key: str, part: str, *, copied: bool = False) -> pa.Buffer | None:
        """The part, verified at the first touch of this process; None if it is not here. ``copied``: read into memory of this
        process and verified there, whatever was verified before."""
        self._meter.count_requests()
        here = self._files.find(_name(key), part, copied=copied)
        if here is not None:
            self._meter.hit()
            self._meter.read(here.size)
            return here
        below = self._lower.find(key, part, copied=copied) if self._lower else None
        if below is not None and not copied:
            self._write([(_name(key), part, below)])
        return below

    def missed(self, count: int) -> None:
        """So many parts were looked for and are nowhere here."""
        self._meter.missed(count)

    def has(self, key: str, part: str) -> bool:
        """Whether it is here, good or not."""
        return self._files.has(_name(key), part) or (self._lower is not None and self._lower.has(key, part))

    def keep(self, key: str, parts: Mapping[str, pa.Buffer]) -> None:
        """Keep what there is room for. Never fails."""
        if self._lower:
            self._lower.keep(key, parts)
        self._write([(_name(key), part, data) for part, data in parts.items()])

    def drop(self, parts: Iterable[tuple[str, str]] = (), keys: Iterable[str] = ()) -> None:
        """Delete these parts by key, and all parts of these keys; the latter costs a look through the directory. What is mapped
        stays readable."""
        pairs, whole = list(parts), list(keys)
        if self._lower:
            self._lower.drop(pairs, whole)
        self._files.drop([(_name(key), part) for key, part in pairs], map(_name, whole))

    def review_due(self) -> bool:
        """Whether holders of mappings should call ``still_here`` for each now: every ten seconds."""
        now_s = self._clock.monotonic_s()
        due = now_s - self._reviewed_s >= TOUCH_NS / 1e9
        if due:
            self._reviewed_s = now_s
        return due

    def still_here(self, key: str, part: str, *, used: bool) -> bool:
        """Whether what is mapped of it is still in the cache. ``used``: since the last call; so it is not the next to go."""
        if used:
            return self._files.use(_name(key), part)
        return self._files.has(_name(key), part)

    def _write(self, pieces: list[tuple[str, str, pa.Buffer]]) -> None:
        written_bytes, evicted_bytes = self._files.keep(pieces)
        self._meter.wrote(written_bytes)
        self._meter.evicted(evicted_bytes)


def _name(key: str) -> str:
    """No blob has such a name."""
    return f"derived:{key}"
