"""Runs in the cache of a machine: who made one reads nothing back, what is used is mapped, and what nobody names leaves."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Corrupt
from floodplain.metrics import TIER_READ_BYTES, Counters
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.store.rows.definition import list_table, map_table, timer_table, value_table
from floodplain.store.run import cached_run
from floodplain.store.run.chunks import ALIGNMENT, packed, unpacked
from floodplain.store.store import Store
from floodplain.tiers.cache.files import TOUCH_NS
from floodplain.tiers.cached import CachedBlobs
from tests.store import forge
from tests.store.world import ObjectLike
from tests.tiers.conftest import files

TABLES = {
    "value": value_table("t", {"k": pa.int64()}, {"v": pa.string()}),
    "ordered": list_table("t", {"k": pa.int64()}, {"v": pa.string()}),
    "hashed": map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.string()}),
    "time": timer_table("t", {"k": pa.int64()}, {"v": pa.string()}),
}
SUBKEYS = {"ordered": "position", "hashed": "s", "time": "at"}
SETTINGS = replace(forge.SETTINGS, chunk_bytes=2_000, memory_bytes=0)
COUNT = 600
MAPS = Path("/proc/self/maps")


class ReadsOfRuns(ObjectLike):
    """Counts what is asked of runs."""

    asked = 0

    def get(self, name: str) -> pa.Buffer:
        self.asked += name.startswith("runs/")
        return super().get(name)

    def get_ranges(self, name: str, ranges: Any) -> list[pa.Buffer]:
        self.asked += name.startswith("runs/")
        return super().get_ranges(name, ranges)


class Machine:
    """Processes that share a cache, over an object store that counts requests."""

    def __init__(self, root: Path, settings: StoreSettings = SETTINGS, size_bytes: int = 32 << 20) -> None:
        self.counters = Counters()
        self.below = ReadsOfRuns("memory://below", self.counters)
        self.root, self.settings, self.size_bytes = root, settings, size_bytes
        self.clock = ManualClock(forge.NOW_MS)

    def blobs(self) -> CachedBlobs:
        return CachedBlobs(self.below, CacheSettings(str(self.root), self.size_bytes), clock=self.clock, counters=Counters())

    def create(self, shape: str = "value") -> Store:
        return forge.with_table(TABLES[shape], self.blobs(), self.settings)

    def process(self) -> Store:
        """Another process: what it finds open or verified is its own."""
        return forge.reopen(self.blobs(), self.settings, self.clock)

    @property
    def read_bytes(self) -> int:
        return self.counters.get(TIER_READ_BYTES, "object")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "cache")


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Large runs are small ones where the limits are smaller."""
    if request.param == "large":
        monkeypatch.setattr(cached_run, "SMALL_BYTES", 100)
        monkeypatch.setattr(cached_run, "SEGMENT_BYTES", 7_000)
    return request.param


def columns(shape: str, epoch: int, count: int = COUNT) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = {"k": list(range(count)), "v": [f"{epoch}-{n}" * 3 for n in range(count)]}
    return {**made, SUBKEYS[shape]: [epoch * 1000 + n % 7 for n in range(count)]} if shape in SUBKEYS else made


def looked_up(store: Store, keys: list[int]) -> list[dict[str, Any]]:
    found = store.snapshot().table("t").multi_get(pa.table({"k": keys}))
    return found.rows.to_pylist()


@pytest.mark.parametrize("shape", TABLES)
def test_who_made_runs_reads_nothing_of_them_from_below(machine: Machine, shape: str, size: str) -> None:
    store = machine.create(shape)
    for epoch in range(4):
        forge.write(store, "t", ("put", columns(shape, epoch)))
        assert len(looked_up(store, [3, 500])) == (2 if shape == "value" else 2 * (epoch + 1))
        everything = forge.rows(store, "t")
    assert machine.below.asked == 0
    list(store.compact(full=True))
    assert forge.rows(store, "t") == everything
    other = machine.process()
    assert forge.rows(other, "t") == everything
    assert len(looked_up(other, list(range(0, COUNT, 7)))) == len(looked_up(store, list(range(0, COUNT, 7))))
    assert machine.below.asked == 0, "not by another process of the machine, and not by a compaction"


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["object of the task", "inside the report"])
def test_a_run_that_travels_in_a_report_is_kept_by_the_task_that_made_it(tmp_path: Path, inline_bytes: int) -> None:
    machine = Machine(tmp_path, replace(SETTINGS, inline_bytes=inline_bytes))
    store = machine.create()
    with store.writer("w") as writer:
        epoch = writer.epoch()
        task = epoch.task("op", "0")
        task.write("t", pa.table({"k": [1, 2], "v": ["a", "b"]}))
        epoch.commit([task.finish()])
    assert looked_up(machine.process(), [1, 2]) == [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
    assert machine.below.asked == 0


def test_a_small_run_of_another_machine_is_one_request(machine: Machine, tmp_path: Path) -> None:
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    elsewhere = Machine(tmp_path / "other")
    elsewhere.below = machine.below
    for _ in range(2):
        assert len(looked_up(elsewhere.process(), list(range(COUNT)))) == COUNT
    assert machine.below.asked == 1


def test_of_a_large_run_only_the_chunks_with_the_keys_travel(machine: Machine, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cached_run, "SMALL_BYTES", 100)
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0, 5_000)))
    elsewhere = Machine(tmp_path / "other")
    elsewhere.below = machine.below
    stored = store.head.runs["t"][0].length
    before = machine.read_bytes
    one = elsewhere.process()
    assert looked_up(one, [77]) == [{"k": 77, "v": "0-77" * 3}]
    first = machine.read_bytes - before
    asked = machine.below.asked
    assert 0 < first < stored / 4
    assert looked_up(one, [77]) == looked_up(elsewhere.process(), [77])
    assert machine.below.asked == asked
    assert len(looked_up(one, list(range(5_000)))) == 5_000
    assert machine.read_bytes - before < 1.2 * stored


