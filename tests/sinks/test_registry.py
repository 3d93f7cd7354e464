"""Sinks that need nothing beside this process: their options, Parquet files, the console, memory, and files in place."""

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from floodplain.errors import BadInput, Refused
from floodplain.sinks.console import ConsoleSink
from floodplain.sinks.files import LocalFiles, ParquetSink, open_files
from floodplain.sinks.memory import MemorySink
from floodplain.sinks.registry import open_sink
from floodplain.spark.foreach_batch import ForeachBatchSink
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from tests.sinks.staging import APP, SCHEMA, crash_points, local_blobs, memory_blobs, rows, stage


@pytest.fixture(params=["linked", "copied"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return local_blobs(tmp_path / "state") if request.param == "linked" else memory_blobs()


def prepared(path: Any, committed: int = 0, app: str = APP, **options: Any) -> ParquetSink:
    sink = ParquetSink(path, **options)
    sink.prepare(app, committed, SCHEMA)
    return sink


def publish(sink: ParquetSink, epoch: int, blobs: Blobs) -> None:
    sink.publish(epoch, stage(blobs, epoch, rows(epoch, 0), rows(epoch, 1)), blobs, SCHEMA)


def expected(*epochs: int) -> list[Any]:
    return [row for e in epochs for slot in (0, 1) for row in rows(e, slot).to_pylist()]


@pytest.mark.parametrize(
    ("format_", "options", "message"),
    [
        ("csv", {}, r"there is no sink 'csv': use one of parquet, delta, kafka, memory, console, or foreach_batch"),
        ("parquet", {"path": "x", "mode": "append"}, "the sink parquet has no option mode: it takes path, storage_options"),
        ("memory", {"rows": 1}, "the sink memory has no option rows: it takes none"),
        ("kafka", {"topic": "x"}, r"the sink kafka needs servers: write\('kafka', servers=…\)"),
        ("delta", {}, "the sink delta needs path"),
        ("delta", {"path": ""}, r'write\("delta"\) needs a path'),
        ("console", {"rows": -1}, "rows and truncate of 0 or more"),
    ],
)
def test_options_that_do_not_exist_or_are_missing_are_named(format_, options, message):
    with pytest.raises(BadInput, match=message):
        open_sink(format_, options)


@pytest.mark.parametrize(("format_", "module", "extra"), [("delta", "deltalake", "delta"), ("kafka", "confluent_kafka", "kafka")])
def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch, format_, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    options = {"path": "x"} if format_ == "delta" else {"servers": "x", "topic": "x"}
    with pytest.raises(BadInput, match=rf"needs the package {module}: install floodplain\[{extra}\]"):
        open_sink(format_, options)


def test_publishing_twice_gives_the_same_files(tmp_path, blobs):
    sink = prepared(tmp_path / "out")
    publish(sink, 1, blobs)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    publish(sink, 1, blobs)
    publish(prepared(tmp_path / "out", 1), 1, blobs)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(before) == [paths.published(1, number, APP) for number in (0, 1)]
    assert sorted(map(str, pq.read_table(tmp_path / "out").to_pylist())) == sorted(map(str, expected(1)))


def test_a_crash_between_any_two_steps_loses_and_repeats_nothing(tmp_path, blobs, monkeypatch):
    """The steps are those of the file system."""
    out = tmp_path / "out"
    steps = [(Path, "replace"), (Path, "unlink"), (LocalFiles, "sync")]
    crashes = []
    for epoch, where in crash_points(steps, monkeypatch, lambda epoch: publish(prepared(out, epoch), epoch, blobs)):
        crashes.append(where)
        found = ds.dataset(out).to_table().to_pylist() if any(out.glob("*.parquet")) else []
        assert all(row in expected(*range(1, epoch + 1)) for row in found), "a reader sees whole files only"
        publish(prepared(out, epoch), epoch, blobs)
        found = ds.dataset(out).to_table().to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, expected(*range(1, epoch + 1)))), where
        assert not list(out.glob(".*")), where
    assert len(crashes) >= 14, crashes


