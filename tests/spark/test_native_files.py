"""What tasks read of Parquet files by themselves is what Spark reads."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.errors import NotNative
from floodplain.sources import parquet
from floodplain.sources.parquet import file_ranges
from floodplain.spark.session_conf import settings
from tests.sources import generated
from tests.spark.native_reading import DDL, assert_same, by_spark, listed, natively

WRITERS = {
    "plain": {},
    "several row groups, no dictionary": {"row_group_size": 37, "use_dictionary": False},
    "int96": {"use_deprecated_int96_timestamps": True},
    "old version, small pages": {"version": "1.0", "data_page_size": 100, "compression": "gzip"},
    "data pages 2": {"data_page_version": "2.0", "compression": "zstd", "row_group_size": 100},
    "decimals as integers": {"store_decimal_as_integer": True},
    "no arrow schema": {"store_schema": False, "compression": "none"},
}


@pytest.mark.parametrize("options", WRITERS.values(), ids=WRITERS)
def test_files_of_pyarrow(spark, tmp_path, options):
    rows = generated.table(np.random.default_rng(len(str(options))), 250)
    pq.write_table(rows, tmp_path / "rows.parquet", **options)
    assert len(assert_same(spark, tmp_path, DDL)) == 250


def test_batches_smaller_and_larger_than_row_groups(spark, tmp_path, monkeypatch):
    rows = generated.table(np.random.default_rng(21), 120)
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=50)
    for size in (7, 64, 1000):
        monkeypatch.setattr(parquet, "BATCH_ROWS", size)
        assert len(assert_same(spark, tmp_path, DDL)) == 120
        assert_same(
            spark, tmp_path, "deep struct<inner:struct<x:int>,many:array<struct<y:string,p:long>>>, map map<string,double>"
        )


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS", "spark.sql.parquet.compression.codec": "none"},
        {"spark.sql.parquet.writeLegacyFormat": "true"},
    ],
    ids=str,
)
def test_files_of_spark(spark, tmp_path, settings_):
    rows = generated.table(np.random.default_rng(5), 200)
    pq.write_table(rows, tmp_path / "rows.parquet")
    with settings(spark, settings_):
        spark.read.schema(DDL).parquet(str(tmp_path / "rows.parquet")).write.parquet(str(tmp_path / "spark"))
    assert len(assert_same(spark, tmp_path / "spark", DDL)) == 200


def test_arrow_types_that_parquet_does_not_know_do_not_matter(spark, tmp_path):
    rows = pa.table(
        {
            "text": pa.array(["a", None, "b", "a"]).dictionary_encode(),
            "long_text": pa.array(["a", None, "b", "a"], pa.large_string()),
            "span": pa.array([1, None, 3, 4], pa.duration("us")),
            "zoned": pa.array([1, None, 3, 4], pa.timestamp("ms", "Europe/Berlin")),
            "seconds": pa.array([1, None, 3, 4], pa.timestamp("s")),
            "fixed": pa.array([b"ab", None, b"cd", b"ab"], pa.binary(2)),
        }
    )
    pq.write_table(rows, tmp_path / "rows.parquet")
    assert_same(spark, tmp_path, "text string, long_text binary, span long, zoned timestamp, seconds timestamp_ntz, fixed binary")
    assert_same(spark, tmp_path, "text binary, long_text string, zoned timestamp_ntz, seconds timestamp")


def test_names_order_and_missing_columns(spark, tmp_path):
    rows = generated.table(np.random.default_rng(3), 60, ("text", "pair", "deep", "map", "list"))
    renamed = rows.rename_columns(["ID", "Text", "PAIR", "deep", "map", "list"]).select([5, 4, 3, 2, 1, 0])
    pq.write_table(renamed, tmp_path / "rows.parquet")
    ddl = (
        "text string, id long, none int, pair struct<q:string,p:long,r:int>, LIST array<int>, lists array<struct<a:int,b:string>>"
    )
    assert_same(spark, tmp_path, ddl)
    assert_same(spark, tmp_path, "deep struct<inner:struct<x:int>,many:array<struct<y:string>>>")
    assert_same(spark, tmp_path, "deep struct<many:array<struct<y:string,P:long>>,z:int>, pair struct<s:map<string,int>>")
    assert_same(spark, tmp_path, "nothing long, of_it string")
    with settings(spark, {"spark.sql.caseSensitive": "true"}):
        assert_same(spark, tmp_path, "text string, Text string, pair struct<p:long>, PAIR struct<q:string,Q:string,p:long>")


def test_no_column_is_read_for_steps_without_one(spark, tmp_path):
    pq.write_table(generated.table(np.random.default_rng(3), 60, ("text",)), tmp_path / "rows.parquet", row_group_size=25)
    rows = assert_same(spark, tmp_path, "text string", lambda rows: rows.selectExpr("1 as one", "'x' as x"))
    assert len(rows) == 60
    assert len(assert_same(spark, tmp_path, "text string", lambda rows: rows.selectExpr("text is null as no", "2L as two"))) == 60


WIDENED = {
    "tiny": ("small", "whole", "big", "real", "huge"),
    "small": ("whole", "big", "real", "decimal(10,0)"),
    "whole": ("long", "double", "decimal(12,2)", "decimal(30,10)"),
    "big": ("decimal(20,0)", "decimal(24,4)"),
    "single": ("double",),
    "cents": ("decimal(7,2)", "decimal(9,2)", "decimal(12,4)", "decimal(38,10)"),
    "price": ("decimal(20,4)", "decimal(30,9)"),
    "huge": ("decimal(38,6)",),
    "text": ("binary",),
    "raw": ("binary",),
}
NAMES = {"small": "short", "whole": "int", "big": "long", "real": "double", "huge": "decimal(38,6)"}


@pytest.mark.parametrize("as_integers", [False, True])
def test_types_that_spark_widens(spark, tmp_path, as_integers):
    rows = generated.table(np.random.default_rng(8), 80, tuple(WIDENED))
    pq.write_table(rows, tmp_path / "rows.parquet", store_decimal_as_integer=as_integers)
    for length in range(max(map(len, WIDENED.values()))):
        chosen = [(name, types[length % len(types)]) for name, types in WIDENED.items()]
        assert_same(spark, tmp_path, ", ".join(f"{name} {NAMES.get(type_, type_)}" for name, type_ in chosen))


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        *[("big", type_) for type_ in ("int", "string", "timestamp", "double", "date", "decimal(10,0)")],
        *[("whole", type_) for type_ in ("string", "timestamp", "float", "boolean", "decimal(9,0)")],
        *[("real", type_) for type_ in ("float", "long", "string")],
        *[("text", type_) for type_ in ("int", "long", "date", "decimal(10,2)")],
        *[("price", type_) for type_ in ("decimal(10,2)", "decimal(16,6)", "double")],
        *[("day", type_) for type_ in ("timestamp", "string")],
        *[("at", type_) for type_ in ("date", "string", "int")],
        *[("list", type_) for type_ in ("int", "array<string>", "struct<a:int>", "map<string,int>")],
        *[("pair", type_) for type_ in ("string", "struct<p:string>", "array<int>")],
        *[("map", type_) for type_ in ("map<int,double>", "array<string>")],
    ],
)
def test_what_spark_refuses_is_refused(spark, tmp_path, name, type_):
    pq.write_table(generated.table(np.random.default_rng(1), 20, (name,), nulls=0), tmp_path / "rows.parquet")
    with pytest.raises(Exception, match=r"(?s)FAILED_READ_FILE|PARQUET|Parquet|cannot be cast|ClassCast"):
        by_spark(spark, tmp_path, f"{name} {type_}")
    with pytest.raises(NotNative, match="left to Spark"):
        natively(spark, tmp_path, f"{name} {type_}")


@pytest.mark.parametrize(
    ("column", "ddl"),
    [
        pytest.param(pa.array([1, 2], pa.uint32()), "c long", id="unsigned"),
        pytest.param(pa.array([1, 2], pa.time64("us")), "c long", id="time"),
        pytest.param(pa.array([1, 2], pa.timestamp("ns")), "c long", id="nanoseconds"),
        pytest.param(pa.array([1, 300], pa.int32()), "c byte", id="narrowed, as Spark does silently"),
        pytest.param(pa.array([1, 2], pa.date32()), "c int", id="days as a number"),
        pytest.param(pa.array([[1], [2]], pa.large_list(pa.int32())), "c array<int>", id="large list"),
        pytest.param(pa.array([None, None]), "c int", id="nothing but null"),
    ],
)
def test_what_only_spark_reads_is_left_to_it(spark, tmp_path, column, ddl):
    pq.write_table(pa.table({"c": column}), tmp_path / "rows.parquet")
    with pytest.raises(NotNative, match="left to Spark"):
        natively(spark, tmp_path, ddl)


def test_ambiguous_and_damaged_files_are_left_to_spark(spark, tmp_path):
    pq.write_table(pa.table({"c": [1], "C": [2]}), tmp_path / "rows.parquet")
    with pytest.raises(NotNative, match="several columns c"):
        natively(spark, tmp_path, "c long")
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[:-5])
    with pytest.raises(NotNative, match="left to Spark"):
        natively(spark, tmp_path, "c long")


def test_dates_of_an_old_calendar_are_left_to_spark(spark, tmp_path):
    old = pa.table(
        {"day": pa.array([-200_000, 0], pa.int32()).view(pa.date32()), "at": pa.array([-(2**52), 0], pa.timestamp("us"))}
    )
    pq.write_table(old, tmp_path / "rows.parquet")
    ddl = "day date, at timestamp"
    assert_same(spark, tmp_path, ddl)
    for column in ("day", "at"):
        with (
            settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"}),
            pytest.raises(NotNative, match=f"column {column} has dates"),
        ):
            natively(spark, tmp_path, ddl, lambda rows, column=column: rows.select(column))
    recent = generated.table(np.random.default_rng(1), 50, ("day",)).append_column("at", pa.array(range(50), pa.timestamp("ms")))
    pq.write_table(recent, tmp_path / "rows.parquet")
    with settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"}):
        assert_same(spark, tmp_path, ddl)


@pytest.mark.parametrize("parts", [1, 2, 7, 100])
def test_ranges_have_every_row_once(spark, tmp_path, parts):
    rng = np.random.default_rng(2)
    for number, size in enumerate((5, 40_000, 300_000)):
        rows = pa.table({"n": pa.array(rng.integers(0, 2**60, size)), "m": pa.array(rng.random(size))})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=7_000)
    ours = natively(spark, tmp_path, "n long, m double", parts=parts)
    theirs = by_spark(spark, tmp_path, "n long, m double")
    assert ours.sort_by("m").equals(theirs.sort_by("m")) and len(ours) == 340_005
    assert len(file_ranges(listed(tmp_path), parts)) >= min(parts, 6)