def test_what_is_used_is_mapped_and_takes_no_memory(machine: Machine, size: str) -> None:
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    for process in (store, machine.process()):
        (source,) = process.open_runs.sources(process.snapshot().manifest, "t")
        reader = source.reader
        batches = reader.fetch(range(len(reader.count)))
        assert reader.mapped and len(batches) > 3
        spans = mapped_spans(machine.root)
        for batch in batches.values():
            for buffer in batch.column("_hash").buffers():
                assert buffer is None or any(start <= buffer.address < end for start, end in spans)


def mapped_spans(root: Path) -> list[tuple[int, int]]:
    lines = [line.split() for line in MAPS.read_text().splitlines() if str(root) in line]
    return [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]


@pytest.mark.parametrize("warm", [True, False], ids=["mapped before", "new process"])
def test_a_damaged_file_of_the_cache_is_not_used(machine: Machine, size: str, warm: bool) -> None:
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    whole, rng = forge.rows(store, "t"), random.Random(1)
    contents = {path: path.read_bytes() for path in files(machine.root)}
    for path, content in contents.items():
        for damage in range(6):
            for each in files(machine.root):
                each.unlink()
            for each, good in contents.items():
                each.write_bytes(good)
            data = bytearray(content)
            if damage == 5:
                data = data[: len(data) // 2]
            else:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            process = machine.process()
            if warm:
                list(process.open_runs.sources(process.head, "t"))
            path.unlink()
            path.write_bytes(data)
            assert forge.rows(process, "t") == whole
    assert machine.below.asked > 0 or (warm and size == "small"), "what was mapped when the file was replaced is good"


def test_damage_below_is_named_and_never_kept(machine: Machine, size: str, tmp_path: Path) -> None:
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    (run,) = store.head.runs["t"]
    whole, rng = machine.below.get(run.object).to_pybytes(), random.Random(1)
    elsewhere = Machine(tmp_path / "other")
    elsewhere.below = machine.below
    for _ in range(20):
        data = bytearray(whole)
        data[rng.randrange(len(data) - 200)] ^= 1 << rng.randrange(8)
        machine.below.put(run.object, bytes(data))
        elsewhere.root = tmp_path / f"other-{rng.random()}"
        try:
            rows = forge.rows(elsewhere.process(), "t")
        except Corrupt as error:
            assert error.file == run.object
            machine.below.put(run.object, whole)
        else:
            assert rows == forge.rows(store, "t"), "the damage is where nothing is read"
        assert forge.rows(elsewhere.process(), "t") == forge.rows(store, "t")


def test_every_process_drops_what_its_manifest_no_longer_names(machine: Machine, size: str) -> None:
    store = machine.create()
    for epoch in range(3):
        forge.write(store, "t", ("put", columns("value", epoch)))
    other = machine.process()
    whole = forge.rows(other, "t")
    # The files of three runs, and then those of one that is not larger.
    before = len(files(machine.root))
    list(machine.process().compact(full=True))
    assert len(files(machine.root)) > before
    assert forge.rows(other, "t") == whole
    assert 0 < len(files(machine.root)) <= before // 3 + 1
    asked = machine.below.asked
    assert forge.rows(machine.process(), "t") == whole
    assert machine.below.asked == asked


def test_what_a_snapshot_of_this_process_reads_stays(machine: Machine) -> None:
    store = machine.create()
    for epoch in range(3):
        forge.write(store, "t", ("put", columns("value", epoch)))
    with store.snapshot(pinned=True) as snapshot:
        before = files(machine.root)
        list(store.compact(full=True))
        store.snapshot()
        assert set(before) <= set(files(machine.root))
        assert snapshot.table("t").count() == COUNT
    del snapshot
    forge.write(store, "t", ("put", columns("value", 4)))
    store.snapshot()
    assert not set(before) & set(files(machine.root))


@pytest.mark.skipif(not MAPS.exists(), reason="needs a list of what is mapped")
def test_what_was_evicted_is_not_mapped_for_long(machine: Machine, size: str) -> None:
    """Else its room on disk would stay taken, and nobody would count it."""
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    process = machine.process()
    whole = forge.rows(process, "t")
    assert mapped_spans(machine.root)
    for path in files(machine.root):
        path.unlink()
    process.unmap()
    assert mapped_spans(machine.root), "looked at every ten seconds only"
    machine.clock.advance_ms(TOUCH_NS // 1_000_000)
    process.unmap()
    assert not mapped_spans(machine.root)
    assert forge.rows(process, "t") == whole


def test_what_is_used_where_it_is_mapped_is_not_evicted_first(machine: Machine) -> None:
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    process = machine.process()
    looked_up(process, [1])
    (path,) = files(machine.root)
    for _ in range(3):
        machine.clock.advance_ms(TOUCH_NS // 1_000_000)
        looked_up(process, [1])
        process.unmap()
    assert path.stat().st_mtime_ns >= machine.clock.now_ms() * 1_000_000 - TOUCH_NS


def test_a_cache_smaller_than_a_run_makes_nothing_fail(tmp_path: Path, size: str) -> None:
    for size_bytes in (1, 40_000, 60_000):
        machine = Machine(tmp_path / str(size_bytes), size_bytes=size_bytes)
        store = machine.create()
        for epoch in range(3):
            forge.write(store, "t", ("put", columns("value", epoch)))
        for process in (store, machine.process()):
            assert {row["k"]: row["v"] for row in forge.rows(process, "t")} == {n: f"2-{n}" * 3 for n in range(COUNT)}
        list(machine.process().compact(full=True))
        assert len(forge.rows(store, "t")) == COUNT


def test_a_cache_that_may_not_be_mapped_is_read_as_it_is_stored(tmp_path: Path) -> None:
    below = ReadsOfRuns("memory://below", Counters())
    settings = CacheSettings(str(tmp_path), 1 << 20)

    def blobs() -> CachedBlobs:
        return CachedBlobs(below, settings, mapped=False, clock=ManualClock(), counters=Counters())

    store = forge.with_table(TABLES["value"], blobs(), SETTINGS)
    forge.write(store, "t", ("put", columns("value", 0)))
    whole = forge.rows(store, "t")
    asked = below.asked
    assert asked > 0 and blobs().derived is None
    assert forge.rows(forge.reopen(blobs(), SETTINGS), "t") == whole
    assert below.asked == asked


def test_a_cache_in_memory_above_one_on_disk_has_what_that_has(tmp_path: Path) -> None:
    below = ReadsOfRuns("memory://below", Counters())

    def blobs(top: str) -> CachedBlobs:
        disk = CachedBlobs(below, CacheSettings(str(tmp_path / "disk"), 8 << 20), clock=ManualClock(), counters=Counters())
        return CachedBlobs(
            disk, CacheSettings(str(tmp_path / top), 8 << 20), tier="tmpfs", clock=ManualClock(), counters=Counters()
        )

    store = forge.with_table(TABLES["value"], blobs("one"), SETTINGS)
    forge.write(store, "t", ("put", columns("value", 0)))
    whole = forge.rows(store, "t")
    assert files(tmp_path / "disk") and files(tmp_path / "one")
    assert forge.rows(forge.reopen(blobs("two"), SETTINGS), "t") == whole
    assert files(tmp_path / "two") and below.asked == 0


def test_chunks_pack_and_unpack() -> None:
    rng = np.random.default_rng(1)
    for count in range(5):
        sections = [pa.py_buffer(rng.bytes(int(size))) for size in rng.integers(0, 200, count)]
        data = packed(sections)
        assert [each.to_pybytes() for each in unpacked(data)] == [each.to_pybytes() for each in sections]
        assert all((each.address - data.address) % ALIGNMENT == 0 for each in unpacked(data) if each.size)
    for wrong in (b"", b"x" * 15, b"\xff" * 64, bytes([5]) + bytes(40)):
        with pytest.raises(ValueError):
            unpacked(pa.py_buffer(wrong))


@pytest.mark.skipif(not MAPS.exists(), reason="needs a list of what is mapped")
def test_no_byte_that_a_compaction_holds_lies_in_a_file_of_the_cache(machine: Machine, size: str) -> None:
    """Where it could change between its check and its use."""
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    process = machine.process()
    asked = machine.below.asked
    for source in process.open_runs.afresh().sources(process.head, "t"):
        batches = source.reader.fetch(range(len(source.reader.count)))
        assert len(batches) > 3 and not mapped_spans(machine.root)
    assert machine.below.asked == asked, "it is verified, and so need not be fetched"
