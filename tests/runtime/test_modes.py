"""The permissions of state files: all that is written has them, whatever the umask, and output is not touched by them."""

import itertools
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import BadInput
from floodplain.metrics import Counters
from floodplain.runtime.checkpoint.spark_checkpoint import agree
from floodplain.settings import CacheSettings, RetentionSettings, StoreSettings
from floodplain.sinks.files import ParquetSink
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.files.modes import Modes
from floodplain.tiers.open import open_blobs
from floodplain.versions.records.edit import SourcePosition
from tests.processes import Count
from tests.sinks.sink_kit import SinkKit
from tests.sinks.staging import memory_blobs

MODES = [0o600, 0o640, 0o664, 0o666]
UMASKS = [0o000, 0o022, 0o077]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def found(root: Path) -> tuple[set[str], set[str]]:
    """The permissions of files, and of folders, the root among them."""
    files, folders = set(), set()
    for folder, _, names in os.walk(root):
        folders.add(oct(stat.S_IMODE(os.stat(folder).st_mode)))
        files |= {oct(stat.S_IMODE(os.lstat(Path(folder) / name).st_mode)) for name in names}
    return files, folders


def expected(mode: int) -> tuple[set[str], set[str]]:
    return {oct(mode)}, {oct(mode | (mode & 0o444) >> 2)}


def lived(root: Path, settings: StoreSettings) -> None:
    """A store with all kinds of files that there are."""
    store = Store.open(root, create=True, settings=settings, randomness=SeededRandomness(1))
    with store.writer("test") as writer:
        writer.define(value_table("t", {"k": pa.int64()}, {"v": pa.int64()}))
        for n in range(5):
            writer.put("t", pa.table({"k": range(20), "v": [n] * 20}))
        list(store.compact(full=True))
        store.tag("kept")
        store.history.blobs.put("staged/00000000000000000000/x", b"left")
        writer.collect_garbage()
        store.snapshot(pinned=True)
    store.close()


@pytest.mark.parametrize("mode", MODES, ids=oct)
def test_all_that_a_store_writes_has_the_mode(tmp_path, umask, mode):
    lived(
        tmp_path / "new" / "state",
        StoreSettings(mode=mode, checkpoint_every=4, inline_bytes=0, sync=False, retention=RetentionSettings(1, ())),
    )
    assert found(tmp_path / "new" / "state") == expected(mode)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o777 & ~umask, "what the state is in is not part of it"


def test_without_a_setting_the_umask_rules(tmp_path, umask):
    lived(tmp_path / "state", StoreSettings(checkpoint_every=4, inline_bytes=0, sync=False))
    assert found(tmp_path / "state") == ({oct(0o666 & ~umask)}, {oct(0o777 & ~umask)})


@pytest.mark.parametrize("policy", ["lru", "frequency"])
def test_caches_have_the_mode(tmp_path, umask, policy):
    settings = CacheSettings(str(tmp_path / "cache"), 1 << 20, policy)
    lower = memory_blobs()
    cached = CachedBlobs(lower, settings, modes=Modes(0o640), clock=ManualClock(), counters=Counters())
    lower.put("runs/1", b"abc")
    assert cached.get("runs/1").to_pybytes() == b"abc"
    assert {path.name for path in (tmp_path / "cache").rglob("*")} >= {"lock", "entries", "tmp"}
    assert len(list((tmp_path / "cache" / "entries").iterdir())) == 1
    assert found(tmp_path / "cache") == expected(0o640)


def counts(stream):
    return stream.key_by("user").process(Count()).write("memory")


def test_staged_files_have_the_mode_and_output_that_of_other_files(tmp_path, umask):
    kept = StoreSettings(key_groups=16, mode=0o600, sync=False)
    opened = partial(
        open_blobs, tmp_path / "state", kept, clock=ManualClock(), randomness=SeededRandomness(2), counters=Counters()
    )
    kit = SinkKit(counts, ParquetSink(tmp_path / "out"), rows="user string, amount long", settings=kept, blobs=opened)
    for _ in range(3):
        kit.epoch([{"user": user, "amount": 1} for user in "abcd"])
        assert any((tmp_path / "state").glob("staged*/**/*")), "there are staged files to look at"
        assert found(tmp_path / "state") == expected(0o600)
    assert found(tmp_path / "out") == ({oct(0o666 & ~umask)}, {oct(0o777 & ~umask)})


def test_output_of_the_same_permissions_is_linked(tmp_path):
    settings = StoreSettings(key_groups=16, sync=False)
    opened = partial(
        open_blobs, tmp_path / "state", settings, clock=ManualClock(), randomness=SeededRandomness(2), counters=Counters()
    )
    kit = SinkKit(counts, ParquetSink(tmp_path / "out"), rows="user string, amount long", settings=settings, blobs=opened)
    kit.epoch([{"user": user, "amount": 1} for user in "abcd"])
    assert {path.stat().st_nlink for path in (tmp_path / "out").iterdir()} == {2}


def test_a_checkpoint_that_is_made_anew_has_the_mode(tmp_path, umask):
    offsets = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1000}\n{"topic":{"0":4}}'
    agree(tmp_path / "checkpoint", SourcePosition("q", 4, offsets, {"sources/0/4": "v1\n{}"}), 0)
    Modes(0o640).set_all(tmp_path / "checkpoint")
    assert found(tmp_path / "checkpoint") == expected(0o640)


def test_permissions_of_what_is_there_are_left_alone(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o2755)
    lived(tmp_path / "state", StoreSettings(mode=0o600, sync=False))
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o2755
    below = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir() if path.is_dir()}
    assert below == {0o2700}, "what the file system hands down stays"


NONSENSE = {
    value
    for value in itertools.chain(range(0o1000), (640, 600, 0o1640, 0o4600, -1))
    if value & ~0o666 or value & 0o600 != 0o600 or any(value >> by & 0o6 == 0o2 for by in (0, 3))
}


@pytest.mark.parametrize("mode", [*sorted(NONSENSE)[::17], 640, 0o700, 0o400, 0o620, 0o602, True, "640", 0o640 + 0.5])
def test_nonsense_is_refused(mode):
    with pytest.raises(BadInput, match=r"mode=.*as in StoreSettings"):
        StoreSettings(mode=mode)


def test_every_mode_is_either_refused_or_makes_sense():
    for mode in set(range(0o1000)) - NONSENSE:
        assert StoreSettings(mode=mode).mode == mode
