"""A state folder from elsewhere: each kind of thing that is no file, at each place, whatever is done with the store.

Nothing blocks, nothing is read into memory because a size says so, and what a link leads to is as it was.
"""

import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Corrupt, FloodplainError, Refused
from floodplain.metrics import Counters
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.tiers.files.plain import check_tree
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.retention.pins import pin
from tests.store import forge

TABLE = value_table("t", {"user": pa.string()}, {"n": pa.int64()})
FOLDERS = ["log", "manifest", "runs", "staged", "pins", "probe", "tmp"]
OBJECTS = ["format", "log", "manifest", "runs", "pins"]


def blobs_at(root: Path) -> DirectoryBlobs:
    return DirectoryBlobs(root, sync=False, randomness=SeededRandomness(11), counters=Counters())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two epochs, a manifest checkpoint and a pin; each of its folders is there."""
    root = tmp_path / "state"
    store = forge.with_table(TABLE, blobs_at(root))
    for number in (1, 2):
        forge.write(store, "t", ("put", {"user": ["a"], "n": [number]}))
    store.history.settings = replace(forge.SETTINGS, checkpoint_every=1)
    assert maybe_checkpoint(store.history)
    pin(store.history)
    for folder in FOLDERS:
        (root / folder).mkdir(exist_ok=True)
    return root


def link(place: Path, outside: Path) -> None:
    """To a copy of what was there, so that all would work if it were followed."""
    place.symlink_to(outside)


def dangling_link(place: Path, outside: Path) -> None:
    place.symlink_to(outside.with_name("nothing"))


def loop(place: Path, _: Path) -> None:
    place.symlink_to(place)


def pipe(place: Path, _: Path) -> None:
    os.mkfifo(place)


def plug(place: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(place.parent)  # a path of a socket is short
        try:
            bound.bind(place.name)
        finally:
            os.chdir(here)


def device(place: Path, _: Path) -> None:
    try:
        os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except OSError:
        pytest.skip("devices cannot be made here")


KINDS: list[Callable[[Path, Path], None]] = [link, dangling_link, loop, pipe, plug, device]


def everything(root: Path) -> Iterator[Callable[[], object]]:
    """What is done with a store, each as a process of its own would begin it."""
    yield lambda: forge.reopen(blobs_at(root)).snapshot().table("t").to_arrow()
    yield lambda: forge.write(forge.reopen(blobs_at(root)), "t", ("put", {"user": ["b"], "n": [1]}))
    yield lambda: [*forge.reopen(blobs_at(root)).compact(full=True)]
    yield lambda: forge.reopen(blobs_at(root)).verify()
    yield lambda: collect(forge.reopen(blobs_at(root)))
    yield lambda: blobs_at(root).sweep(ManualClock(1 << 50), 0)
    for prefix in ("", *(f"{folder}/" for folder in FOLDERS)):
        yield lambda prefix=prefix: [*blobs_at(root).list(prefix)]
    for folder in FOLDERS[:-1]:
        yield lambda folder=folder: blobs_at(root).get(f"{folder}/kept")
        yield lambda folder=folder: blobs_at(root).map(f"{folder}/kept")
        yield lambda folder=folder: blobs_at(root).size(f"{folder}/kept")
        yield lambda folder=folder: blobs_at(root).forget([f"{folder}/kept"])
        yield lambda folder=folder: blobs_at(root).create(f"{folder}/other", b"x")
        yield lambda folder=folder: blobs_at(root).put(f"{folder}/kept", b"x")
        yield lambda folder=folder: blobs_at(root).delete([f"{folder}/kept"])


def collect(store: Store) -> None:
    store.history.clock.advance_ms(10**12)
    store.collect_garbage()


def use(root: Path) -> None:
    store = forge.reopen(blobs_at(root))
    store.snapshot().table("t").to_arrow()
    collect(store)


def refusals(root: Path) -> int:
    """How many of these end in a Floodplain error; any other propagates."""
    found = 0
    for act in everything(root):
        try:
            act()
        except FloodplainError:
            found += 1
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_that_is_none(root: Path, tmp_path: Path, folder: str, kind: Callable[[Path, Path], None]) -> None:
    outside = tmp_path / "outside"
    (root / folder).rename(outside)
    (outside / "kept").write_bytes(b"kept")
    os.utime(outside / "kept", (0, 0))
    kind(root / folder, outside)
    before, mode = content(outside), (root / folder).lstat().st_mode
    assert refusals(root)
    with pytest.raises(Refused, match=rf"{folder} is (a symbolic link|a named pipe|a socket|a device)"):
        [*blobs_at(root).list(f"{folder}/")]
    assert content(outside) == before
    assert (root / folder).lstat().st_mode == mode


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", OBJECTS)
def test_an_object_that_is_none(root: Path, tmp_path: Path, place: str, kind: Callable[[Path, Path], None]) -> None:
    path = root / place if place == "format" else sorted((root / place).iterdir())[-1]
    name = str(path.relative_to(root))
    outside = tmp_path / "outside"
    outside.mkdir()
    path.rename(outside / "moved")
    kind(path, outside / "moved")
    before = content(outside)
    assert refusals(root)
    for act in (blobs_at(root).get, blobs_at(root).map, blobs_at(root).size, lambda name: [*blobs_at(root).list(name)]):
        with pytest.raises(Refused, match="holds plain files and folders only"):
            act(name)
    assert content(outside) == before


def test_the_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    store = forge.reopen(blobs_at(tmp_path / "link"))
    forge.write(store, "t", ("put", {"user": ["a"], "n": [3]}))
    assert forge.rows(store, "t") == [{"user": "a", "n": 3}]


def test_a_link_in_tmp_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    os.utime(tmp_path / "mine" / "file", (0, 0))
    (root / "tmp" / "a").symlink_to(tmp_path / "mine")
    (root / "tmp" / "b").symlink_to(tmp_path / "mine" / "file")
    (root / "tmp" / "folder").mkdir()
    (root / "tmp" / "left").write_text("left")
    os.utime(root / "tmp" / "left", (0, 0))
    assert blobs_at(root).sweep(ManualClock(1 << 50), 0) == 1
    assert content(tmp_path / "mine") == {"file": b"mine"}


@pytest.mark.parametrize("size", [100 << 20, 3 << 30, 1 << 40])
@pytest.mark.parametrize("place", OBJECTS)
def test_an_object_that_claims_gigabytes(root: Path, place: str, size: int) -> None:
    """Longer than it says it is, and made up of holes: refused without reading it."""
    path = root / place if place == "format" else sorted((root / place).iterdir())[-1]
    os.truncate(path, size)
    for other in (root / {"log": "manifest", "manifest": "log"}.get(place, "staged")).iterdir():
        other.unlink()  # else one of them would stand in for the other
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Corrupt, match=path.name):
        use(root)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


def test_an_edit_of_nothing_but_holes_at_the_end_of_the_log(root: Path) -> None:
    head = forge.reopen(blobs_at(root)).head
    path = root / paths.log(head.position + 1)
    path.touch()
    os.truncate(path, 50 << 30)
    with pytest.raises(Corrupt, match=path.name):
        forge.reopen(blobs_at(root))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [".", "sources", "sources/0", "metadata", "offsets/0", "commits"])
def test_a_checkpoint_that_leads_elsewhere(tmp_path: Path, place: str, kind: Callable[[Path, Path], None]) -> None:
    """Spark's own, beside the store: it is cleared and written anew when it does not fit."""
    checkpoint, outside = tmp_path / "checkpoint", tmp_path / "outside"
    (outside / "offsets").mkdir(parents=True)
    (checkpoint / place).parent.mkdir(parents=True, exist_ok=True)
    kind(checkpoint / place if place != "." else checkpoint, outside)
    with pytest.raises(Refused, match="holds plain files and folders only"):
        check_tree(checkpoint, 1 << 30)


def test_a_checkpoint_as_spark_writes_it(tmp_path: Path) -> None:
    check_tree(tmp_path / "checkpoint", 100)
    (tmp_path / "checkpoint" / "sources" / "0").mkdir(parents=True)
    for name in ("metadata", ".metadata.crc", "sources/0/0"):
        (tmp_path / "checkpoint" / name).write_text("x" * 100)
    check_tree(tmp_path / "checkpoint", 100)
    with pytest.raises(Refused, match="100 bytes"):
        check_tree(tmp_path / "checkpoint", 99)
