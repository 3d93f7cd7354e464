"""I9, and what a directory can do to us that other places cannot."""

import ctypes
import errno
import mmap
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness, SystemClock
from floodplain.errors import AlreadyExists, FloodplainError, NoSpace, NotFound, Refused, Unavailable
from floodplain.metrics import Counters
from floodplain.settings import RetrySettings
from floodplain.tiers.blobs import Gathered
from floodplain.tiers.create import create_or_read
from floodplain.tiers.directory import DirectoryBlobs
from tests.full_disk import FullDisk
from tests.tiers.conftest import directory
from tests.tiers.workers import content, race_creates


class Recorder:
    """The calls that matter for durability, in order, with paths relative to ``root``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._root = root
        self._open: dict[int, str] = {}
        real = {name: getattr(os, name) for name in ("open", "writev", "fsync", "link", "rename", "unlink", "mkdir")}

        def opened(path: os.PathLike[str], *args: object, **kwargs: object) -> int:
            fd = real["open"](path, *args, **kwargs)
            self._open[fd] = self._name(path)
            return fd

        def on_fd(name: str):
            def call(fd: int, *args: object) -> object:
                self.calls.append((name, self._open[fd]))
                return real[name](fd, *args)

            return call

        def on_paths(name: str):
            def call(*args: object, **kwargs: object) -> object:
                self.calls.append((name, *(self._name(arg) for arg in args if isinstance(arg, Path))))
                return real[name](*args, **kwargs)

            return call

        monkeypatch.setattr(os, "open", opened)
        for name in ("writev", "fsync"):
            monkeypatch.setattr(os, name, on_fd(name))
        for name in ("link", "rename", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, on_paths(name))

    def _name(self, path: object) -> str:
        name = os.path.relpath(os.fspath(path), self._root)
        return "TEMP" if name.startswith("tmp/") else name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def warm(root: Path, counters: Counters) -> DirectoryBlobs:
    """Its directories are there and synced."""
    blobs = directory(root, counters)
    blobs.create("log/0", b"")
    return blobs


class TestOrder:
    def test_create_writes_syncs_links_and_syncs_the_directory(
        self, warm: DirectoryBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = Recorder(monkeypatch, root)
        warm.create("log/1", b"x")
        assert seen.calls == [
            ("writev", "TEMP"),
            ("fsync", "TEMP"),
            ("link", "TEMP", "log/1"),
            ("fsync", "log"),
            ("unlink", "TEMP"),
        ]

    def test_a_taken_name_is_durable_before_it_is_reported(
        self, warm: DirectoryBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = Recorder(monkeypatch, root)
        with pytest.raises(AlreadyExists):
            warm.create("log/0", b"x")
        assert seen.calls == [
            ("writev", "TEMP"),
            ("fsync", "TEMP"),
            ("link", "TEMP", "log/0"),
            ("fsync", "log"),
            ("unlink", "TEMP"),
        ]

    def test_put_writes_syncs_renames_and_syncs_the_directory(
        self, warm: DirectoryBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = Recorder(monkeypatch, root)
        warm.put("log/0", b"x")
        steps = [("writev", "TEMP"), ("fsync", "TEMP"), ("rename", "TEMP", "log/0"), ("fsync", "log")]
        assert [call for call in seen.calls if call[0] != "unlink"] == steps

    def test_new_directories_are_synced_into_their_parents(
        self, root: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = Recorder(monkeypatch, root)
        directory(root, counters).create("log/1", b"x")
        for made, parent in ((".", ".."), ("log", ".")):
            assert seen.calls.index(("mkdir", made)) < seen.calls.index(("fsync", parent)) < seen.calls.index(("writev", "TEMP"))

    def test_directories_that_another_process_made_are_synced_too(
        self, warm: DirectoryBlobs, root: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = Recorder(monkeypatch, root)
        directory(root, counters).create("log/1", b"x")
        assert seen.calls.index(("fsync", ".")) < seen.calls.index(("writev", "TEMP"))

    def test_nothing_is_synced_when_off(self, root: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = Recorder(monkeypatch, root)
        blobs = directory(root, counters, sync=False)
        blobs.create("log/1", b"x")
        blobs.put("log/2", b"x")
        blobs.delete(["log/1"])
        assert "link" in {call[0] for call in seen.calls}
        assert "fsync" not in {call[0] for call in seen.calls}


class TestFaults:
    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.ENOSPC, NoSpace),
            (errno.EDQUOT, NoSpace),
            (errno.EACCES, Refused),
            (errno.EROFS, Refused),
            (errno.EPERM, Refused),
            (errno.EIO, Unavailable),
            (errno.ESTALE, Unavailable),
        ],
        ids=lambda value: errno.errorcode.get(value) if isinstance(value, int) else "",
    )
    @pytest.mark.parametrize("call", ["writev", "fsync", "link"])
    def test_a_failed_create_stores_nothing_and_leaves_nothing(
        self,
        warm: DirectoryBlobs,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        number: int,
        kind: type[FloodplainError],
    ) -> None:
        def fails(*args: object, **kwargs: object) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(os, call, fails)
            with pytest.raises(kind, match=r"log/1 at file://.*: ") as caught:
                warm.create("log/1", b"x")
        assert os.strerror(number) in str(caught.value)
        assert [info.name for info in warm.list("")] == ["log/0"]
        assert list((root / "tmp").iterdir()) == []

    def test_a_name_whose_directory_could_not_be_synced_is_not_ours_yet(
        self, warm: DirectoryBlobs, root: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
    ) -> None:
        real, failures = os.fsync, []

        def fails_on_directories(fd: int) -> None:
            if Path(f"/proc/self/fd/{fd}").resolve() == root / "log":
                failures.append(fd)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fails_on_directories)
            with pytest.raises(Unavailable):
                create_or_read(warm, "log/1", b"mine", RetrySettings(attempts=3), clock, SeededRandomness(1))
        assert len(failures) == 6
        assert create_or_read(warm, "log/1", b"mine", RetrySettings(), clock, SeededRandomness(1)) is None

    def test_a_blob_and_a_folder_cannot_share_a_name(self, warm: DirectoryBlobs) -> None:
        with pytest.raises(Refused):
            warm.create("log/0/below", b"x")
        with pytest.raises(AlreadyExists):
            warm.create("log", b"x")
        for name in ("log", "log/0/below"):
            with pytest.raises(NotFound):
                warm.get(name)
            with pytest.raises(NotFound):
                warm.map(name)
            warm.delete([name])
        assert warm.get("log/0").to_pybytes() == b""

    def test_a_directory_removed_meanwhile_is_made_again(self, warm: DirectoryBlobs, root: Path) -> None:
        warm.delete(["log/0"])
        (root / "log").rmdir()
        (root / "tmp").rmdir()
        warm.create("log/1", b"x")
        assert warm.get("log/1").to_pybytes() == b"x"

    def test_a_root_that_is_a_file(self, tmp_path: Path, counters: Counters) -> None:
        (tmp_path / "file").write_bytes(b"")
        blobs = directory(tmp_path / "file", counters)
        with pytest.raises(Refused):
            blobs.create("log/1", b"x")
        with pytest.raises(NotFound):
            blobs.get("log/1")


class TestMapping:
    def test_outlives_the_name(self, warm: DirectoryBlobs) -> None:
        warm.create("runs/a", b"first" * 10_000)
        mapped = warm.map("runs/a")
        warm.put("runs/a", b"other")
        warm.delete(["runs/a"])
        assert mapped.to_pybytes() == b"first" * 10_000

    def test_holds_no_descriptor(self, warm: DirectoryBlobs) -> None:
        warm.create("runs/a", b"x" * 10_000)
        before = len(os.listdir("/proc/self/fd"))
        mapped = [warm.map("runs/a") for _ in range(50)]
        assert len(os.listdir("/proc/self/fd")) == before
        assert all(buffer.size == 10_000 for buffer in mapped)


class TestListing:
    def test_shows_no_foreign_or_temporary_files(self, warm: DirectoryBlobs, root: Path) -> None:
        (root / "tmp" / "left").write_bytes(b"x")
        (root / "log" / ".nfs1").write_bytes(b"x")
        (root / "lost+found").mkdir()
        (root / "lost+found" / "a").write_bytes(b"x")
        assert [info.name for info in warm.list("")] == ["log/0"]
        assert list(warm.list("tmp/")) == []

    def test_while_others_come_and_go(self, warm: DirectoryBlobs) -> None:
        kept = [f"log/{n:03}" for n in range(0, 200, 2)]
        going = [f"log/{n:03}" for n in range(1, 200, 2)]
        for name in kept:
            warm.put(name, b"x")
        done = threading.Event()

        def churn() -> None:
            blobs = DirectoryBlobs(warm._root, sync=False, randomness=SeededRandomness(3), counters=Counters())
            while not done.is_set():
                for name in going:
                    blobs.put(name, b"y")
                blobs.delete(going)

        with ThreadPoolExecutor(1) as pool:
            churning = pool.submit(churn)
            try:
                for _ in range(50):
                    found = [info.name for info in warm.list("log/", "log/0")]
                    assert found == sorted(found)
                    assert set(kept) <= set(found)
            finally:
                done.set()
            churning.result()


class TestSweep:
    def test_takes_the_old_and_leaves_the_young(self, warm: DirectoryBlobs, root: Path) -> None:
        clock = ManualClock(now_ms=10_000_000)
        for name, age_s in (("old", 3601), ("young", 3599)):
            (root / "tmp" / name).write_bytes(b"x")
            os.utime(root / "tmp" / name, (10_000 - age_s, 10_000 - age_s))
        assert warm.sweep(clock, 3_600_000) == 1
        assert [path.name for path in (root / "tmp").iterdir()] == ["young"]
        assert warm.get("log/0").to_pybytes() == b""

    def test_nothing_there(self, tmp_path: Path, counters: Counters) -> None:
        assert directory(tmp_path / "none", counters).sweep(SystemClock(), 0) == 0

    def test_a_write_that_loses_its_file_starts_over(
        self, warm: DirectoryBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, swept = os.link, []

        def swept_first(*args: object, **kwargs: object) -> None:
            if not swept:
                swept.append(warm.sweep(ManualClock(now_ms=int(time.time() * 1000) + 10_000), older_than_ms=0))
            real(*args, **kwargs)

        monkeypatch.setattr(os, "link", swept_first)
        warm.create("log/1", b"x")
        assert swept == [1]
        assert warm.get("log/1").to_pybytes() == b"x"


def test_racing_processes_have_one_winner(root: Path, counters: Counters) -> None:
    racers, rounds = 4, 50
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(racers, mp_context=spawn) as pool:
        gate = manager.Barrier(racers)
        running = [pool.submit(race_creates, str(root), racer, rounds, gate) for racer in range(racers)]
        won = {round_: racer for racer, race in enumerate(running) for round_ in race.result()}
        wins = sum(len(race.result()) for race in running)
    assert wins == rounds
    blobs = directory(root, counters)
    assert {round_: int(blobs.get(f"log/{round_}").to_pybytes()[:1]) for round_ in range(rounds)} == won
    assert {blobs.size(f"log/{round_}") for round_ in range(rounds)} == {10_000}


def test_a_killed_process_leaves_whole_blobs_only(root: Path, counters: Counters) -> None:
    blobs = directory(root, counters, sync=False)
    for round_ in range(1, 4):
        process = subprocess.Popen([sys.executable, "-m", "tests.tiers.workers", "create", str(root)])
        try:
            deadline = time.monotonic() + 30
            while len(list(blobs.list("runs/"))) < 5 * round_ and time.monotonic() < deadline:
                pass
        finally:
            process.kill()
            process.wait()
    names = [info.name for info in blobs.list("")]
    assert len(names) >= 15
    for name in names:
        assert blobs.get(name).to_pybytes() == content(name)
    later = ManualClock(now_ms=int(time.time() * 1000) + 10_000)
    blobs.sweep(later, older_than_ms=0)
    assert list((root / "tmp").iterdir()) == []


def test_bytes_in_many_places_are_written_whole_however_little_the_kernel_takes(
    warm: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [b"", b"abcdefgh", *(bytes([number % 251]) * (number % 5) for number in range(3000)), pa.py_buffer(b"end")]
    whole = b"".join(parts)
    warm.create("log/1", Gathered(parts))
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [views[0], views[1][:2]] if len(views) > 1 else [views[0][:1]]))
    warm.create("log/2", Gathered(parts))
    warm.create("log/3", Gathered([]))
    assert [bytes(warm.get(f"log/{number}")) for number in (1, 2, 3)] == [whole, whole, b""]


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no posix_fadvise here")
def test_a_directory_forgets_by_leaving_the_page_cache(tmp_path: Path) -> None:
    blobs = directory(tmp_path, Counters())
    blobs.create("runs/one", b"x" * 400_000)
    blobs.create("runs/two", b"y" * 400_000)
    if not in_page_cache(tmp_path / "runs/one"):
        pytest.skip("what was written is not in the page cache of this file system to begin with")
    blobs.forget(["runs/one", "runs/nobody"])
    assert not in_page_cache(tmp_path / "runs/one")
    assert in_page_cache(tmp_path / "runs/two")
    assert bytes(blobs.get("runs/one")) == b"x" * 400_000


def in_page_cache(path: Path) -> int:
    """How many pages of it are in memory."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("rb+") as file, mmap.mmap(file.fileno(), size) as mapped:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages)


def test_threads_that_need_a_folder_at_once_make_and_sync_it_once(tmp_path: Path, counters: Counters) -> None:
    """Whoever did not make it still returns only when it is there."""
    blobs, names = directory(tmp_path / "store", counters), [f"log/{n}" for n in range(16)]
    disk, at_once = FullDisk(tmp_path), threading.Barrier(len(names))

    def create(name: str) -> None:
        at_once.wait()
        blobs.create(name, b"x")

    with disk.mounted(), ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(create, names))
    made = Counter(call for call in disk.calls if call.startswith("mkdir"))
    assert made and set(made.values()) == {1}
    assert [info.name for info in blobs.list("log/")] == sorted(names)