def test_states_keep_apart_and_one_that_was_rolled_back_is_refused(tmp_path, blobs):
    publish(prepared(tmp_path / "out"), 5, blobs)
    publish(prepared(tmp_path / "out", app="another"), 5, blobs)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 4
    with pytest.raises(BadInput, match="has epoch 5 of this state, which is at epoch 4"):
        prepared(tmp_path / "out", 4)
    prepared(tmp_path / "out", 4, app="third")


def test_a_url_names_the_same_place_as_a_path(tmp_path):
    place = tmp_path / "an out"
    assert open_files(place.as_uri(), None).root == place == open_files(place, None).root


@pytest.mark.s3
def test_parquet_in_an_object_store(s3_server, tmp_path):
    blobs = local_blobs(tmp_path / "state")
    url, options = s3_server.url("parquet/out"), s3_server.options
    upper = {f"AWS_{name.upper()}": value for name, value in options.items()}
    publish(prepared(url, storage_options=upper), 1, blobs)
    publish(prepared(url, 1, storage_options=options), 1, blobs)
    names = list(open_files(url, options).names())
    assert names == [paths.published(1, number, APP) for number in (0, 1)]
    with pytest.raises(BadInput, match="has epoch 1"):
        prepared(url, 0, storage_options=options)


def test_the_console_shows_the_first_rows_of_an_epoch(blobs):
    shown = io.StringIO()
    sink = ConsoleSink(rows=2, truncate=5, console=Console(file=shown, width=80))
    table = pa.table({"user": ["[red]long name", None, "c"], "n": [1, 2, 3]}, schema=SCHEMA)
    sink.publish(3, stage(blobs, 3, table.slice(0, 1), table.slice(1)), blobs, SCHEMA)
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert lines[0] == "epoch 3: 3 rows, 1 not shown"
    assert "[red…" in shown.getvalue() and "null" in shown.getvalue()
    assert not any("c" in line and "3" in line and "│" in line for line in lines), "the third row is not shown"


def test_memory_knows_its_columns_before_the_first_epoch(blobs):
    sink = MemorySink()
    sink.prepare(APP, 0, SCHEMA)
    assert sink.table().schema == SCHEMA and len(sink.table()) == 0
    for _ in range(2):
        sink.publish(1, stage(blobs, 1, rows(1, 0)), blobs, SCHEMA)
    assert sink.table().to_pylist() == rows(1, 0).to_pylist()


@pytest.mark.spark
def test_foreach_batch_reads_staged_files_in_place_where_it_can(spark, tmp_path):
    seen: list[Any] = []
    sink = ForeachBatchSink(lambda df, epoch: seen.append((epoch, sorted(map(tuple, df.collect())), df.inputFiles())), spark)
    for blobs in (local_blobs(tmp_path / "a state"), memory_blobs()):
        names = stage(blobs, 1, rows(1, 0), rows(1, 1))
        sink.publish(1, names, blobs, SCHEMA)
        sink.publish(2, [], blobs, SCHEMA)
    wanted = sorted((row["user"], row["n"]) for row in expected(1))
    assert [(epoch, found) for epoch, found, _ in seen] == [(1, wanted), (2, [])] * 2
    assert [len(files) for _, _, files in seen] == [2, 0, 0, 0]


def test_staged_output_that_is_a_link_is_not_published(tmp_path):
    """The state may come from elsewhere: what it leads to is not handed on."""
    blobs = local_blobs(tmp_path / "state")
    (name,) = stage(blobs, 1, rows(1, 0))
    (tmp_path / "mine").write_text("mine")
    place = tmp_path / "state" / name
    place.unlink()
    place.symlink_to(tmp_path / "mine")
    sink = prepared(tmp_path / "out")
    with pytest.raises(Refused, match="is a symbolic link"):
        sink.publish(1, [name], blobs, SCHEMA)
    assert not any((tmp_path / "out").glob("**/*"))


def test_folders_of_output_may_be_links(tmp_path, blobs):
    """They are the user's."""
    (tmp_path / "other").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "user=u0_0").symlink_to(tmp_path / "other")
    sink = open_sink("parquet", {"path": tmp_path / "out", "partition_by": "user"})
    sink.prepare(APP, 0, SCHEMA)
    publish(sink, 1, blobs)
    assert len([*(tmp_path / "other").glob("*.parquet")]) == 1
