"""Delta tables: published once whatever crashes, read back by other readers, refused where they do not fit."""

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import floodplain as fp
from floodplain.errors import BadInput, Conflict, SchemaMismatch
from floodplain.sinks.base import Sink
from floodplain.sinks.delta import DeltaSink
from floodplain.sinks.files import LocalFiles
from floodplain.tiers.blobs import Blobs
from tests.sinks.staging import APP, SCHEMA, crash_points, local_blobs, memory_blobs, rows, stage


@pytest.fixture(params=["linked", "copied"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return local_blobs(tmp_path / "state") if request.param == "linked" else memory_blobs()


def prepared(path: Any, committed: int = 0, schema: pa.Schema = SCHEMA, app: str = APP, **options: Any) -> DeltaSink:
    sink = DeltaSink(path, **options)
    sink.prepare(app, committed, schema)
    return sink


def read(path: Any, **options: Any) -> list[tuple[str, int]]:
    table = DeltaTable(path, **options).to_pyarrow_table()
    return sorted((row["user"], row["n"]) for row in table.to_pylist())


def expected(*epochs: int) -> list[tuple[str, int]]:
    return sorted((row["user"], row["n"]) for e in epochs for slot in (0, 1) for row in rows(e, slot).to_pylist())


def publish(sink: DeltaSink, epoch: int, blobs: Blobs, schema: pa.Schema = SCHEMA) -> None:
    sink.publish(epoch, stage(blobs, epoch, rows(epoch, 0), rows(epoch, 1)), blobs, schema)


def test_an_epoch_is_one_commit_and_its_repetition_none(tmp_path, blobs):
    sink = prepared(tmp_path / "table")
    publish(sink, 1, blobs)
    publish(sink, 1, blobs)
    publish(prepared(tmp_path / "table", 1), 1, blobs)
    publish(sink, 2, blobs)
    table = DeltaTable(tmp_path / "table")
    assert read(tmp_path / "table") == expected(1, 2)
    assert table.version() == 2 and table.transaction_version(APP) == 2
    assert sorted(table.file_uris()) == sorted(str(path) for path in (tmp_path / "table").glob("*.parquet"))
    assert not list((tmp_path / "table").glob(".*")), "nothing half done stays"


def test_an_epoch_without_rows_makes_no_commit(tmp_path, blobs):
    sink = prepared(tmp_path / "table")
    sink.publish(1, [], blobs, SCHEMA)
    publish(sink, 2, blobs)
    assert DeltaTable(tmp_path / "table").version() == 1
    assert read(tmp_path / "table") == expected(2)


def test_staged_files_become_the_files_of_the_table_byte_for_byte(tmp_path, blobs):
    staged = stage(blobs, 1, rows(1, 0), rows(1, 1))
    contents = {bytes(blobs.get(name)) for name in staged}
    prepared(tmp_path / "table").publish(1, staged, blobs, SCHEMA)
    blobs.delete(staged)
    assert {path.read_bytes() for path in (tmp_path / "table").glob("*.parquet")} == contents
    assert read(tmp_path / "table") == expected(1)


def test_a_crash_between_any_two_steps_loses_and_repeats_nothing(tmp_path, blobs, monkeypatch):
    steps = [
        (LocalFiles, "place"),
        (LocalFiles, "sync"),
        (LocalFiles, "sync_below"),
        (DeltaTable, "create_write_transaction"),
    ]
    path = tmp_path / "table"
    crashes = []
    for epoch, where in crash_points(steps, monkeypatch, lambda epoch: publish(prepared(path, epoch), epoch, blobs)):
        crashes.append(where)
        publish(prepared(path, epoch), epoch, blobs)
        assert read(path) == expected(*range(1, epoch + 1)), where
    assert len(crashes) == 10, crashes  # two files, their directory, the commit, its log: before and after


def test_of_two_drivers_on_the_same_epoch_one_takes_effect(tmp_path, blobs, monkeypatch):
    """The first is paused right before its commit, and superseded."""
    path = tmp_path / "table"
    first, second = prepared(path), prepared(path)
    commit = DeltaSink._commit

    def overtaken(self, table, epoch, added):
        if self is first:
            publish(second, 1, blobs)
            publish(second, 2, blobs)
        commit(self, table, epoch, added)

    monkeypatch.setattr(DeltaSink, "_commit", overtaken)
    publish(first, 1, blobs)
    assert read(path) == expected(1, 2)
    assert DeltaTable(path).version() == 2


def test_appends_of_others_are_no_conflict(tmp_path, blobs, monkeypatch):
    path = tmp_path / "table"
    sink = prepared(path)
    commit = DeltaSink._commit

    def beside(self, table, epoch, added):
        write_deltalake(path, pa.table({"user": ["other"], "n": [epoch]}, schema=SCHEMA), mode="append")
        commit(self, table, epoch, added)

    monkeypatch.setattr(DeltaSink, "_commit", beside)
    publish(sink, 1, blobs)
    publish(sink, 2, blobs)
    assert read(path) == sorted([*expected(1, 2), ("other", 1), ("other", 2)])


def test_a_change_of_the_table_at_the_same_moment_is_met_by_another_try(tmp_path, blobs, monkeypatch):
    path = tmp_path / "table"
    sink = prepared(path)
    commit = DeltaSink._commit
    tries = []

    def changed(self, table, epoch, added):
        tries.append(epoch)
        if len(tries) == 1:
            DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
        commit(self, table, epoch, added)

    monkeypatch.setattr(DeltaSink, "_commit", changed)
    publish(sink, 1, blobs)
    assert read(path) == expected(1) and tries == [1, 1]

    def always(self, table, epoch, added):
        DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
        commit(self, table, epoch, added)

    monkeypatch.setattr(DeltaSink, "_commit", always)
    with pytest.raises(Conflict, match="epoch 2 could not be committed"):
        publish(sink, 2, blobs)


def test_two_states_write_to_one_table(tmp_path, blobs):
    path = tmp_path / "table"
    publish(prepared(path), 1, blobs)
    publish(prepared(path, app="another"), 1, blobs)
    assert read(path) == sorted(expected(1) * 2)


def test_a_state_that_was_rolled_back_is_refused(tmp_path, blobs):
    publish(prepared(tmp_path / "table"), 5, blobs)
    with pytest.raises(BadInput, match="has epoch 5 of this state, which is at epoch 4"):
        prepared(tmp_path / "table", committed=4)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("user", pa.string()), ("n", pa.int32())]), "column n of .* is .*long.*, the output has .*integer"),
        (pa.schema([("user", pa.string())]), "column n is in the table at .* only"),
        (pa.schema([*SCHEMA, ("more", pa.bool_())]), "column more is in the output only"),
    ],
)
def test_a_table_of_another_schema_is_refused_by_column(tmp_path, schema, message):
    prepared(tmp_path / "table")
    with pytest.raises(SchemaMismatch, match=message):
        prepared(tmp_path / "table", schema=schema)


