"""A cache that several processes share: its lock, and its bound while they write and die."""

import fcntl
import multiprocessing
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import NotFound
from floodplain.metrics import Counters
from floodplain.tiers.cache.ledger import LOCK_WAIT_S, Ledger
from floodplain.tiers.cache.policy import Lru
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.memory import MemoryBlobs
from tests.tiers.conftest import cached, disk_bytes, files
from tests.tiers.workers import hammer_cache

SIZE = 1 << 20


class TestLock:
    def test_a_lock_file_that_was_replaced_is_not_the_lock(self, root: Path) -> None:
        root.mkdir()
        held = (root / "lock").open("wb")
        fcntl.flock(held, fcntl.LOCK_EX)

        class Replacing(ManualClock):
            def sleep_s(self, seconds: float) -> None:
                if not held.closed:
                    (root / "lock").unlink()
                    (root / "lock").write_bytes(b"")
                    held.close()

        with Ledger(root, SIZE, Lru(), lambda _: 0, Replacing()).locked(), (root / "lock").open("rb") as other:
            assert held.closed
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_stopped_holder_slows_one_read_and_fails_none(
        self, cache: CachedBlobs, below: MemoryBlobs, root: Path, clock: ManualClock
    ) -> None:
        for n in range(3):
            below.create(f"runs/{n}", b"x" * 100)
        cache.get("runs/0")
        with (root / "lock").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert cache.get("runs/1").to_pybytes() == b"x" * 100
            waited_s = sum(clock.sleeps_s)
            assert 0 < waited_s <= LOCK_WAIT_S * 1.01
            assert cache.get("runs/2").to_pybytes() == b"x" * 100
            assert cache.get("runs/0").to_pybytes() == b"x" * 100
            assert sum(clock.sleeps_s) == waited_s
        assert len(files(root)) == 1
        cache.get("runs/1")
        assert len(files(root)) == 2


class TestProcesses:
    SIZE = 300_000

    @pytest.mark.parametrize("policy", ["lru", "frequency"])
    def test_the_bound_holds_at_every_moment(self, root: Path, policy: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        seen = []
        with ProcessPoolExecutor(3, mp_context=spawn) as pool:
            running = [pool.submit(hammer_cache, str(root), self.SIZE, policy, seed, 400) for seed in range(3)]
            while wait(running, timeout=0.002).not_done:
                seen.append(disk_bytes(root))
            counted = [one.result() for one in running]
        assert max(seen) <= self.SIZE
        assert max(seen) > self.SIZE * 0.8
        assert sum(found > self.SIZE // 2 for found in seen) >= 50
        assert all(hits > 50 and misses > 50 for hits, misses in counted)
        assert list((root / "tmp").iterdir()) == []

    def test_the_bound_holds_when_processes_are_killed(self, root: Path) -> None:
        command = [sys.executable, "-m", "tests.tiers.workers", "hammer", str(root), str(self.SIZE)]
        for _ in range(3):
            process = subprocess.Popen(command)
            try:
                deadline = time.monotonic() + 30
                last = 0
                while last < 20 and time.monotonic() < deadline:
                    found = disk_bytes(root)
                    assert found <= self.SIZE
                    last += found > self.SIZE // 2
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        hammer_cache(str(root), self.SIZE, "lru", 5, 100)
        assert self.SIZE // 2 < disk_bytes(root) <= self.SIZE
        assert list((root / "tmp").iterdir()) == []


def test_deleted_blobs_are_missing_for_every_process(
    cache: CachedBlobs, below: MemoryBlobs, root: Path, counters: Counters
) -> None:
    below.create("runs/a", b"0123456789")
    other = cached(below, root, counters)
    other.get("runs/a")
    cache.delete(["runs/a"])
    with pytest.raises(NotFound):
        other.get("runs/a")
