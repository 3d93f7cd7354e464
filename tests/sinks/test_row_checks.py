"""What a sink cannot take is found before the edit: no epoch is committed whose publishing fails for ever."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from floodplain.errors import BadInput, SchemaMismatch, UserError
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.sinks.base import Sink
from floodplain.sinks.console import ConsoleSink
from floodplain.sinks.delta import DeltaSink
from floodplain.sinks.files import ParquetSink
from floodplain.sinks.kafka_records import RECORD_BYTES, Records, RecordSizes
from floodplain.sinks.memory import MemorySink
from tests.sinks.sink_kit import SinkKit

FAR_DATE = 4_000_000
"""Days after 1970: in the year 12921."""
TEXTS = {
    "plain": ("a", True),
    "empty": ("", True),
    "null": (None, True),
    "dots": ("..", True),
    "dot": (".", True),
    "slashes": ("/../../etc", True),
    "nul": ("a\0b", True),
    "newline": ("a\nb", True),
    "emoji": ("😀" * 60, True),
    "longest": ("x" * (255 - len("place=")), True),
    "too long": ("x" * (256 - len("place=")), False),
    "too long in bytes": ("é" * 130, False),
    "too long when escaped": ("/" * 90, False),
    "huge": ("x" * 100_000, False),
}


class Placed(KeyedProcess):
    """Gives out each row as it came, and counts."""

    output = "place string, day date, n long"

    def process(self, key, rows, ctx):
        for row in rows:
            yield row.place, row.day, row.n


def through(operator: bool) -> Callable[..., Any]:
    def build(stream):
        return (stream.key_by("n").process(Placed()) if operator else stream.where("n > -1")).write("memory")

    return build


def table(rows: list[tuple[Any, Any, int]]) -> pa.Table:
    days = pa.array([day for _, day, _ in rows], pa.int32()).cast(pa.date32())
    return pa.table({"place": pa.array([place for place, _, _ in rows], pa.string()), "day": days, "n": [n for *_, n in rows]})


def published(out: Path) -> int:
    return ds.dataset(out, format="parquet").count_rows() if out.exists() else 0


def unfit_then_fit(kit: SinkKit, unfit: pa.Table, fit: pa.Table, message: str) -> None:
    """Nothing of it is committed, whether or not the driver lives on; and other rows go on from there."""
    epoch, outputs = kit.store.head.epoch, kit.store.head.outputs
    with pytest.raises(UserError, match=message) as raised:
        kit.epoch(unfit)
    assert "Nothing of the epoch was committed" in str(raised.value)
    assert (kit.store.head.epoch, kit.store.head.outputs) == (epoch, outputs)
    kit._pending, kit._batch_id = None, kit._batch_id - 1
    kit.restart()
    kit.epoch(fit)
    assert kit.store.head.epoch == epoch + 1


@pytest.mark.parametrize("operator", [True, False])
@pytest.mark.parametrize("kind", TEXTS)
def test_folder_names_are_looked_at_before_the_edit(tmp_path, kind, operator):
    text, fits = TEXTS[kind]
    out = tmp_path / "out"
    kit = SinkKit(through(operator), ParquetSink(out, partition_by=["place"]), rows="place string, day date, n long")
    kit.epoch(table([("first", 1, 0)]))
    rows = table([("a", 1, n) for n in range(5)] + [(text, 1, 7)] + [("b", 1, n) for n in range(3)])
    if fits:
        kit.epoch(rows)
        assert published(out) == 10
        return
    unfit_then_fit(
        kit, rows, table([("a", 1, 1)]), r"the sink output .*/out.* column place would have a name of \d+ bytes, and 255"
    )
    assert published(out) == 2


def test_a_date_that_no_text_can_be_made_of_is_found(tmp_path):
    kit = SinkKit(through(False), ParquetSink(tmp_path / "out", partition_by="day"), rows="place string, day date, n long")
    rows = table([("a", 1, 1), ("a", FAR_DATE, 2)])
    unfit_then_fit(kit, rows, table([("a", 3, 1)]), f"no folder can be named by '{FAR_DATE}' of column day")


def test_folders_that_make_a_path_too_long_together_are_found(tmp_path):
    columns = [f"c{n}" for n in range(20)]
    kit = SinkKit(
        lambda stream: stream.where("n > -1").write("memory"),
        ParquetSink(tmp_path / "out", partition_by=columns),
        rows=", ".join([*(f"{name} string" for name in columns), "n long"]),
    )
    kit.epoch([{**dict.fromkeys(columns, "x" * 150), "n": 1}])
    row = {**dict.fromkeys(columns, "x" * 240), "n": 1}
    schema = pa.schema([*((name, pa.string()) for name in columns), ("n", pa.int64())])
    unfit_then_fit(kit, pa.Table.from_pylist([row], schema), pa.Table.from_pylist([{"n": 1}], schema), "bytes in all")


STATIC = {
    "no column": ({"partition_by": ["gone"]}, BadInput),
    "binary": ({"partition_by": ["data"]}, SchemaMismatch),
    "a long name": ({"partition_by": ["x" * 250]}, BadInput),
    "all": ({"partition_by": ["data", "n", "x" * 250, "place"]}, (BadInput, SchemaMismatch)),
}


@pytest.mark.parametrize("kind", STATIC)
def test_what_can_be_told_by_columns_is_refused_before_anything_is_written(tmp_path, kind):
    options, error = STATIC[kind]
    schema = pa.schema([("data", pa.binary()), ("n", pa.int64()), ("x" * 250, pa.string()), ("place", pa.string())])
    with pytest.raises(error):
        ParquetSink(tmp_path / "out", **options).check(schema)
    assert not (tmp_path / "out").exists()


class Records_(MemorySink):  # noqa: N801
    """Keeps what a topic with these limits would get; fails as the client does for what it would not take."""

    def __init__(self, most_bytes: int = 1000, partitions: int = 2, key: Any = None, value: Any = None) -> None:
        super().__init__()
        self._limits = (most_bytes, partitions)
        self._columns = (key, value)

    def row_check(self, schema: pa.Schema) -> RecordSizes:
        return RecordSizes(Records(schema, *self._columns, {}), "events", *self._limits)

    def publish(self, epoch: int, staged: Any, blobs: Any, schema: pa.Schema) -> None:
        super().publish(epoch, staged, blobs, schema)
        for batch in self._epochs[epoch].to_batches():
            for record in Records(schema, *self._columns, {}).of(batch):
                assert len(record["value"] or b"") <= self._limits[0]
                assert 0 <= record.get("partition", 0) < self._limits[1]


FAR_TIME = pa.scalar(300_000_000_000_000_000, pa.int64())
KAFKA: dict[str, tuple[str, list[Any], Any, str]] = {
    "large": ("value string", ["x"], "x" * 2000, "its record would have 2128 bytes, and 1000 is the most"),
    "large as JSON": ("a string, n long", [{"a": "x", "n": 1}], {"a": "é" * 600, "n": 1}, r"would have 13\d\d bytes"),
    "a partition": ("value string, partition int", [{"partition": 1}], {"partition": 2}, "no partition 2: the topic has 2"),
    "below": ("value string, partition int", [{"partition": None}], {"partition": -1}, "there is no partition -1"),
    "a time": ("a timestamp, n long", [{"a": 0, "n": 1}], {"a": FAR_TIME, "n": 1}, "cannot be encoded"),
    "a map": ("a map<string,long>", [{"a": [("k", 1)]}], {"a": [("k", 1), ("k", 2)]}, "cannot be encoded"),
    "a header": (
        "value string, headers array<struct<key:string,value:binary>>",
        [{"headers": [{"key": "k", "value": None}]}],
        {"headers": [{"key": None, "value": b"x"}]},
        "a header",
    ),
}


@pytest.mark.parametrize("kind", KAFKA)
@pytest.mark.parametrize("place", [0, 1, 5000])
def test_records_are_looked_at_before_the_edit(kind, place):
    columns, good, bad, message = KAFKA[kind]
    kit = SinkKit(lambda stream: stream.with_column("z", "1").write("memory"), Records_(), rows=columns)
    schema = kit._inputs[""]

    def filled(row: Any) -> dict[str, Any]:
        return row if isinstance(row, dict) else {schema.names[0]: row}

    def made(rows: list[Any]) -> pa.Table:
        columns = {
            field.name: pa.array(
                [value.as_py() if isinstance(value, pa.Scalar) else value for value in (row.get(field.name) for row in rows)],
                field.type,
            )
            for field in schema
        }
        return pa.table(columns, schema=schema)

    fit = made([filled(good[0])] * max(place, 1))
    unfit = pa.concat_tables([fit.slice(0, place), made([filled(bad)]), fit.slice(0, 1)])
    kit.epoch(fit)
    unfit_then_fit(kit, unfit, fit, message)


def test_a_record_of_the_very_size_fits():
    records = Records(pa.schema([("value", pa.string())]), None, None, {})
    for size, fits in ((1000 - RECORD_BYTES, True), (1001 - RECORD_BYTES, False)):
        rows = pa.table({"value": ["x" * size]})
        assert (RecordSizes(records, "t", 1000, 1).first_refused(rows) is None) == fits


TYPES = {
    "boolean": (pa.bool_(), True),
    "tinyint": (pa.int8(), 1),
    "smallint": (pa.int16(), 1),
    "int": (pa.int32(), 1),
    "long": (pa.int64(), 1),
    "float": (pa.float32(), float("nan")),
    "double": (pa.float64(), float("inf")),
    "string": (pa.string(), "a\0é"),
    "binary": (pa.binary(), b"\xff\0"),
    "date": (pa.date32(), date(1, 1, 1)),
    "far date": (pa.date32(), FAR_DATE),
    "timestamp": (pa.timestamp("us", "UTC"), 0),
    "far timestamp": (pa.timestamp("us", "UTC"), 300_000_000_000_000_000),
    "early timestamp": (pa.timestamp("us", "UTC"), -100_000_000_000_000_000),
    "timestamp_ntz": (pa.timestamp("us"), 300_000_000_000_000_000),
    "decimal": (pa.decimal128(38, 10), Decimal("9" * 28)),
    "interval": (pa.duration("us"), 5),
    "time": (pa.time64("us"), 5),
    "void": (pa.null(), None),
    "uint64": (pa.uint64(), (1 << 64) - 1),
    "array": (pa.list_(pa.int64()), [1, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "map twice": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)]),
    "struct": (pa.struct([("a", pa.timestamp("us", "UTC"))]), {"a": 300_000_000_000_000_000}),
}
SINKS: dict[str, Callable[[Path], Sink]] = {
    "parquet": ParquetSink,
    "delta": DeltaSink,
    "kafka": lambda _: Records_(most_bytes=10_000),
    "memory": lambda _: MemorySink(),
    "console": lambda _: ConsoleSink(),
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_refused_before_the_edit_or_published(tmp_path, sink, kind):
    if sink == "delta":
        pytest.importorskip("deltalake")
    type_, value = TYPES[kind]
    made = pa.table({"x": pa.array([value, None], type_), "n": [1, 2]})

    class Kit(SinkKit):
        def _merged_schema(self) -> pa.Schema:
            return made.schema

    try:
        kit = Kit(lambda stream: stream.where("n > -1").write("memory"), SINKS[sink](tmp_path / "out"), rows="x long, n long")
    except (SchemaMismatch, BadInput):
        assert not (tmp_path / "out").exists()
        return
    try:
        with suppress(ValueError, OverflowError):  # of the kit itself, which gives back rows as Python values
            kit.epoch(made)
    except UserError as error:
        assert "Nothing of the epoch was committed" in str(error)
        assert kit.store.head.epoch == 0
    else:
        assert kit.store.head.epoch == 1
        kit.stop()
        assert kit.store.head.published == 1


def test_a_delta_table_with_rules_of_its_own_is_refused(tmp_path):
    delta = pytest.importorskip("deltalake")
    field = delta.Field("n", "long", metadata={"delta.invariants": json.dumps({"expression": {"expression": "n > 0"}})})
    delta.DeltaTable.create(tmp_path / "out", delta.Schema([field]))
    with pytest.raises(SchemaMismatch, match=r"column n of the table at .* has delta\.invariants"):
        DeltaSink(tmp_path / "out").check(pa.schema([("n", pa.int64())]))
