"""One cache for a machine, or one for each executor."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from floodplain.clock import SystemClock
from floodplain.errors import BadInput
from floodplain.metrics import TIER_READ_BYTES, Counters
from floodplain.settings import CacheSettings
from floodplain.tiers.cache.place import SCRATCH
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.memory import MemoryBlobs

SIZE = 1 << 20


def misses(root: str, per: str, scratch: str) -> int:
    """Of a process that reads one blob."""
    os.environ.pop(SCRATCH, None)
    if scratch:
        os.environ[SCRATCH] = scratch
    counters = Counters()
    below = MemoryBlobs("memory://x", counters)
    below.create("runs/1", b"x" * 1000)
    cache = CachedBlobs(below, CacheSettings(root, SIZE, per=per), clock=SystemClock(), counters=Counters())
    before = counters.get(TIER_READ_BYTES, "memory")
    assert cache.get("runs/1").to_pybytes() == b"x" * 1000
    return int(counters.get(TIER_READ_BYTES, "memory") > before)


@pytest.fixture
def read(tmp_path: Path):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda per, scratch="": pool.submit(misses, str(tmp_path / "cache"), per, scratch).result()


def test_who_shares_a_cache(tmp_path: Path, read) -> None:
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    for scratch in (one, two):
        Path(scratch).mkdir()
    assert [read("machine", scratch) for scratch in ("", one, two)] == [1, 0, 0]
    assert [read("executor", scratch) for scratch in (one, one, two, two, "", "")] == [1, 0, 1, 0, 1, 0]


def test_the_cache_of_an_executor_that_has_ended_is_deleted(tmp_path: Path, read) -> None:
    scratch = [tmp_path / name for name in ("a", "b", "c")]
    for folder in scratch:
        folder.mkdir()
    read("executor", f"{scratch[0]},{scratch[1]}")
    read("executor", str(scratch[2]))
    folders = lambda: {path.name for path in (tmp_path / "cache").iterdir()}  # noqa: E731
    both = folders()
    assert len(both) == 2
    scratch[0].rmdir()
    read("executor")
    assert folders() == both | {"driver"}, "one of its folders is there"
    scratch[1].rmdir()
    read("executor")
    assert len(folders()) == 2 and "driver" in folders()
    assert read("executor", str(scratch[2])) == 0


def test_others_are_refused() -> None:
    with pytest.raises(BadInput, match="'machine' or 'executor'"):
        CacheSettings("x", 1, per="node")  # type: ignore[arg-type]
