"""A bounded cache on this machine's disk or tmpfs, in front of a slower tier."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from floodplain.clock import Clock
from floodplain.errors import UnsafeStore
from floodplain.metrics import Counters
from floodplain.settings import CacheSettings
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable, whole
from floodplain.tiers.cache import sketch
from floodplain.tiers.cache.entry import key_of, stem_of, trailer, unsealed
from floodplain.tiers.cache.ledger import Ledger, Reservation
from floodplain.tiers.cache.policy import policy_of
from floodplain.tiers.files.errors import as_ours
from floodplain.tiers.files.modes import AS_UMASK, Modes
from floodplain.tiers.meter import Meter
from floodplain.tiers.paths import RUNS, checked_blob
from floodplain.tiers.ranges import EMPTY, checked_ranges

WHOLE = "whole"
TOUCH_NS = 10_000_000_000
"""How stale a file's time of last use may get. Touching more often would have other processes verify it more often."""
_VERIFIED_MOST = 1 << 16

Mark = tuple[int, int, int]
"""(inode, change time, size): the same for a file that nobody wrote to or replaced."""


def is_run(name: str) -> bool:
    return name.startswith(RUNS)


class CachedBlobs(Blobs):
    """Keeps what was read from ``lower``, whole blobs or ranges as they were asked for, up to ``settings.size_bytes``.

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
        keep_created: bool = False,
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
        self._keep_created = keep_created
        self._space = space or lower.url
        self._mapped = mapped
        self._clock = clock
        self._meter = Meter(counters, tier)
        self._verified: dict[str, Mark] = {}
        root = Path(settings.directory).expanduser()
        with as_ours(f"opening the {tier} cache at {root}"):
            root.parent.mkdir(parents=True, exist_ok=True)
            modes.make_folder(root)
            self._check_room(root, settings.size_bytes)
            policy = policy_of(settings.policy)
            overhead_bytes = 4 * os.statvfs(root).f_frsize
            self._sketch: sketch.Sketch | None = None
            if policy.counts:
                width = sketch.width_for(settings.size_bytes)
                self._sketch = sketch.Sketch(root / f"sketch-{width}", width, modes)
                overhead_bytes += sketch.file_bytes(width) + os.statvfs(root).f_frsize
            limit_bytes = settings.size_bytes - overhead_bytes
            self._ledger = Ledger(root, limit_bytes, policy, self._frequency, clock, modes)

    def create(self, name: str, data: Writable) -> None:
        self._lower.create(name, data)
        if self._keep_created and self._cacheable(name):
            self._keep([(name, WHOLE, whole(data))])

    def put(self, name: str, data: Data) -> None:
        self._lower.put(name, data)
        self._drop([name])

    def get(self, name: str) -> pa.Buffer:
        if not self._cacheable(checked_blob(name)):
            return self._lower.get(name)
        self._meter.count_requests()
        kept = self._find(name, WHOLE)
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

    def map(self, name: str) -> pa.Buffer | None:
        """The blob mapped if all of it is here, else what ``lower`` can map."""
        if self._mapped and self._cacheable(checked_blob(name)) and (kept := self._find(name, WHOLE)) is not None:
            self._meter.count_requests()
            self._meter.hit()
            return kept
        return self._lower.map(name)

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
        """A read that is under way elsewhere may still keep a part of one of them."""
        stems = {stem_of(self._space, name) for name in names if self._cacheable(name)}
        if stems:
            with suppress(OSError), self._ledger.locked() as book:
                book.drop_blobs(stems)

    def _find_ranges(self, name: str, wanted: Iterable[Range]) -> dict[Range, pa.Buffer]:
        whole = self._find(name, WHOLE, count=False)
        if whole is not None:
            return {(offset, length): whole[offset : offset + length] for offset, length in wanted}
        buffers = {range_: self._find(name, _part(range_)) for range_ in wanted}
        return {range_: data for range_, data in buffers.items() if data is not None}

    def _find(self, name: str, part: str, *, count: bool = True) -> pa.Buffer | None:
        key = key_of(self._space, name, part)
        if count and self._sketch:
            self._sketch.add(key)
        path = self._ledger.path(key)
        try:
            status = path.stat()
            verify = not self._mapped or self._verified.get(key) != _mark(status)
            data = unsealed(self._content(path), self._space, name, part, verify=verify)
            if data is None:
                self._discard(key)
            else:
                self._touch(key, status)
        except OSError:
            return None
        except pa.ArrowException:
            self._discard(key)
            return None
        return data

    def _content(self, path: Path) -> pa.Buffer:
        if not self._mapped:
            return pa.py_buffer(path.read_bytes())
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()

    def _touch(self, key: str, status: os.stat_result) -> None:
        """Remember that the file is good, and now and then that it was used."""
        path = self._ledger.path(key)
        now_ns = self._clock.now_ms() * 1_000_000
        if now_ns - status.st_mtime_ns >= TOUCH_NS:
            os.utime(path, ns=(now_ns, now_ns))
            status = path.stat()
        if len(self._verified) >= _VERIFIED_MOST:
            self._verified.clear()
        self._verified[key] = _mark(status)

    def _discard(self, key: str) -> None:
        self._verified.pop(key, None)
        with suppress(OSError), self._ledger.locked() as book:
            book.drop(key)

    def _keep(self, pieces: Sequence[tuple[str, str, pa.Buffer]]) -> None:
        """Write what there is room for. Whatever goes wrong, the caller has its bytes already."""
        files = {key_of(self._space, name, part): (data, trailer(self._space, name, part, data)) for name, part, data in pieces}
        held: list[Reservation] = []
        with suppress(OSError):
            try:
                with self._ledger.locked() as book:
                    if self._sketch:
                        self._sketch.age()
                    for key, (data, tail) in files.items():
                        if room := book.reserve(key, data.size + len(tail)):
                            held.append(room)
                    self._meter.evicted(book.evicted_bytes)
                written = [room for room in held if self._write(room, *files[room.key])]
                if held:
                    with self._ledger.locked() as book:
                        for room in held:
                            (book.publish if room in written else book.release)(room)
            finally:
                for room in held:
                    os.close(room.fd)

    def _write(self, room: Reservation, data: pa.Buffer, tail: bytes) -> bool:
        try:
            for view in (memoryview(data).cast("B"), memoryview(tail)):
                written = 0
                while written < len(view):
                    written += os.write(room.fd, view[written:])
            now_ns = self._clock.now_ms() * 1_000_000
            os.utime(room.fd, ns=(now_ns, now_ns))
        except OSError:
            return False
        self._meter.wrote(data.size)
        return True

    def _frequency(self, key: str) -> int:
        return self._sketch.estimate(key) if self._sketch else 0

    def _check_room(self, root: Path, size_bytes: int) -> None:
        room = os.statvfs(root)
        if room.f_frsize * room.f_blocks < size_bytes:
            raise UnsafeStore(
                f"the {self.tier} cache at {root} is to hold {size_bytes:,} bytes, and its file system has "
                f"{room.f_frsize * room.f_blocks:,}; ask for less, or choose another directory"
            )


def _part(range_: Range) -> str:
    return f"{range_[0]}-{range_[1]}"


def _mark(status: os.stat_result) -> Mark:
    return status.st_ino, status.st_ctime_ns, status.st_size
