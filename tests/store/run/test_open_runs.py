"""What a process keeps of the runs that it has open, which must not grow with the epochs that it has seen."""

import weakref
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from floodplain.settings import StoreSettings
from floodplain.store.rows.definition import value_table
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.store import Store, Writer
from floodplain.versions.records.manifest import Manifest


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    writer = Store.open(tmp_path / "state", create=True, settings=StoreSettings(key_groups=4, sync=False)).writer("w")
    writer.define(value_table("t", {"k": pa.int64()}, {"v": pa.int64()}))
    return writer


def written(writer: Writer, number: int) -> Manifest:
    writer.put("t", pa.table({"k": [0, 1, 2, 3], "v": [number] * 4}))
    return writer.store.head


def newest_member(open_runs: OpenRuns, manifest: Manifest) -> "weakref.ref[object]":
    return weakref.ref(open_runs.sources(manifest, "t")[0].member)


def test_nothing_is_kept_of_a_run_that_the_manifest_no_longer_names(writer: Writer) -> None:
    open_runs = writer.store.open_runs
    replaced = newest_member(open_runs, written(writer, 1))
    written(writer, 2)
    list(writer.store.compact(full=True))
    kept = newest_member(open_runs, writer.store.head)
    assert replaced() is not None
    open_runs.unmap(writer.store.head)
    assert replaced() is None
    assert kept() is not None


def test_a_run_is_read_for_the_key_groups_that_each_manifest_names(writer: Writer) -> None:
    """A compaction of some key groups leaves the rest of a run to older and newer manifests alike."""
    open_runs, manifest = writer.store.open_runs, written(writer, 1)
    (ref,) = manifest.runs["t"]
    for groups in (((0, 2),), ((2, 4),), ((0, 2),)):
        (source,) = open_runs.sources_of([replace(ref, groups=groups)], manifest)
        assert source.member.tolist() == [groups[0][0] <= group < groups[0][1] for group in range(4)]