def test_a_table_that_files_from_elsewhere_would_break_is_refused(tmp_path):
    DeltaTable.create(tmp_path / "parts", SCHEMA, partition_by="user")
    with pytest.raises(SchemaMismatch, match="partitioned by user"):
        prepared(tmp_path / "parts")
    DeltaTable.create(tmp_path / "checked", SCHEMA).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(SchemaMismatch, match=r"delta\.constraints\.positive"):
        prepared(tmp_path / "checked")
    DeltaTable.create(tmp_path / "full", pa.schema([pa.field("user", pa.string(), nullable=False), ("n", pa.int64())]))
    with pytest.raises(SchemaMismatch, match=r"column user .* is not nullable"):
        prepared(tmp_path / "full")
    with pytest.raises(SchemaMismatch, match="cannot have column d of type duration"):
        prepared(tmp_path / "new", schema=pa.schema([("d", pa.duration("us"))]))


EVERY = {
    "text": (pa.string(), ["b" * 40, "a", None]),
    "long": (pa.int64(), [-1, 3, None]),
    "short": (pa.int16(), [1, 2, 3]),
    "real": (pa.float64(), [float("nan"), 1.0, None]),
    "flag": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [datetime.date(2024, 2, 29), datetime.date(1900, 1, 1), None]),
    "at": (
        pa.timestamp("us", "UTC"),
        [datetime.datetime(2024, 1, 1, 0, 0, 0, n, tzinfo=datetime.UTC) for n in (1500, 999_999)] + [None],
    ),
    "local": (pa.timestamp("us"), [datetime.datetime(2024, 1, 1), None, None]),  # noqa: DTZ001
    "price": (pa.decimal128(10, 2), [decimal.Decimal("1.25"), None, decimal.Decimal("-7.00")]),
    "bytes": (pa.binary(), [b"\x00\xff", None, b""]),
    "many": (pa.list_(pa.string()), [["x", None], [], None]),
    "table": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [], None]),
    "pair": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    "nothing": (pa.int64(), [None, None, None]),
}


def every_type() -> pa.Table:
    schema = pa.schema([(name, type_) for name, (type_, _) in EVERY.items()])
    return pa.table({name: pa.array(values, type_) for name, (type_, values) in EVERY.items()}, schema=schema)


