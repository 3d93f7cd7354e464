"""The files of a cache: found, verified, written and dropped. Nothing here ever makes a read fail."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from floodplain.clock import Clock
from floodplain.errors import UnsafeStore
from floodplain.settings import CacheSettings
from floodplain.tiers.cache import sketch
from floodplain.tiers.cache.entry import key_of, stem_of, trailer, unsealed
from floodplain.tiers.cache.ledger import Ledger, Reservation
from floodplain.tiers.cache.place import root_of
from floodplain.tiers.cache.policy import policy_of
from floodplain.tiers.files.errors import as_ours
from floodplain.tiers.files.modes import AS_UMASK, Modes

TOUCH_NS = 10_000_000_000
"""How stale a file's time of last use may get. Touching more often would have other processes verify it more often."""
_VERIFIED_MOST = 1 << 16

Mark = tuple[int, int, int]
"""(inode, change time, size): the same for a file that nobody wrote to or replaced."""


class CacheFiles:
    """Parts of named things, each in a file that is written whole, never changed, and mapped or read into memory.

    ``space`` tells these names from those of others that share the directory. Several processes share it; the bound is over
    all of them and includes files being written.
    """

    def __init__(
        self,
        settings: CacheSettings,
        space: str,
        *,
        tier: str,
        mapped: bool = True,
        modes: Modes = AS_UMASK,
        clock: Clock,
    ) -> None:
        self.mapped = mapped
        self._space = space
        self._clock = clock
        self._verified: dict[str, Mark] = {}
        with as_ours(f"opening the {tier} cache at {settings.directory}"):
            root = root_of(settings, os.environ, modes)
            root.parent.mkdir(parents=True, exist_ok=True)
            modes.make_folder(root)
            _check_room(root, settings.size_bytes, tier)
            policy = policy_of(settings.policy)
            overhead_bytes = 4 * os.statvfs(root).f_frsize
            self._sketch: sketch.Sketch | None = None
            if policy.counts:
                width = sketch.width_for(settings.size_bytes)
                self._sketch = sketch.Sketch(root / f"sketch-{width}", width, modes)
                overhead_bytes += sketch.file_bytes(width) + os.statvfs(root).f_frsize
            self.limit_bytes = settings.size_bytes - overhead_bytes
            self._ledger = Ledger(root, self.limit_bytes, policy, self._frequency, clock, modes)

    def find(self, name: str, part: str, *, count: bool = True, copied: bool = False) -> pa.Buffer | None:
        """Its bytes, verified at the first touch of this process. ``count``: the policy counts this use. ``copied``: read into
        memory of this process, where nobody else can change them, and verified there."""
        key = key_of(self._space, name, part)
        if count and self._sketch:
            self._sketch.add(key)
        path, mapped = self._ledger.path(key), self.mapped and not copied
        try:
            status = path.stat()
            verify = not mapped or self._verified.get(key) != _mark(status)
            data = unsealed(_content(path, mapped), self._space, name, part, verify=verify)
            if data is None:
                self._discard(key)
            else:
                self._note_use(key, status, good=True)
        except OSError:
            return None
        except pa.ArrowException:
            self._discard(key)
            return None
        return data

    def has(self, name: str, part: str) -> bool:
        """Whether there is a file for it, good or not."""
        return self._ledger.path(key_of(self._space, name, part)).exists()

    def use(self, name: str, part: str) -> bool:
        """Note that its mapping is used. False if the file is gone or another one, so that the mapping should be let go of: it
        holds on to disk space that no one counts any more."""
        key = key_of(self._space, name, part)
        known = self._verified.get(key)
        try:
            status = self._ledger.path(key).stat()
            if known is None or (known[0], known[2]) != (status.st_ino, status.st_size):
                return False
            self._note_use(key, status, good=known == _mark(status))
        except OSError:
            return False
        return True

    def keep(self, pieces: Sequence[tuple[str, str, pa.Buffer]]) -> tuple[int, int]:
        """Write what there is room for. Whatever goes wrong, the caller has its bytes already. How many bytes were written, and
        how many were evicted for them."""
        files = {key_of(self._space, name, part): (data, trailer(self._space, name, part, data)) for name, part, data in pieces}
        held: list[Reservation] = []
        written, evicted_bytes = list[Reservation](), 0
        with suppress(OSError):
            try:
                with self._ledger.locked() as book:
                    if self._sketch:
                        self._sketch.age()
                    for key, (data, tail) in files.items():
                        if room := book.reserve(key, data.size + len(tail)):
                            held.append(room)
                    evicted_bytes = book.evicted_bytes
                written = [room for room in held if self._write(room, *files[room.key])]
                if held:
                    with self._ledger.locked() as book:
                        for room in held:
                            (book.publish if room in written else book.release)(room)
            finally:
                for room in held:
                    os.close(room.fd)
        return sum(files[room.key][0].size for room in written), evicted_bytes

    def drop(self, parts: Iterable[tuple[str, str]] = (), names: Iterable[str] = ()) -> None:
        """Delete these parts, and all parts of these names. A read that is under way elsewhere may still keep a part of one.
        ``names`` costs a look through the directory."""
        keys = [key_of(self._space, name, part) for name, part in parts]
        stems = {stem_of(self._space, name) for name in names}
        if not keys and not stems:
            return
        with suppress(OSError), self._ledger.locked() as book:
            for key in keys:
                self._verified.pop(key, None)
                book.drop(key)
            if stems:
                book.drop_blobs(stems)

    def _note_use(self, key: str, status: os.stat_result, *, good: bool) -> None:
        """Now and then on disk. ``good``: it was verified as it is now."""
        path = self._ledger.path(key)
        now_ns = self._clock.now_ms() * 1_000_000
        if now_ns - status.st_mtime_ns >= TOUCH_NS:
            os.utime(path, ns=(now_ns, now_ns))
            status = path.stat()
        if good:
            if len(self._verified) >= _VERIFIED_MOST:
                self._verified.clear()
            self._verified[key] = _mark(status)

    def _discard(self, key: str) -> None:
        self._verified.pop(key, None)
        with suppress(OSError), self._ledger.locked() as book:
            book.drop(key)

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
        return True

    def _frequency(self, key: str) -> int:
        return self._sketch.estimate(key) if self._sketch else 0


def _content(path: Path, mapped: bool) -> pa.Buffer:
    if not mapped:
        return pa.py_buffer(path.read_bytes())
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _check_room(root: Path, size_bytes: int, tier: str) -> None:
    room = os.statvfs(root)
    if room.f_frsize * room.f_blocks < size_bytes:
        raise UnsafeStore(
            f"the {tier} cache at {root} is to hold {size_bytes:,} bytes, and its file system has "
            f"{room.f_frsize * room.f_blocks:,}; ask for less, or choose another directory"
        )


def _mark(status: os.stat_result) -> Mark:
    return status.st_ino, status.st_ctime_ns, status.st_size
