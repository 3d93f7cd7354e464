"""Space accounting of one cache directory, shared by all processes of a machine under a file lock."""

import fcntl
import os
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from floodplain.clock import Clock
from floodplain.tiers.cache.policy import Entry, Policy
from floodplain.tiers.files.modes import AS_UMASK, Modes

NAME_BYTES = 256
"""Charged for each file's name in its directory."""
LOCK_WAIT_S = 2.0
LOCK_POLL_S = 0.001
HURRY_S = 30.0
"""For this long after a wait that failed, others do not wait at all: one stopped process must not slow every read."""
_USED = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room held for one file. The locked descriptor tells other processes that its writer lives."""

    key: str
    charge_bytes: int
    temp: Path
    fd: int


class Ledger:
    """Files named by key in ``entries/``; what they and those being written take never exceeds ``limit_bytes``.

    The sum stands in the lock file. Room is taken from it before a byte is written and given back after a file is
    gone, so a process killed at any point leaves it too high, never too low; each scan of the directory sets it right.
    """

    def __init__(
        self,
        root: Path,
        limit_bytes: int,
        policy: Policy,
        frequency: Callable[[str], int],
        clock: Clock,
        modes: Modes = AS_UMASK,
    ) -> None:
        self.root = root
        self.entries = root / "entries"
        self.temps = root / "tmp"
        self.limit_bytes = limit_bytes
        self.modes = modes
        self.policy = policy
        self.frequency = frequency
        self.queue: list[Entry] | None = None
        """Entries as last scanned, the first to go last. None: not scanned yet, and the sum is another process's word."""
        self._clock = clock
        self._hurry_until_s = 0.0
        self._block_bytes = os.statvfs(root).f_frsize

    def path(self, key: str) -> Path:
        return self.entries / key

    def charge(self, file_bytes: int) -> int:
        """What a file of this size takes on disk."""
        return -(-file_bytes // self._block_bytes) * self._block_bytes + NAME_BYTES

    @contextmanager
    def locked(self) -> Iterator["Book"]:
        """Alone among threads and processes. The lock belongs to an open file, so each holder opens its own.

        Raises ``BlockingIOError`` if a holder keeps it too long: a process that is stopped must not stop the others.
        """
        while True:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            self.modes.make_folder(self.root)
            self.modes.make_folder(self.entries)
            self.modes.make_folder(self.temps)
            fd = self.modes.open(self.root / "lock", os.O_RDWR)
            try:
                self._wait_for(fd)
                try:
                    if self._is_lock(fd):
                        yield Book(self, fd)
                        return
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked meanwhile has a copy, which would keep it locked
            finally:
                os.close(fd)

    def _wait_for(self, fd: int) -> None:
        now_s = self._clock.monotonic_s()
        give_up_s = now_s if now_s < self._hurry_until_s else now_s + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._clock.monotonic_s() >= give_up_s:
                    self._hurry_until_s = now_s + HURRY_S
                    raise
            self._clock.sleep_s(LOCK_POLL_S)

    def _is_lock(self, fd: int) -> bool:
        """Whether the file locked is still the one that the next process would lock."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(fd), (self.root / "lock").stat())
        return False


class Book:
    """The open ledger. Its holder has the lock."""

    def __init__(self, ledger: Ledger, fd: int) -> None:
        self._ledger = ledger
        self._fd = fd
        self.evicted_bytes = 0

    def reserve(self, key: str, file_bytes: int) -> Reservation | None:
        """Room for ``key``, evicting what the policy proposes; None if it is there, or on its way, or not worth it."""
        charge = self._ledger.charge(file_bytes)
        temp = self._ledger.temps / f"{key}-{charge}"
        there = self._ledger.path(key).exists() or self._held_bytes(temp)
        if there or charge > self._ledger.limit_bytes or not self._make_room(key, charge):
            return None
        used = self._used()
        fd = self._ledger.modes.open(temp, os.O_WRONLY | os.O_EXCL)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._set_used(used + charge)
        return Reservation(key, charge, temp, fd)

    def publish(self, reservation: Reservation) -> None:
        """Give the written file its name."""
        with suppress(FileNotFoundError):
            reservation.temp.rename(self._ledger.path(reservation.key))

    def release(self, reservation: Reservation) -> None:
        """Give the room back. If someone took the file, the next scan does: a new sum may not have counted it."""
        used = self._used()
        with suppress(FileNotFoundError):
            reservation.temp.unlink()
            self._set_used(used - reservation.charge_bytes)

    def drop(self, key: str) -> None:
        self._unlink(key)

    def drop_blobs(self, stems: Collection[str]) -> None:
        """Drop all parts of the blobs with these stems."""
        with os.scandir(self._ledger.entries) as entries:
            keys = [entry.name for entry in entries if entry.name.partition(".")[0] in stems]
        for key in keys:
            self._unlink(key)

    def _make_room(self, key: str, charge: int) -> bool:
        for scan in (self._ledger.queue is None, True):
            if scan:
                self._scan()
            over_bytes = self._used() + charge - self._ledger.limit_bytes
            victims = self._victims(over_bytes)
            if victims is None:
                continue
            if victims and not self._ledger.policy.admits(self._ledger.frequency(key), victims):
                return False
            self.evicted_bytes += sum(self._unlink(victim.key) for victim in victims)
            return True
        return False

    def _victims(self, over_bytes: int) -> list[Entry] | None:
        """The first to go that free ``over_bytes``, or None if those known do not."""
        queue = self._ledger.queue or []
        victims: list[Entry] = []
        at = len(queue)
        while over_bytes > 0 and at:
            at -= 1
            if self._unused_since(queue[at]):
                victims.append(queue[at])
                over_bytes -= queue[at].charge_bytes
            else:
                del queue[at]
        return victims if over_bytes <= 0 else None

    def _unused_since(self, entry: Entry) -> bool:
        try:
            return self._ledger.path(entry.key).stat().st_mtime_ns == entry.used_ns
        except FileNotFoundError:
            return False

    def _scan(self) -> None:
        """Set the sum right and rank the entries anew."""
        with os.scandir(self._ledger.entries) as files:
            entries = [entry for file in files if (entry := self._entry(file))]
        held_bytes = sum(self._held_bytes(temp) for temp in self._ledger.temps.iterdir())
        self._set_used(held_bytes + sum(entry.charge_bytes for entry in entries))
        self._ledger.queue = self._ledger.policy.order(entries)[::-1]

    def _entry(self, file: os.DirEntry[str]) -> Entry | None:
        try:
            status = file.stat()
        except FileNotFoundError:
            return None
        charge = self._ledger.charge(status.st_size)
        return Entry(file.name, charge, status.st_mtime_ns, self._ledger.frequency(file.name))

    def _held_bytes(self, temp: Path) -> int:
        """What a file being written may grow to; one whose writer died is deleted."""
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(temp.name.rpartition("-")[2])
        else:
            temp.unlink(missing_ok=True)
            return 0
        finally:
            os.close(fd)

    def _unlink(self, key: str) -> int:
        path = self._ledger.path(key)
        used = self._used()
        try:
            charge = self._ledger.charge(path.stat().st_size)
            path.unlink()
        except FileNotFoundError:
            return 0
        self._set_used(used - charge)
        return charge

    def _used(self) -> int:
        text = os.pread(self._fd, _USED.size, 0)
        if len(text) == _USED.size:
            return int(_USED.unpack(text)[0])
        self._scan()
        return self._used()

    def _set_used(self, used_bytes: int) -> None:
        os.pwrite(self._fd, _USED.pack(max(0, used_bytes)), 0)