def test_all_types_are_read_back_by_deltalake_polars_and_duckdb(tmp_path, blobs):
    table = every_type()
    sink = prepared(tmp_path / "table", schema=table.schema)
    sink.publish(1, stage(blobs, 1, table), blobs, table.schema)
    same = [name for name in table.schema.names if name != "real"]  # NaN is not equal to itself
    found = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert found.select(same).to_pylist() == table.select(same).to_pylist()
    assert str(found["real"].to_pylist()) == str(table["real"].to_pylist())
    framed = polars.read_delta(str(tmp_path / "table"))
    assert framed["at"].to_list() == table["at"].to_pylist() and framed["price"].to_list() == table["price"].to_pylist()
    dataset = DeltaTable(tmp_path / "table").to_pyarrow_dataset()  # noqa: F841 — DuckDB finds it by name
    query = "select count(*), min(long), max(day), count(pair.b) from dataset where short > 0"
    assert duckdb.sql(query).fetchall() == [(3, -1, datetime.date(2024, 2, 29), 1)]


def test_statistics_bound_what_is_in_the_file(tmp_path, blobs):
    table = every_type()
    sink = prepared(tmp_path / "table", schema=table.schema)
    sink.publish(1, stage(blobs, 1, table), blobs, table.schema)
    entries = [json.loads(line) for line in (tmp_path / "table/_delta_log/00000000000000000001.json").read_text().splitlines()]
    (stats,) = [json.loads(entry["add"]["stats"]) for entry in entries if "add" in entry]
    assert stats["numRecords"] == 3
    local = "2024-01-01T00:00:00.000"
    low = {"text": "a", "long": -1, "short": 1, "day": "1900-01-01", "at": "2024-01-01T00:00:00.001Z", "local": local}
    high = {"long": 3, "short": 3, "day": "2024-02-29", "at": "2024-01-01T00:00:01.000Z", "local": local}
    assert stats["minValues"] == low
    assert stats["maxValues"] == high, "the longest text is too long to be a bound"
    assert stats["nullCount"]["nothing"] == 3 and stats["nullCount"]["text"] == 1 and "many" not in stats["nullCount"]
    at = datetime.datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=datetime.UTC)
    assert len(DeltaTable(tmp_path / "table").to_pyarrow_table(filters=[("at", ">=", at)])) == 1


@pytest.mark.s3
def test_a_table_in_an_object_store(s3_server, tmp_path):
    blobs = local_blobs(tmp_path / "state")
    url, options = s3_server.url("delta/table"), s3_server.options
    publish(prepared(url, storage_options=options), 1, blobs)
    publish(prepared(url, 1, storage_options=options), 1, blobs)
    publish(prepared(url, 1, storage_options=options), 2, blobs)
    assert read(url, storage_options=options) == expected(1, 2)
    with pytest.raises(BadInput, match="has epoch 2"):
        prepared(url, 1, storage_options=options)


WIDER = pa.schema([*SCHEMA, ("more", pa.float64())])


def wide(epoch: int) -> pa.Table:
    return pa.table({"user": [f"w{epoch}"], "n": [epoch], "more": [epoch / 2]}, schema=WIDER)


