"""Runs that were replaced are unmapped once nobody reads them: a deleted file takes room for as long as it is mapped."""

import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.settings import RetentionSettings, StoreSettings
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store, Writer
from floodplain.tiers import paths

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")

TABLE = value_table("t", {"k": pa.int64()}, {"v": pa.int64()})
SETTINGS = StoreSettings(key_groups=4, retention=RetentionSettings(newest=1, every_ms=()), sync=False)
ROWS = 20_000


def mapped(root: Path) -> set[str]:
    """Run objects that this process has mapped; those that are deleted have a word behind their names."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.partition(f"{root}/")[2] for line in lines if f"{root}/{paths.RUNS}" in line}


def opened(root: Path) -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:
            continue
    return [name for name in found if name.startswith(str(root))]


def put(writer: Writer, number: int) -> None:
    writer.put("t", pa.table({"k": range(ROWS), "v": [number] * ROWS}))


def written(root: Path) -> Writer:
    writer = Store.open(root, create=True, settings=SETTINGS).writer("w")
    writer.define(TABLE)
    put(writer, 0)
    return writer


def replace_all(writer: Writer, number: int) -> None:
    put(writer, number)
    list(writer.store.compact(full=True))
    writer.collect_garbage()


def test_a_process_that_only_reads_maps_what_the_newest_epoch_needs(tmp_path: Path) -> None:
    root = tmp_path / "state"
    writer, reader = written(root), Store.open(root, settings=SETTINGS)
    for number in range(1, 8):
        replace_all(writer, number)
        snapshot = reader.snapshot()
        assert set(snapshot.table("t").to_arrow().column("v").to_pylist()) == {number}
        del snapshot
        assert mapped(root) <= {*reader.head.objects(), *writer.store.head.objects()}
        assert not opened(root)


def test_the_writer_maps_what_the_newest_epoch_needs(tmp_path: Path) -> None:
    root = tmp_path / "state"
    writer = written(root)
    for number in range(1, 8):
        put(writer, number)
        assert writer.store.snapshot().table("t").count() == ROWS
        list(writer.store.compact(full=True))
        writer.store.unmap()
        assert mapped(root) <= writer.store.head.objects()
    assert not opened(root)


@pytest.mark.parametrize("holding", ["snapshot", "table", "scan"])
def test_what_is_held_stays_readable_and_goes_when_it_is_let_go(tmp_path: Path, holding: str) -> None:
    root = tmp_path / "state"
    writer, reader = written(root), Store.open(root, settings=SETTINGS)
    snapshot = reader.snapshot()
    table = snapshot.table("t")
    old = snapshot.manifest.objects()
    assert table.count() == ROWS
    scan = table.scan()
    held = {"snapshot": snapshot, "table": table, "scan": scan}[holding]
    del snapshot, table, scan
    for number in range(1, 4):
        replace_all(writer, number)
        assert reader.snapshot().table("t").count() == ROWS
    gone = {f"{name} (deleted)" for name in old}
    assert gone <= mapped(root)
    del held
    replace_all(writer, 9)
    assert reader.snapshot().table("t").count() == ROWS
    assert not gone & mapped(root)
