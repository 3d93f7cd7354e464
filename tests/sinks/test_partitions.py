"""Parquet files in folders by the values of some columns."""

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.sinks.files import LocalFiles, ParquetSink
from floodplain.sinks.partitions import NOTHING
from floodplain.sinks.registry import open_sink
from floodplain.tiers import paths
from tests.sinks.staging import APP, crash_points, memory_blobs, stage

SCHEMA = pa.schema([("day", pa.date32()), ("place", pa.string()), ("hot", pa.bool_()), ("shelf", pa.int32()), ("n", pa.int64())])
BY = ["day", "place", "hot", "shelf"]
PLACES = ["a", "a/b:c=d%", "../ä b", "", None, "1"]


def rows(epoch: int, count: int = 24) -> pa.Table:
    return pa.table(
        {
            "day": [date(2026, 11, 1 + number % 2) for number in range(count)],
            "place": [PLACES[number % len(PLACES)] for number in range(count)],
            "hot": [number % 2 == 0 for number in range(count)],
            "shelf": [None if number % 6 == 5 else number % 3 for number in range(count)],
            "n": [epoch * 1000 + number for number in range(count)],
        },
        schema=SCHEMA,
    )


def prepared(out: Path, committed: int, by: Any = BY) -> ParquetSink:
    sink = open_sink("parquet", {"path": out, "partition_by": by})
    sink.prepare(APP, committed, SCHEMA)
    return sink


def publish(sink: ParquetSink, epoch: int) -> None:
    blobs = memory_blobs()
    sink.publish(epoch, stage(blobs, epoch, rows(epoch), rows(epoch).slice(3, 9)), blobs, SCHEMA)


def read(out: Path) -> list[str]:
    """As others read it."""
    names = pa.schema([SCHEMA.field(name) for name in BY])
    whole = ds.dataset(out, format="parquet", schema=SCHEMA, partitioning=ds.partitioning(names, flavor="hive")).to_table()
    return sorted(map(str, whole.to_pylist()))


def expected(*epochs: int) -> list[str]:
    made = [row for epoch in epochs for table in (rows(epoch), rows(epoch).slice(3, 9)) for row in table.to_pylist()]
    return sorted(str({**row, "place": row["place"] or None}) for row in made)


def test_folders_tell_the_values_and_others_read_them_back(tmp_path):
    publish(prepared(tmp_path / "out", 0), 1)
    assert read(tmp_path / "out") == expected(1)
    folders = {str(path.parent.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet")}
    assert "day=2026-11-02/place=a%2Fb%3Ac%3Dd%25/hot=false/shelf=1" in folders
    assert "day=2026-11-01/place=..%2Fä b/hot=true/shelf=2" in folders
    assert f"day=2026-11-02/place={NOTHING}/hot=false/shelf=0" in folders, "the empty text"
    assert f"day=2026-11-02/place=1/hot=false/shelf={NOTHING}" in folders
    assert {path.name for path in (tmp_path / "out").rglob("*.parquet")} == {paths.published(1, n, APP) for n in (0, 1)}


def test_publishing_twice_gives_the_same_files(tmp_path):
    publish(prepared(tmp_path / "out", 0), 1)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.parquet")}
    publish(prepared(tmp_path / "out", 1), 1)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    with pytest.raises(BadInput, match="has epoch 1 of this state, which is at epoch 0"):
        prepared(tmp_path / "out", 0)


def test_a_crash_between_any_two_steps_loses_and_repeats_nothing(tmp_path, monkeypatch):
    out, by = tmp_path / "out", ["hot"]
    steps = [(Path, "replace"), (Path, "unlink"), (LocalFiles, "sync")]
    crashes = []
    for epoch, where in crash_points(steps, monkeypatch, lambda epoch: publish(prepared(out, epoch, by), epoch)):
        crashes.append(where)
        publish(prepared(out, epoch, by), epoch)
        found = ds.dataset(out, partitioning="hive").to_table(columns=["n"]).column("n").to_pylist()
        wanted = [row["n"] for e in range(1, epoch + 1) for table in (rows(e), rows(e).slice(3, 9)) for row in table.to_pylist()]
        assert sorted(found) == sorted(wanted), where
        assert not list(out.rglob(".*")), where
    assert len(crashes) >= 20, crashes


@pytest.mark.parametrize(
    ("by", "kind", "said"),
    [
        (["nobody"], BadInput, "partition_by: there is no column nobody; there are: day, place, hot, shelf, n"),
        (SCHEMA.names, BadInput, "has all columns, so the files would have none"),
        (["n", "n"], BadInput, "names of columns, each once"),
    ],
)
def test_columns_that_cannot_be_folders_are_refused(tmp_path, by, kind, said):
    with pytest.raises(kind, match=said):
        prepared(tmp_path / "out", 0, by)
    assert not (tmp_path / "out").exists()


def test_types_and_places_that_have_no_folders_are_refused(tmp_path):
    sink = ParquetSink(tmp_path / "out", partition_by="at")
    with pytest.raises(SchemaMismatch, match=r"at is timestamp.* and folders are named by text.*cast\(at as string\)"):
        sink.prepare(APP, 0, pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())]))
    with pytest.raises(BadInput, match="partition_by is supported in local directories only"):
        ParquetSink("memory://out", partition_by="n")
