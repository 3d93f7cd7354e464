"""A cache: never wrong, never too large, never the cause of a failure."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import UnsafeStore
from floodplain.metrics import TIER_EVICTED_BYTES, TIER_HITS, TIER_MISSES, TIER_READ_BYTES, TIER_REQUESTS, Counters
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.memory import MemoryBlobs
from tests.tiers.conftest import cached, disk_bytes, files
from tests.tiers.workers import Endless, piece

SIZE = 1 << 20


def asked(counters: Counters, tier: str = "disk") -> tuple[int, int]:
    return counters.get(TIER_HITS, tier), counters.get(TIER_MISSES, tier)


class TestReading:
    def test_second_read_does_not_reach_the_lower_tier(self, cache: CachedBlobs, below: MemoryBlobs, counters: Counters) -> None:
        below.create("runs/a", b"0123456789")
        before = counters.get(TIER_REQUESTS, "memory")
        for _ in range(3):
            assert cache.get("runs/a").to_pybytes() == b"0123456789"
        assert counters.get(TIER_REQUESTS, "memory") == before + 1
        assert asked(counters) == (2, 1)
        assert counters.get(TIER_READ_BYTES, "disk") == 20

    def test_the_lower_tier_sees_only_the_ranges_that_miss(self, root: Path, counters: Counters) -> None:
        class Watched(Endless):
            seen: list[object] = []  # noqa: RUF012

            def get_ranges(self, name, ranges):
                self.seen.append([*ranges])
                return super().get_ranges(name, ranges)

        below = Watched("memory://endless", counters)
        cache = cached(below, root, counters)
        cache.get_ranges("runs/1", [(0, 10), (50, 10)])
        found = cache.get_ranges("runs/1", [(90, 5), (50, 10), (70, 0), (20, 5), (20, 5)])
        assert [data.to_pybytes() for data in found] == [
            piece("runs/1", *r) for r in [(90, 5), (50, 10), (70, 0), (20, 5), (20, 5)]
        ]
        assert below.seen == [[(0, 10), (50, 10)], [(20, 5), (90, 5)]]
        assert asked(counters) == (1, 4)

    def test_a_whole_blob_answers_for_its_ranges(self, cache: CachedBlobs, below: MemoryBlobs, counters: Counters) -> None:
        below.create("runs/a", b"0123456789")
        cache.get("runs/a")
        before = counters.get(TIER_REQUESTS, "memory")
        assert [data.to_pybytes() for data in cache.get_ranges("runs/a", [(8, 9), (2, 3), (20, 1)])] == [b"89", b"234", b""]
        assert cache.map("runs/a").to_pybytes() == b"0123456789"
        assert counters.get(TIER_REQUESTS, "memory") == before

    @pytest.mark.parametrize("name", ["log/1", "manifest/1", "pins/1", "format", "runsx/1"])
    def test_what_may_change_is_never_kept(self, cache: CachedBlobs, below: MemoryBlobs, root: Path, name: str) -> None:
        for data in (b"one", b"two"):
            below.put(name, data)
            assert cache.get(name).to_pybytes() == data
            assert cache.get_ranges(name, [(0, 3)])[0].to_pybytes() == data
        assert files(root) == []

    def test_short_ranges_are_not_kept(self, cache: CachedBlobs, below: MemoryBlobs) -> None:
        below.create("runs/a", b"damag")
        assert cache.get_ranges("runs/a", [(0, 8)])[0].to_pybytes() == b"damag"
        below.put("runs/a", b"repaired")
        assert cache.get_ranges("runs/a", [(0, 8)])[0].to_pybytes() == b"repaired"

    def test_stores_that_share_a_directory_keep_apart(self, root: Path, counters: Counters) -> None:
        stores = [MemoryBlobs(f"memory://{n}", counters) for n in range(2)]
        for n, store in enumerate(stores):
            store.create("runs/a", b"store %d" % n)
        for _ in range(2):
            for n, store in enumerate(stores):
                assert cached(store, root, counters).get("runs/a").to_pybytes() == b"store %d" % n
        assert asked(counters) == (2, 2)

    def test_one_url_at_two_endpoints_is_two_stores(self, root: Path, counters: Counters) -> None:
        for endpoint in ("one", "two"):
            store = MemoryBlobs("s3://bucket/x", counters)
            store.create("runs/a", endpoint.encode())
            assert (
                cached(store, root, counters, space=f"s3://bucket/x {endpoint}").get("runs/a").to_pybytes() == endpoint.encode()
            )

    def test_what_is_forgotten_is_read_from_the_lowest_tier(
        self, cache: CachedBlobs, below: MemoryBlobs, tmp_path: Path, counters: Counters
    ) -> None:
        top = cached(cache, tmp_path / "top", counters, tier="tmpfs")
        below.create("runs/a", b"damaged")
        assert top.get("runs/a").to_pybytes() == b"damaged"
        below.put("runs/a", b"mended")
        assert top.get("runs/a").to_pybytes() == b"damaged"
        top.forget(["runs/a"])
        assert top.get("runs/a").to_pybytes() == b"mended"

    def test_a_second_cache_is_filled_from_the_first(
        self, cache: CachedBlobs, below: MemoryBlobs, tmp_path: Path, counters: Counters
    ) -> None:
        below.create("runs/a", b"0123456789")
        cache.get_ranges("runs/a", [(0, 4)])
        top = cached(cache, tmp_path / "top", counters, tier="tmpfs")
        for _ in range(2):
            assert top.get_ranges("runs/a", [(0, 4)])[0].to_pybytes() == b"0123"
        assert asked(counters) == (1, 1)
        assert asked(counters, "tmpfs") == (1, 1)


class TestDamage:
    DATA = bytes(range(256)) * 20

    @pytest.fixture(params=["same process", "new process"])
    def reader(self, request: pytest.FixtureRequest, cache: CachedBlobs, below: MemoryBlobs, root: Path) -> CachedBlobs:
        """A cache with one good file that was read and verified."""
        below.create("runs/a", self.DATA)
        for _ in range(2):
            cache.get_ranges("runs/a", [(0, 5000)])
        return cache if request.param == "same process" else cached(below, root, Counters())

    def check(self, reader: CachedBlobs, root: Path, counters: Counters) -> None:
        """The file is not used, and a good one takes its place."""
        (file,) = files(root)
        bad = file.stat().st_ino
        assert reader.get_ranges("runs/a", [(0, 5000)])[0].to_pybytes() == self.DATA[:5000]
        (again,) = files(root)
        assert again.stat().st_ino != bad or again.read_bytes()[:5000] == self.DATA[:5000]
        assert reader.get_ranges("runs/a", [(0, 5000)])[0].to_pybytes() == self.DATA[:5000]

    @pytest.mark.parametrize("at", [0, 1, 2500, 4999, 5000, 5001, 5030, -1, -16, -17, -18])
    def test_a_flipped_bit(self, reader: CachedBlobs, root: Path, counters: Counters, at: int) -> None:
        (file,) = files(root)
        data = bytearray(file.read_bytes())
        data[at] ^= 4
        file.write_bytes(data)
        self.check(reader, root, counters)

    @pytest.mark.parametrize("length", [0, 1, 35, 4999, 5000, -1])
    def test_a_torn_file(self, reader: CachedBlobs, root: Path, counters: Counters, length: int) -> None:
        (file,) = files(root)
        file.write_bytes(file.read_bytes()[:length])
        self.check(reader, root, counters)

    def test_a_longer_file(self, reader: CachedBlobs, root: Path, counters: Counters) -> None:
        (file,) = files(root)
        file.write_bytes(b"x" + file.read_bytes())
        self.check(reader, root, counters)

    def test_zeroes(self, reader: CachedBlobs, root: Path, counters: Counters) -> None:
        (file,) = files(root)
        file.write_bytes(bytes(file.stat().st_size))
        self.check(reader, root, counters)

    def test_another_blobs_file(self, reader: CachedBlobs, below: MemoryBlobs, root: Path, counters: Counters) -> None:
        (file,) = files(root)
        below.create("runs/b", self.DATA[::-1])
        reader.get_ranges("runs/b", [(0, 5000)])
        (other,) = set(files(root)) - {file}
        other.replace(file)
        self.check(reader, root, counters)

    def test_another_range_of_the_same_blob(self, reader: CachedBlobs, root: Path, counters: Counters) -> None:
        (file,) = files(root)
        reader.get_ranges("runs/a", [(1, 5000)])
        (other,) = set(files(root)) - {file}
        other.replace(file)
        self.check(reader, root, counters)

    def test_a_vanished_file(self, reader: CachedBlobs, root: Path) -> None:
        (file,) = files(root)
        file.unlink()
        assert reader.get_ranges("runs/a", [(0, 5000)])[0].to_pybytes() == self.DATA[:5000]
        assert files(root) == [file]

    def test_a_vanished_cache(self, reader: CachedBlobs, root: Path) -> None:
        for _ in range(2):
            shutil.rmtree(root)
            assert reader.get_ranges("runs/a", [(0, 5000)])[0].to_pybytes() == self.DATA[:5000]
            assert reader.get("runs/a").to_pybytes() == self.DATA
        assert len(files(root)) == 2

    def test_a_cache_that_became_a_file(self, reader: CachedBlobs, root: Path) -> None:
        shutil.rmtree(root)
        root.write_bytes(b"")
        for _ in range(2):
            assert reader.get_ranges("runs/a", [(0, 5000)])[0].to_pybytes() == self.DATA[:5000]
            reader.delete(["runs/none"])

    def test_a_directory_where_a_file_should_be(self, reader: CachedBlobs, root: Path) -> None:
        (file,) = files(root)
        file.unlink()
        file.mkdir()
        assert reader.get_ranges("runs/a", [(0, 5000)])[0].to_pybytes() == self.DATA[:5000]


class TestRoom:
    def fill(self, cache: CachedBlobs, names: Iterator[int] | range, length: int = 50_000) -> None:
        for n in names:
            assert cache.get_ranges(f"runs/{n}", [(0, length)])[0].to_pybytes() == piece(f"runs/{n}", 0, length)

    @pytest.fixture
    def endless(self, root: Path, counters: Counters, clock: ManualClock) -> CachedBlobs:
        return cached(Endless("memory://endless", counters), root, counters, clock=clock, size_bytes=SIZE)

    def test_is_used_and_never_exceeded(self, endless: CachedBlobs, root: Path, counters: Counters) -> None:
        for n in range(60):
            self.fill(endless, range(n, n + 1))
            assert disk_bytes(root) <= SIZE
        assert disk_bytes(root) > SIZE * 0.9
        assert counters.get(TIER_EVICTED_BYTES, "disk") > 60 * 50_000 - SIZE

    def test_one_request_larger_than_the_cache(self, endless: CachedBlobs, root: Path) -> None:
        ranges = [(100_000 * at, 100_000) for at in range(20)]
        assert [d.to_pybytes() for d in endless.get_ranges("runs/1", ranges)] == [piece("runs/1", *r) for r in ranges]
        assert 0 < disk_bytes(root) <= SIZE

    def test_an_entry_larger_than_the_cache_is_bypassed(self, endless: CachedBlobs, root: Path) -> None:
        self.fill(endless, range(3))
        before = files(root)
        self.fill(endless, range(9, 10), length=SIZE)
        assert files(root) == before

    def test_a_cache_too_small_for_anything_keeps_nothing(self, root: Path, counters: Counters) -> None:
        tiny = cached(Endless("memory://endless", counters), root, counters, size_bytes=1)
        self.fill(tiny, range(3), length=10)
        assert files(root) == []

    def test_the_longest_unused_go_first(self, endless: CachedBlobs, counters: Counters, clock: ManualClock) -> None:
        for n in range(18):
            self.fill(endless, range(n, n + 1))
            clock.advance_ms(60_000)
        self.fill(endless, range(3))
        hits, _ = asked(counters)
        assert hits == 3
        self.fill(endless, range(100, 103))
        self.fill(endless, range(3))
        assert asked(counters)[0] == 6
        self.fill(endless, range(3, 4))
        assert asked(counters)[0] == 6

    def test_frequency_survives_a_scan_and_lru_does_not(self, tmp_path: Path, clock: ManualClock) -> None:
        kept = {}
        for policy in ("lru", "frequency"):
            counters = Counters()
            cache = cached(
                Endless("memory://e", counters), tmp_path / policy, counters, policy=policy, clock=clock, size_bytes=SIZE
            )
            for _ in range(4):
                self.fill(cache, range(8))
                clock.advance_ms(60_000)
            self.fill(cache, range(100, 160))
            before, _ = asked(counters)
            self.fill(cache, range(8))
            kept[policy] = asked(counters)[0] - before
        assert kept == {"lru": 0, "frequency": 8}

    def test_frequency_learns_a_new_favourite(self, root: Path, counters: Counters) -> None:
        cache = cached(Endless("memory://e", counters), root, counters, policy="frequency", size_bytes=SIZE)
        for _ in range(3):
            self.fill(cache, range(30))
        for _ in range(20):
            self.fill(cache, range(500, 505))
        before, _ = asked(counters)
        self.fill(cache, range(500, 505))
        assert asked(counters)[0] == before + 5

    def test_no_descriptor_is_left_open(self, endless: CachedBlobs) -> None:
        self.fill(endless, range(1))
        before = len(os.listdir("/proc/self/fd"))
        self.fill(endless, range(60))
        held = [endless.get_ranges(f"runs/{n}", [(0, 50_000)]) for n in range(59, 69)]
        assert len(os.listdir("/proc/self/fd")) <= before, "a thread of an earlier test may close some meanwhile"
        assert len(held) == 10

    def test_mapped_bytes_outlive_eviction(self, endless: CachedBlobs, root: Path) -> None:
        self.fill(endless, range(1))
        (held,) = endless.get_ranges("runs/0", [(0, 50_000)])
        self.fill(endless, range(1, 60))
        assert held.to_pybytes() == piece("runs/0", 0, 50_000)

    def test_forgotten_blobs_give_their_room_back(self, endless: CachedBlobs, root: Path, counters: Counters) -> None:
        self.fill(endless, range(18))
        endless.forget([f"runs/{n}" for n in range(18)])
        assert files(root) == []
        self.fill(endless, range(18))
        assert counters.get(TIER_EVICTED_BYTES, "disk") == 0

    def test_a_failed_write_gives_its_room_back(
        self, endless: CachedBlobs, root: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            self.fill(endless, range(40))
        assert files(root) == []
        assert list((root / "tmp").iterdir()) == []
        self.fill(endless, range(18))
        assert counters.get(TIER_EVICTED_BYTES, "disk") == 0

    def test_what_a_killed_writer_left_is_found(self, endless: CachedBlobs, root: Path, counters: Counters) -> None:
        """Space reserved by a dead process is released; space reserved by a live one is not."""
        self.fill(endless, range(1))
        (root / "tmp" / "dead-300000").write_bytes(bytes(300_000))
        with (root / "tmp" / "live-400000").open("wb") as live:
            fcntl.flock(live, fcntl.LOCK_EX)
            other = cached(Endless("memory://endless", counters), root, counters, size_bytes=SIZE)
            for n in range(1, 30):
                self.fill(other, range(n, n + 1))
                assert disk_bytes(root) + 400_000 <= SIZE
        assert [path.name for path in (root / "tmp").iterdir()] == ["live-400000"]

    def test_a_sum_that_is_wrong_is_set_right(self, endless: CachedBlobs, root: Path, counters: Counters) -> None:
        self.fill(endless, range(10))
        for text in (b"", b"abc", bytes(8), b"\xff" * 8):
            (root / "lock").write_bytes(text)
            other = cached(Endless("memory://endless", counters), root, counters, size_bytes=SIZE)
            self.fill(other, range(100, 140))
            assert SIZE * 0.9 < disk_bytes(root) <= SIZE

    @pytest.mark.parametrize("tier", ["tmpfs", "disk"])
    def test_a_file_system_smaller_than_asked_for(self, below: MemoryBlobs, root: Path, counters: Counters, tier: str) -> None:
        with pytest.raises(
            UnsafeStore, match=rf"the {tier} cache at .* 1,152,921,504,606,846,976 bytes, .* has [\d,]+; ask for less"
        ):
            cached(below, root, counters, tier=tier, size_bytes=1 << 60)
