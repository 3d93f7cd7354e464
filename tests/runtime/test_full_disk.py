"""A full disk, at every single write of a pipeline's life: clear errors, nothing half done is used, and it goes on with room."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import floodplain as fp
from floodplain.cli.main import app
from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import NoSpace
from floodplain.operators.kernel.spill import Spill
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Input, Outlet, Plan
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.settings import RetentionSettings, RetrySettings, StoreSettings
from floodplain.sinks.files import LocalFiles, ParquetSink
from floodplain.store.store import Store
from floodplain.testing.local_engine import LocalEngine
from floodplain.tiers import paths
from floodplain.tiers.files import reserve
from floodplain.versions.log import lease
from floodplain.versions.log.commit import commit
from floodplain.versions.log.renewal import Renewal
from floodplain.versions.records.edit import AdvanceHorizon, DropEpochs, SourcePosition
from tests.formats.small_state import Described
from tests.full_disk import FullDisk
from tests.waiting import wait_for

COLUMNS = pa.schema({"user": pa.string(), "amount": pa.int64(), "at": pa.timestamp("us", "UTC")})
BATCHES = 2
SETTINGS = StoreSettings(
    key_groups=4,
    checkpoint_every=2,
    inline_bytes=0,
    lease_ms=1000,
    retention=RetentionSettings(newest=1, every_ms=()),
    retry=RetrySettings(attempts=2, first_delay_ms=1, max_delay_ms=1),
)


class Totals(fp.KeyedProcess):
    total = fp.Value("long", default=0)
    notes = fp.List("string")
    output = "user string, total long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.total.set(self.total.get() + row.amount)
        self.notes.append(f"{len(rows)}")
        yield key.user, self.total.get()


def rows_of(batch: int, filler: int = 0) -> pa.Table:
    users = [f"{'x' * filler}{batch % 2}{n}" for n in range(6)]
    return pa.table({"user": users, "amount": [batch * 10 + n for n in range(6)], "at": [batch * 1000] * 6}, schema=COLUMNS)


class Driver:
    """Epochs on a directory, published as files, with tasks in this process."""

    def __init__(self, root: Path, clock: ManualClock, settings: StoreSettings = SETTINGS) -> None:
        options = {"settings": settings, "clock": clock, "randomness": SeededRandomness(int(clock.now_ms()))}
        self.store = Store.open(root / "state", create=True, **options)
        stream = Stream(None, {"": Described()}, Input(), {})
        output = stream.key_by("user").process(Totals(), name="totals").write("parquet", path=str(root / "out"))
        plan = Plan([Outlet("output", output.outlets[0].node, ParquetSink(root / "out"))], None, None)
        self.writer = self.store.writer("driver", force=True)
        place = StateLocation(self.store, self.writer, str(root / "state"), settings, {}, self.store.history.blobs)
        self.epochs = EpochRunner(place, plan, LocalEngine([], plan), 2)
        self.epochs.prepare({"": COLUMNS.empty_table()})

    @property
    def next_batch(self) -> int:
        return self.store.head.source.batch_id + 1

    def batch(self, number: int, filler: int = 0) -> None:
        self.epochs.publisher.publish()
        position = SourcePosition("q", number, f"v1\n{{}}\n{number}")
        self.epochs.run({"": rows_of(number, filler)}, position, 1_000_000 + number, 0)

    def tend(self) -> None:
        list(self.store.compact(full=True))
        self.store.collect_garbage()
        self.epochs.publisher.sweep_staged()

    def close(self) -> None:
        self.epochs.close()
        self.store.close()


def life(root: Path, clock: ManualClock) -> None:
    """From wherever it is to the end of the input: epochs, renewals, compactions, collections."""
    driver = Driver(root, clock)
    while (number := driver.next_batch) < BATCHES:
        driver.batch(number)
        clock.advance_ms(5000)
        lease.renew(driver.store.history, driver.writer.token)
    driver.tend()
    driver.writer.collect_garbage()
    driver.close()


def outcome(root: Path) -> dict[str, Any]:
    """All that a reader sees: of the state, and of what is published. Files by the epoch in their names."""
    store = Store.open(root / "state")
    tables = {name: store.snapshot().table(name).to_arrow().to_pylist() for name in store.head.schemas}
    published: dict[str, list[str]] = {}
    for file in sorted((root / "out").glob("epoch-*.parquet")):
        published.setdefault(file.name.split("-")[1], []).extend(map(repr, pq.read_table(file).to_pylist()))
    assert store.verify().good
    return {
        "tables": {name: sorted(map(repr, rows)) for name, rows in tables.items()},
        "published": {epoch: sorted(rows) for epoch, rows in published.items()},
        "batch": store.head.source.batch_id,
    }


def left_over(root: Path) -> list[str]:
    temps = [path.name for path in (root / "state" / "tmp").iterdir() if path.name != reserve.NAME]
    return temps + [path.name for path in (root / "out").glob(".*")]


def kinds(calls: list[str]) -> list[int]:
    """The first and the last call of each kind: what is done, to which file but for numbers and random parts in its name."""
    found: dict[str, list[int]] = {}
    for at, call in enumerate(calls):
        found.setdefault(re.sub(r"[0-9a-f]{16,}|[0-9]+", "#", call), []).append(at)
    return sorted({at for places in found.values() for at in (places[0], places[-1])})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """How it ends, and the calls on the way there."""
    root = tmp_path_factory.mktemp("run")
    with FullDisk(root).mounted() as disk:
        life(root, ManualClock(1_000_000))
    return outcome(root), [call.replace(f"{root}", "") for call in disk.calls]


def check(root: Path, expected: dict[str, Any], disk: FullDisk) -> None:
    clock = ManualClock(1_000_000)
    with disk.mounted():
        try:
            life(root, clock)
        except NoSpace as error:
            told = str(error)
            assert f"{root}" in told and "floodplain gc" in told and os.strerror(disk.number) in told, told
        disk.room = True
        assert disk.failed, "that call was not reached"
        clock.advance_ms(60_000)
        life(root, clock)
    assert outcome(root) == expected, f"{disk.calls[disk.first or 0]} failed"
    assert left_over(root) == []
    shutil.rmtree(root)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("once", [False, True], ids=["until there is room", "once"])
def test_full_at_each_kind_of_write(tmp_path, undisturbed, once, half):
    """The error names place and way out; with room again the next start ends where an undisturbed run does."""
    expected, calls = undisturbed
    for first in kinds(calls)[half :: 4 if once else 2]:
        number = errno.EDQUOT if first % 5 == 0 else errno.ENOSPC
        check(tmp_path / f"{first}", expected, FullDisk(tmp_path / f"{first}", first=first, once=once, number=number))


@pytest.mark.soak
@pytest.mark.parametrize("once", [False, True], ids=["until there is room", "once"])
def test_full_at_every_write(tmp_path, undisturbed, once):
    expected, calls = undisturbed
    for first in range(len(calls)):
        check(tmp_path / f"{first}", expected, FullDisk(tmp_path / f"{first}", first=first, once=once))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"this machine does not let tests mount a file system: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


ROOM_BYTES = 6 << 20
KEEPING = StoreSettings(key_groups=4, reserve_bytes=1 << 20, retention=RetentionSettings(newest=1000))
FILLER = 20_000


def fill(root: Path, clock: ManualClock, settings: StoreSettings) -> int:
    """Epochs until the disk is full; how many are in the state."""
    driver = Driver(root, clock, settings)
    with pytest.raises(NoSpace, match="floodplain gc"):
        while True:
            driver.batch(driver.next_batch, FILLER)
            list(driver.store.compact(full=True))
            clock.advance_ms(5000)
    driver.store.close()  # what is mapped takes room after it is deleted
    return driver.next_batch


@pytest.mark.parametrize("way", ["floodplain gc", "start"])
def test_a_disk_that_is_really_full_frees_itself(small_disk, way):
    """Old epochs take all of it. Letting go of them begins with an edit, for which room was set aside."""
    clock = ManualClock(1_000_000)
    done = fill(small_disk, clock, KEEPING)
    assert done > 3 and (small_disk / "state" / "tmp" / reserve.NAME).exists()
    with (small_disk / "rest").open("wb", buffering=0) as rest, pytest.raises(OSError, match="No space"):
        while True:  # not a byte is left
            rest.write(bytes(512))
    clock.advance_ms(600_000)
    if way == "floodplain gc":
        found = CliRunner().invoke(app, ["gc", str(small_disk / "state"), "--newest", "1", "--keep", "0s/1s"])
        assert found.exit_code == 0, found.output
        settings = KEEPING
    else:
        settings = replace(KEEPING, retention=RetentionSettings(newest=1, every_ms=()))
    driver = Driver(small_disk, clock, settings)
    assert driver.next_batch == done
    driver.batch(done, FILLER)
    driver.close()
    assert (small_disk / "state" / "tmp" / reserve.NAME).exists(), "for the next time"
    (small_disk / "rest").unlink()
    found = Store.open(small_disk / "state").snapshot().table("totals").to_arrow()
    totals: dict[str, int] = {}
    for number in range(done + 1):
        for row in rows_of(number, FILLER).to_pylist():
            totals[row["user"]] = totals.get(row["user"], 0) + row["amount"]
    assert {row["user"]: row["total"] for row in found.to_pylist()} == totals


def test_what_attempts_that_did_not_count_have_staged_goes_before_anything_is_written(small_disk):
    """A start has room to take the lease; all else comes after."""
    clock = ManualClock(1_000_000)
    driver = Driver(small_disk, clock, KEEPING)
    driver.batch(0)
    driver.close()
    blobs, dead = driver.store.history.blobs, [paths.staged(9, "1-2-dead", "totals", "main", f"{n}") for n in range(100_000)]
    with pytest.raises(NoSpace):
        for name in dead:
            blobs.create(name, bytes(100_000))
    with pytest.raises(NoSpace):
        for name in reversed(dead):
            blobs.create(name, b"x")
    clock.advance_ms(60_000)
    driver = Driver(small_disk, clock, KEEPING)
    assert not set(dead).intersection(info.name for info in blobs.list(paths.STAGED))
    driver.batch(1)
    driver.tend()
    driver.close()
    assert (small_disk / "state" / "tmp" / reserve.NAME).exists(), "for the next time"


def test_what_is_garbage_already_goes_without_a_write(tmp_path):
    """A collection that was cut short after its edit: what it was to delete is deleted on a disk with no room at all."""
    clock = ManualClock(1_000_000)
    driver = Driver(tmp_path, clock)
    for number in range(4):
        driver.batch(number)
        list(driver.store.compact(full=True))
    history = driver.store.history
    runs = {info.name for info in history.blobs.list(paths.RUNS)}
    updates = [DropEpochs(tuple(mark.epoch for mark in history.head.epochs[:-1])), AdvanceHorizon(history.head.position)]
    commit(history, updates, token=driver.writer.token)
    history.blobs.give_up_reserve()
    with FullDisk(tmp_path, first=0).mounted(), pytest.raises(NoSpace):
        driver.store.collect_garbage()
    needed = history.head.objects().union(*(history.manifest_at(mark).objects() for mark in history.head.epochs))
    left = {info.name for info in history.blobs.list(paths.RUNS)}
    assert left == needed < runs


def test_a_sink_leaves_no_half_written_file(tmp_path):
    """One that is copied or cut into partitions is written anew, and takes room until it is deleted."""
    data = pa.py_buffer(bytes(10_000))
    with FullDisk(tmp_path).mounted() as counted:
        LocalFiles(tmp_path / "counted").write("day=1/epoch-1.parquet", data)
    assert "fsync" in {call.split()[0] for call in counted.calls}
    for first in range(len(counted.calls)):
        root = tmp_path / f"{first}"
        with FullDisk(root, first=first).mounted() as disk:
            with pytest.raises(NoSpace, match=f"publishing {root}"):
                LocalFiles(root).write("day=1/epoch-1.parquet", data)
                LocalFiles(root).write("day=1/epoch-2.parquet", data)
            assert [path for path in root.rglob("*") if path.is_file() and path.name.startswith(".")] == []
            disk.room = True
            LocalFiles(root).write("day=1/epoch-1.parquet", data)
        assert (root / "day=1" / "epoch-1.parquet").read_bytes() == bytes(10_000)


def test_rows_that_wait_on_a_full_disk(small_disk):
    """Those of an epoch that is larger than memory. The folder is named, and nothing stays in it."""
    users = np.arange(2_000_000)
    rows = pa.table({"user": users}).to_batches(max_chunksize=10_000)
    spill = Spill(1 << 20, small_disk, 16, ["user"])
    with pytest.raises(NoSpace, match=f"spilling rows of the epoch to {small_disk}"):
        list(spill.buckets(rows, pa.schema({"user": pa.int64()}), ((0, 16),)))
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def test_a_lease_is_renewed_once_there_is_room(tmp_path):
    """Not being able to write does not end the query by itself: nobody else has taken the lease."""
    clock = ManualClock(1_000_000)
    driver = Driver(tmp_path, clock)
    lost: list[Exception] = []
    token, history = driver.writer.token, driver.store.history
    renewal = Renewal(history, token, lambda: True, lost.append)
    clock.advance_ms(900)
    with FullDisk(tmp_path, first=0).mounted() as disk:
        renewal.start()
        wait_for("a renewal that fails", lambda: disk.failed)
        disk.room = True
        wait_for("a renewal", lambda: history.refresh().lease.expires_ms > 1_001_500)
        renewal.stop()
    assert not lost
    driver.batch(0)
