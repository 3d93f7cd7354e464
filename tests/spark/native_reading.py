"""Reads Parquet files as tasks do, and as Spark does."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa

from floodplain.sources.parquet import InputFile, file_ranges, read
from floodplain.sources.scan import ParquetScan
from floodplain.spark.native_input import NativeInput, native_input

DDL = """id long, flag boolean, tiny byte, small short, whole int, big long, single float, real double, text string, raw binary,
cents decimal(7,2), price decimal(15,4), huge decimal(38,6), day date, at timestamp, wall timestamp_ntz, list array<int>,
lists array<array<string>>, map map<string,double>, pair struct<p:long,Q:string>,
deep struct<inner:struct<p:long>,many:array<struct<p:long>>>"""


def every(rows):
    return rows


def listed(folder: Path) -> list[InputFile]:
    files = [path for path in sorted(folder.iterdir()) if path.name[0] not in "._" and path.stat().st_size]
    return [InputFile(str(path), path.stat().st_size, path.stat().st_mtime_ns // 10**6) for path in files]


def natively(spark, folder: Path, ddl: str, steps: Callable = every, parts: int = 1) -> pa.Table:
    stream = native_input(steps(spark.readStream.schema(ddl).parquet(str(folder))))
    assert isinstance(stream, NativeInput), stream
    scan = msgspec.msgpack.decode(msgspec.msgpack.encode(stream.scan), type=ParquetScan)
    tables = [table for range_ in file_ranges(listed(folder), parts) for table in read(scan, range_)]
    schema = pa.ipc.read_schema(pa.py_buffer(scan.output_schema))
    assert all(len(table) for table in tables)
    return pa.concat_tables([schema.empty_table(), *tables])


def by_spark(spark, folder: Path, ddl: str, steps: Callable = every) -> pa.Table:
    rows = steps(spark.read.schema(ddl).parquet(str(folder))).toArrow()
    return rows.cast(pa.schema([pa.field(field.name, field.type) for field in rows.schema]))


def assert_same(spark, folder: Path, ddl: str, steps: Callable = every) -> pa.Table:
    ours, theirs = (reads(spark, folder, ddl, steps) for reads in (natively, by_spark))
    assert ours.schema == theirs.schema
    for name, one, other in zip(ours.column_names, ours.columns, theirs.columns, strict=True):
        assert repr(one.to_pylist()) == repr(other.to_pylist()), name
    return ours
