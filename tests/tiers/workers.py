"""What tests run in processes of their own."""

import hashlib
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import AlreadyExists
from floodplain.metrics import TIER_HITS, TIER_MISSES, Counters
from floodplain.settings import CacheSettings
from floodplain.tiers.blobs import Range
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.tiers.memory import MemoryBlobs


def race_creates(root: str, racer: int, rounds: int, gate: object) -> list[int]:
    """The rounds that this racer won."""
    blobs = DirectoryBlobs(root, sync=False, randomness=SystemRandomness(), counters=Counters())
    won = []
    for round_ in range(rounds):
        gate.wait()
        try:
            blobs.create(f"log/{round_}", b"%d" % racer * 10_000)
        except AlreadyExists:
            continue
        won.append(round_)
    return won


def content(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest() * 40_000


def create_until_killed(root: str) -> None:
    blobs = DirectoryBlobs(root, sync=False, randomness=SystemRandomness(), counters=Counters())
    at = 0
    while True:
        name = f"runs/{os.getpid()}-{at}"
        blobs.create(name, content(name))
        at += 1


_NOISE = random.Random(0).randbytes(1 << 21)


def piece(name: str, offset: int, length: int) -> bytes:
    """A range of an endless blob; no two blobs and no two places look the same."""
    first = (int(name.rpartition("/")[2]) * 7919 + offset) % (1 << 20)
    return _NOISE[first : first + length]


class Endless(MemoryBlobs):
    """A lower tier whose every blob has every range."""

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        return [pa.py_buffer(piece(name, *range_)) for range_ in ranges]


def hammer_cache(cache: str, size_bytes: int, policy: str, seed: int, rounds: int) -> tuple[int, int]:
    """Read at random through a shared cache, checking every byte; returns (hits, misses)."""
    counters = Counters()
    settings = CacheSettings(cache, size_bytes, policy)
    blobs = CachedBlobs(Endless("memory://endless", counters), settings, clock=SystemClock(), counters=counters)
    rng = random.Random(seed)
    for _ in range(rounds):
        name = f"runs/{rng.randrange(12)}"
        ranges = [(1000 * at, 500 + 6000 * (at % 3)) for at in {int(rng.expovariate(0.3)) for _ in range(4)}]
        found = blobs.get_ranges(name, ranges)
        assert [data.to_pybytes() for data in found] == [piece(name, *range_) for range_ in ranges]
        if rng.random() < 0.02:
            blobs.forget([name])
    return counters.get(TIER_HITS, "disk"), counters.get(TIER_MISSES, "disk")


if __name__ == "__main__":
    assert Path(sys.argv[2]).is_absolute()
    if sys.argv[1] == "create":
        create_until_killed(sys.argv[2])
    else:
        hammer_cache(sys.argv[2], int(sys.argv[3]), "lru", 1, 1 << 30)
