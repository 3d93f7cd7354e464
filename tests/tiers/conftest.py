"""Every back end, behind one fixture."""

import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodplain.clock import ManualClock, SeededRandomness, SystemClock, SystemRandomness
from floodplain.metrics import Counters
from floodplain.settings import CacheSettings, RetrySettings, StoreSettings
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.tiers.memory import MemoryBlobs
from floodplain.tiers.objects import ObjectBlobs
from floodplain.tiers.open import open_blobs
from tests.tiers.fake_s3 import FakeS3, serving

BACK_ENDS = [
    "memory",
    "directory",
    "directory-unsynced",
    "obstore-memory",
    "cached-lru",
    "cached-frequency",
    "cached-twice",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("s3-cached", marks=pytest.mark.s3),
]


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def randomness() -> SeededRandomness:
    return SeededRandomness(7)


def directory(root: Path, counters: Counters, *, sync: bool = True) -> DirectoryBlobs:
    return DirectoryBlobs(root, sync=sync, randomness=SystemRandomness(), counters=counters)


def cached(lower: Blobs, root: Path, counters: Counters, *, size_bytes: int = 1 << 20, **more: object) -> CachedBlobs:
    policy = more.pop("policy", "lru")
    clock = more.pop("clock", SystemClock())
    return CachedBlobs(lower, CacheSettings(str(root), size_bytes, policy), clock=clock, counters=counters, **more)


def files(root: Path) -> list[Path]:
    return sorted((root / "entries").iterdir()) if (root / "entries").exists() else []


def disk_bytes(root: Path) -> int:
    """What ``du`` says, directories included.

    Under the lock: otherwise a file could be counted before it goes, and the one that takes its room after it came.
    """
    if not (root / "lock").exists():
        return 0
    with (root / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return walked_bytes(root)


def walked_bytes(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                total += os.lstat(path).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


@pytest.fixture
def below(counters: Counters) -> MemoryBlobs:
    return MemoryBlobs("memory://below", counters)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(below: MemoryBlobs, root: Path, counters: Counters, clock: ManualClock) -> CachedBlobs:
    return cached(below, root, counters, clock=clock)


@pytest.fixture(params=BACK_ENDS)
def blobs(request: pytest.FixtureRequest, tmp_path: Path, counters: Counters) -> Blobs:
    kind = request.param
    if kind == "memory":
        return MemoryBlobs("memory://contract", counters)
    if kind.startswith("directory"):
        return directory(tmp_path / "a" / "store", counters, sync=kind == "directory")
    if kind == "obstore-memory":
        return ObjectBlobs("memory:///", {}, RetrySettings(), counters)
    if kind.startswith("s3"):
        server = request.getfixturevalue("s3_server")
        cache = CacheSettings(str(tmp_path / "cache"), 1 << 20) if kind == "s3-cached" else None
        settings = StoreSettings(retry=RetrySettings(timeout_ms=10_000), cache=cache)
        url = server.url(f"contract/{uuid.uuid4().hex}")
        return open_blobs(
            url, settings, options=server.options, clock=SystemClock(), randomness=SystemRandomness(), counters=counters
        )
    below = directory(tmp_path / "store", counters)
    if kind == "cached-twice":
        below = cached(below, tmp_path / "disk", counters)
        return cached(below, tmp_path / "fast", counters, tier="tmpfs")
    return cached(below, tmp_path / "disk", counters, policy=kind.removeprefix("cached-"))


@pytest.fixture
def fake_s3() -> Iterator[FakeS3]:
    with serving() as fake:
        yield fake


@pytest.fixture
def faked(fake_s3: FakeS3, counters: Counters) -> ObjectBlobs:
    """Blobs on the misbehaving server; a request is given up after half a second."""
    return ObjectBlobs("s3://bucket", fake_s3.options, RetrySettings(timeout_ms=500), counters)