def pairs(path: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def test_new_columns_are_added_in_the_commit_of_their_rows(tmp_path, blobs):
    path = tmp_path / "table"
    publish(prepared(path), 1, blobs)
    sink = prepared(path, 1, WIDER, merge_schema=True)
    assert DeltaTable(path).version() == 1, "not before rows come"
    for epoch in (2, 3):
        sink.publish(epoch, stage(blobs, epoch, wide(epoch)), blobs, WIDER)
    log = (path / "_delta_log/00000000000000000002.json").read_text()
    assert all(f'"{action}":' in log for action in ("metaData", "add", "txn"))
    assert DeltaTable(path).version() == 3 and DeltaTable(path).transaction_version(APP) == 3
    assert [field.name for field in DeltaTable(path).schema().fields] == ["user", "n", "more"]
    assert pairs(path) == sorted([*((user, n, None) for user, n in expected(1)), ("w2", 2, 1.0), ("w3", 3, 1.5)])


def test_a_crash_while_columns_are_added_loses_and_repeats_nothing(tmp_path, blobs, monkeypatch):
    steps = [(LocalFiles, "sync"), (LocalFiles, "sync_below"), (deltalake, "write_deltalake")]
    crashes = []
    for run in range(1, 13):
        publish(prepared(tmp_path / f"t{run}"), 1, blobs)

    def act(run: int) -> None:
        prepared(tmp_path / f"t{run}", 2, WIDER, merge_schema=True).publish(2, stage(blobs, 2, wide(2)), blobs, WIDER)

    for run, where in crash_points(steps, monkeypatch, act):
        crashes.append(where)
        act(run)
        assert pairs(tmp_path / f"t{run}") == sorted([*((user, n, None) for user, n in expected(1)), ("w2", 2, 1.0)]), where
    assert len(crashes) == 8, crashes  # the folder, the rows, their file, the log: before and after


def test_of_two_drivers_that_add_columns_one_takes_effect(tmp_path, blobs, monkeypatch):
    path = tmp_path / "table"
    publish(prepared(path), 1, blobs)
    first, second = (prepared(path, 1, WIDER, merge_schema="true") for _ in range(2))
    write = DeltaSink._write

    def overtaken(self, table, epoch, rows):
        if self is first:
            second.publish(2, stage(blobs, 2, wide(2)), blobs, WIDER)
        write(self, table, epoch, rows)

    monkeypatch.setattr(DeltaSink, "_write", overtaken)
    first.publish(2, stage(blobs, 2, wide(2)), blobs, WIDER)
    assert len(pairs(path)) == len(expected(1)) + 1 and DeltaTable(path).version() == 2


def test_fields_of_structs_are_added_and_columns_that_lack_are_null(tmp_path, blobs):
    path = tmp_path / "table"
    one = pa.table({"user": ["a"], "s": [{"x": 1}]})
    two = pa.table({"s": [{"x": 2, "y": {"z": "q"}}]})
    prepared(path, schema=one.schema).publish(1, stage(blobs, 1, one), blobs, one.schema)
    prepared(path, 1, two.schema, merge_schema=True).publish(2, stage(blobs, 2, two), blobs, two.schema)
    prepared(path, 2, one.schema.remove(1), merge_schema=True).publish(
        3, stage(blobs, 3, one.select(["user"])), blobs, one.schema.remove(1)
    )
    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted(found, key=str) == sorted(
        [
            {"user": "a", "s": {"x": 1, "y": None}},
            {"user": None, "s": {"x": 2, "y": {"z": "q"}}},
            {"user": "a", "s": None},
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("user", pa.string()), ("n", pa.int32())]), "column n of .* merge_schema adds columns and does not change"),
        (pa.schema([*SCHEMA, ("User", pa.string())]), "columns user and User of the output differ in case only"),
        (pa.schema([("User", pa.string()), ("n", pa.int64())]), "column User differs from user of .* in case only"),
        (pa.schema([*SCHEMA, ("d", pa.duration("us"))]), "cannot have column d"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_column(tmp_path, schema, message):
    prepared(tmp_path / "table")
    with pytest.raises(SchemaMismatch, match=message):
        DeltaSink(tmp_path / "table", merge_schema=True).check(schema)
    with pytest.raises(BadInput, match="merge_schema='perhaps' is neither"):
        DeltaSink(tmp_path / "table", merge_schema="perhaps")


def test_a_changed_schema_is_refused_before_anything_is_written(tmp_path):
    """Neither the state nor another sink of the pipeline has changed; and Spark's own spelling of the option is taken."""

    def build(**made):
        def pipeline(stream):
            counts = stream.key_by("user").agg(n=fp.count(), **made)
            return counts.write("delta", path=str(tmp_path / "table"), **options)

        return pipeline

    options: dict[str, Any] = {}
    kit = _RealSinks(build(), rows="user string, v long")
    kit.epoch([{"user": "a", "v": 1}])
    kit.restart(build())
    before, files = kit.store.head, sorted(tmp_path.rglob("*"))
    with pytest.raises(SchemaMismatch, match=r"column total is in the output only: .*merge_schema=True"):
        kit.restart(build(total=fp.sum("v", since="now")))
    assert kit.store.history.refresh().schemas == before.schemas and sorted(tmp_path.rglob("*")) == files
    options["mergeSchema"] = "true"
    kit.restart(build(total=fp.sum("v", since="now")))
    kit.epoch([{"user": "a", "v": 1}])
    assert pairs(tmp_path / "table") == [("a", 1, None), ("a", 2, 1)]


class _RealSinks(fp.PipelineKit):
    """The kit, with the sinks that the pipeline names."""

    def start(self, stream, plan, options):
        self._real = {outlet.name: outlet.sink for outlet in plan.outlets}
        super().start(stream, plan, options)

    def _captured_sink(self, name):
        return _Both(super()._captured_sink(name), self._real[name])


class _Both(Sink):
    def __init__(self, captured: Sink, real: Sink) -> None:
        self._sinks = (captured, real)

    def check(self, schema):
        for sink in self._sinks:
            sink.check(schema)

    def prepare(self, app, committed, schema):
        for sink in self._sinks:
            sink.prepare(app, committed, schema)

    def publish(self, epoch, staged, blobs, schema):
        for sink in self._sinks:
            sink.publish(epoch, staged, blobs, schema)
