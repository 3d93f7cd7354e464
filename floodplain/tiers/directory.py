"""Blobs as files in a directory: durable on return, and memory-mapped by every process on the machine."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from floodplain.clock import Clock, Randomness
from floodplain.errors import AlreadyExists, BadInput, FloodplainError, NotFound
from floodplain.metrics import Counters
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Gathered, Range, Writable
from floodplain.tiers.files import reserve
from floodplain.tiers.files.errors import as_ours, os_error
from floodplain.tiers.files.folders import Folders
from floodplain.tiers.files.modes import AS_UMASK, Modes
from floodplain.tiers.files.plain import check_folders, check_kind
from floodplain.tiers.files.reserve import Reserve
from floodplain.tiers.meter import DELETE, GET, HEAD, LIST, PUT, Meter
from floodplain.tiers.paths import TEMPS, checked_blob, checked_prefix
from floodplain.tiers.ranges import EMPTY, checked_ranges
from floodplain.tiers.walk import walk

MAPPED_BYTES = 16 << 20
"""A blob above this is mapped, not read into memory: its size is only what the file system says, and may be made up of holes."""
MOST_VIEWS = 1024
"""Places in memory that one call to the kernel may name."""


class DirectoryBlobs(Blobs):
    """One file per blob under ``root``.

    A file gets its name only when it is whole: it is written and synced under ``tmp/``, then linked (``create``) or
    renamed (``put``), then its directory is synced. ``link`` fails if the name is taken, in one step, on every POSIX
    file system, so it is what ``create`` rests on.

    A process that is killed may leave a file in ``tmp/``; it is never listed and ``sweep`` removes it. With ``sync``
    off nothing is synced: a power cut can lose or tear blobs, a killed process cannot. With ``mapped`` off nothing is
    mapped: all is read into memory of the process. Files and folders are made with the permissions of ``modes``.

    Symbolic links, pipes, sockets and devices below ``root`` are ``Refused``: nothing is read, written or deleted through them.
    """

    tier = "directory"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        sync: bool,
        mapped: bool = True,
        modes: Modes = AS_UMASK,
        randomness: Randomness,
        counters: Counters,
    ) -> None:
        self._root = Path(os.path.abspath(root))  # noqa: PTH100 — resolve() would follow a symbolic link to the store
        self._randomness = randomness
        self._meter = Meter(counters, self.tier)
        self._folders = Folders(self._root, sync=sync, modes=modes)
        self._modes = modes
        self._reserve = Reserve(self._root / TEMPS / reserve.NAME, modes)
        self._sync = sync
        self._mapped = mapped
        self._prefix = f"{self._root}{os.sep}"
        self.url = self._root.as_uri()

    def create(self, name: str, data: Writable) -> None:
        def link(temp: Path, path: Path) -> None:
            try:
                os.link(temp, path, follow_symlinks=False)
            except FileExistsError:
                # Whoever sees the name as taken may build on it, so it must outlast a power cut from here on.
                self._folders.sync(path.parent)
                raise AlreadyExists(f"{name} exists at {self.url}") from None
            self._folders.sync(path.parent)

        self._store(name, data, link)

    def put(self, name: str, data: Data) -> None:
        def rename(temp: Path, path: Path) -> None:
            temp.rename(path)
            self._folders.sync(path.parent)

        self._store(name, data, rename)

    def get(self, name: str) -> pa.Buffer:
        with self._opened(name) as fd:
            size = os.fstat(fd).st_size
            if size <= MAPPED_BYTES or not self._mapped:
                return self._read(fd, 0, size)
        self._meter.read(size)
        return self._mapping(name)

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        checked_ranges(name, ranges)
        with self._opened(name) as fd:
            size = os.fstat(fd).st_size
            return [self._read(fd, offset, min(length, size - offset)) for offset, length in ranges]

    def at_hand(self, name: str, ranges: Sequence[Range]) -> list[bool]:  # noqa: ARG002
        return [True] * len(ranges)

    def map(self, name: str) -> pa.Buffer | None:
        if not self._mapped:
            return None
        with self._opened(name) as fd:
            size = os.fstat(fd).st_size
        return self._mapping(name) if size else EMPTY

    def _mapping(self, name: str) -> pa.Buffer:
        try:
            with pa.memory_map(str(self._root / name)) as mapped:
                return mapped.read_buffer()
        except FileNotFoundError:
            raise NotFound(f"{name} does not exist at {self.url}") from None
        except OSError as error:
            raise os_error(error, f"mapping {name} at {self.url}") from error

    def mapped_bytes(self, name: str) -> int | None:
        try:
            return os.stat(f"{self._prefix}{name}").st_size  # noqa: PTH116 — called for every run that is read
        except OSError:
            return None

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        self._meter.count_requests(kind=LIST)
        with as_ours(f"listing {checked_prefix(prefix)!r} at {self.url}"):
            check_folders(self._root, self._root / prefix.rpartition("/")[0])
            for name, size in walk(self._root, prefix, after):
                yield BlobInfo(name, size)

    def top(self) -> Iterable[str]:
        self._meter.count_requests(kind=LIST)
        with as_ours(f"listing {self.url}"):
            try:
                return os.listdir(self._root)  # noqa: PTH208 — names are wanted
            except FileNotFoundError:
                return ()
            except NotADirectoryError:
                raise BadInput(
                    f"{self._root} is a file: a store is a folder, so give the path of an empty one, or of one to be made"
                ) from None

    def delete(self, names: Iterable[str]) -> None:
        touched = set()
        for name in names:
            path = self._root / checked_blob(name)
            with self._meter.asking(DELETE), as_ours(f"deleting {name} at {self.url}"):
                check_folders(self._root, path.parent)
                try:
                    path.unlink()
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    continue
            touched.add(path.parent)
        for folder in sorted(touched):
            with as_ours(f"deleting in {folder}"):
                self._folders.sync(folder)

    def size(self, name: str) -> int:
        with self._opened(name, HEAD) as fd:
            return os.fstat(fd).st_size

    def modified_ms(self, name: str) -> int | None:
        with self._opened(name, HEAD) as fd:
            return os.fstat(fd).st_mtime_ns // 1_000_000

    def forget(self, names: Iterable[str]) -> None:
        """The page cache lets go of them, but for pages that some process has mapped."""
        if not hasattr(os, "posix_fadvise"):
            return
        for name in names:
            with suppress(NotFound), self._opened(name) as fd:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def reserve(self, size_bytes: int) -> None:
        if size_bytes > 0:
            with suppress(FloodplainError), as_ours(f"setting room aside at {self.url}"):
                self._make(self._root / TEMPS)
                self._reserve.keep(size_bytes, self._root / TEMPS / self._randomness.nonce())

    def give_up_reserve(self) -> int:
        with as_ours(f"giving up the room set aside at {self.url}"):
            check_folders(self._root, self._root / TEMPS)
            return self._reserve.give_up()

    def sweep(self, clock: Clock, older_than_ms: int) -> int:
        swept = 0
        limit_s = (clock.now_ms() - older_than_ms) / 1000
        temps = self._root / TEMPS
        with as_ours(f"sweeping {self.url}"), suppress(FileNotFoundError):
            check_folders(self._root, temps)
            with os.scandir(temps) as entries:
                for temp in entries:
                    with suppress(FileNotFoundError):
                        if temp.name == reserve.NAME:
                            continue
                        if temp.is_file(follow_symlinks=False) and temp.stat(follow_symlinks=False).st_mtime <= limit_s:
                            Path(temp.path).unlink()
                            swept += 1
        return swept

    def _store(self, name: str, data: Writable, publish: Callable[[Path, Path], None]) -> None:
        path = self._root / checked_blob(name)
        views = [memoryview(part).cast("B") for part in (data.parts if isinstance(data, Gathered) else [data]) if len(part)]
        with self._meter.asking(PUT), as_ours(f"writing {name} at {self.url}"):
            try:
                self._store_once(path, views, publish)
            except FileNotFoundError:
                # A sweep took the temporary file, or someone removed an empty directory: neither stored the name.
                self._folders.forget()
                self._store_once(path, views, publish)
        self._meter.wrote(sum(map(len, views)))

    def _store_once(self, path: Path, views: Sequence[memoryview], publish: Callable[[Path, Path], None]) -> None:
        self._make(path.parent)
        temp = self._write_temp(views)
        try:
            publish(temp, path)
        finally:
            temp.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        check_folders(self._root, folder)
        self._folders.make(folder)

    def _write_temp(self, views: Sequence[memoryview]) -> Path:
        temps = self._root / TEMPS
        self._make(temps)
        while True:
            temp = temps / self._randomness.nonce()
            with suppress(FileExistsError):
                fd = self._modes.open(temp, os.O_WRONLY | os.O_EXCL)
                break
        try:
            write_all(fd, views)
            if self._sync:
                os.fsync(fd)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return temp

    @contextmanager
    def _opened(self, name: str, kind: str = GET) -> Iterator[int]:
        path = self._root / checked_blob(name)
        with self._meter.asking(kind), as_ours(f"reading {name} at {self.url}"):
            check_folders(self._root, path.parent)
            self._folders.settle(path.parent)
            try:
                check_kind(path, os.lstat(path).st_mode)
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(f"{name} does not exist at {self.url}") from None
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise NotFound(f"{name} does not exist at {self.url}")
                yield fd
            finally:
                os.close(fd)

    def _read(self, fd: int, offset: int, length: int) -> pa.Buffer:
        if length <= 0:
            return EMPTY
        buffer = pa.allocate_buffer(length)
        view = memoryview(buffer)
        done = 0
        while done < length and (got := os.preadv(fd, [view[done:]], offset + done)):
            done += got
        self._meter.read(done)
        return buffer.slice(0, done)


def write_all(fd: int, views: Sequence[memoryview]) -> None:
    """Write all of them, one after the other; the kernel may take less at a time than it is given."""
    left = list(views)
    while left:
        written = os.writev(fd, left[:MOST_VIEWS])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
