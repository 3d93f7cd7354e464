"""Room that a directory has set aside: it takes up what it says, is no blob, and whoever needs it gets it."""

import errno
import os
from pathlib import Path

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Refused
from floodplain.metrics import Counters
from floodplain.tiers.files import reserve
from tests.full_disk import FullDisk
from tests.tiers.conftest import directory

SIZE = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def file_of(root: Path) -> Path:
    return root / "tmp" / reserve.NAME


def test_it_takes_up_room_and_is_no_blob(root: Path, counters: Counters) -> None:
    blobs = directory(root, counters)
    blobs.reserve(SIZE)
    assert file_of(root).stat().st_blocks * 512 >= SIZE
    blobs.sweep(ManualClock(10**15), 0)
    assert file_of(root).exists() and [*blobs.list("")] == []
    before = file_of(root).stat().st_ino
    directory(root, counters).reserve(SIZE)
    assert file_of(root).stat().st_ino == before, "there is one already"
    assert directory(root, counters).give_up_reserve() >= SIZE and not blobs.give_up_reserve()
    assert [*(root / "tmp").iterdir()] == []


def test_one_that_only_says_it_is_large_is_none(root: Path, counters: Counters) -> None:
    """As a copy of the folder may have it, without the holes filled."""
    blobs = directory(root, counters)
    blobs.create("log/1", b"")
    with file_of(root).open("wb") as file:
        file.truncate(SIZE)
    blobs.reserve(SIZE)
    assert file_of(root).stat().st_blocks * 512 >= SIZE


def test_where_the_file_system_cannot_set_room_aside_it_is_written(
    root: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*args: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    directory(root, counters).reserve(SIZE)
    assert file_of(root).stat().st_blocks * 512 >= SIZE


def test_none_is_asked_for(root: Path, counters: Counters) -> None:
    directory(root, counters).reserve(0)
    assert not root.exists()


def test_without_room_there_is_none_and_nothing_half_done(root: Path, counters: Counters) -> None:
    directory(root, counters).create("log/1", b"")
    with FullDisk(root).mounted() as counted:
        directory(root, counters).reserve(SIZE)
    directory(root, counters).give_up_reserve()
    for first in range(len(counted.calls)):
        with FullDisk(root, first=first).mounted() as disk:
            directory(root, counters).reserve(SIZE)
        assert disk.failed
        assert not file_of(root).exists() and [*(root / "tmp").iterdir()] == []


def test_a_folder_that_leads_elsewhere_is_left_alone(root: Path, tmp_path: Path, counters: Counters) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / reserve.NAME).write_text("mine")
    root.mkdir()
    (root / "tmp").symlink_to(tmp_path / "elsewhere")
    blobs = directory(root, counters)
    blobs.reserve(SIZE)
    with pytest.raises(Refused):
        blobs.give_up_reserve()
    assert (tmp_path / "elsewhere" / reserve.NAME).read_text() == "mine"
