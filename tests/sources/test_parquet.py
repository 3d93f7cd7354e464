"""Files are read as they were listed, by ranges; the log of Spark's file source says which."""

import os
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.errors import BadInput
from floodplain.sources.event_times import EventTimes
from floodplain.sources.file_log import files_of_batch, local_path
from floodplain.sources.parquet import FileRange, InputFile, file_ranges, read
from floodplain.sources.scan import Observe, ParquetScan, encoded_schema
from floodplain.versions.records.edit import SourcePosition

SCHEMA = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", "UTC")})
SCAN = ParquetScan(encoded_schema(SCHEMA), ("0", "1"), (Observe("1"),), ("0", "1"), encoded_schema(SCHEMA))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a b%.parquet"
    times = pa.array([None if n == 7 else n * 1_000 - 500_001 for n in range(1000)], SCHEMA.field("at").type)
    pq.write_table(pa.table({"n": range(1000), "at": times}), path, row_group_size=100)
    os.utime(path, ns=(10**18, 10**18 + 123_456_789))
    return InputFile(str(path), path.stat().st_size, 10**12 + 123)


def position(batch_id: int, offset: int, **sources: str) -> SourcePosition:
    offsets = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0}}\n{{"logOffset":{offset}}}'
    return SourcePosition("query", batch_id, offsets, {f"sources/0/{name[1:]}": text for name, text in sources.items()})


def entry(path: str, batch: int, mtime_ms: int = 10**12 + 123) -> str:
    return f'{{"path":"{path}","timestamp":{mtime_ms},"batchId":{batch}}}'


@pytest.mark.parametrize("cuts", [(), (1,), (3_000,), (200, 5_000, 9_000)])
def test_a_row_group_is_read_by_the_range_of_its_midpoint(file, cuts):
    bounds = [0, *cuts, file.size_bytes]
    readers = [read(SCAN, FileRange(file, start, end)) for start, end in pairwise(bounds)]
    rows = [n for reader in readers for table in reader for n in table["n"].to_pylist()]
    assert rows == list(range(1000)) and sum(reader.rows for reader in readers) == 1000
    assert all(reader.rows % 100 == 0 for reader in readers)


def test_event_times_are_rounded_down_and_a_missing_one_counts_as_1970(file):
    reader = read(SCAN, FileRange(file, 0, file.size_bytes))
    assert len(pa.concat_tables(reader)) == 1000
    assert reader.event_times == EventTimes(1000, 498, -501, pytest.approx(sum([0, *range(-501, 499)]) / 1000 - -494 / 1000))


def test_event_times_of_ranges_merge():
    one, other = (EventTimes.of(pa.array(each, pa.timestamp("us"))) for each in ([1_000, 5_000], [3_000]))
    assert one.merged(other) == other.merged(one) == EventTimes(3, 5, 1, 3.0)
    assert one.merged(EventTimes()) == EventTimes().merged(one) == one
    assert EventTimes.of(pa.array([], pa.timestamp("us"))) == EventTimes()


def test_small_files_are_not_split_and_large_ones_by_their_share():
    files = [InputFile(name, size, 0) for name, size in (("a", 100), ("b", 64 << 20), ("c", 16 << 20))]
    assert [range_.file.path for range_ in file_ranges(files, 1)] == ["a", "b", "c"]
    ranges = file_ranges(files, 4)
    assert [range_.file.path for range_ in ranges] == ["a", "b", "b", "b", "b", "c"]
    assert sum(range_.end - range_.start for range_ in ranges) == sum(file.size_bytes for file in files)
    assert all(range_.end - range_.start == 100 or range_.end - range_.start >= 1 << 20 for range_ in file_ranges(files, 10_000))
    assert file_ranges([], 3) == []


def test_a_file_that_is_not_as_listed_is_refused(file):
    for other in (InputFile(file.path, file.size_bytes + 1, file.mtime_ms), InputFile(file.path, file.size_bytes, 5)):
        with pytest.raises(BadInput, match="was listed as input of this batch with"):
            list(read(SCAN, FileRange(other, 0, file.size_bytes)))
    with pytest.raises(BadInput, match="not there any more"):
        list(read(SCAN, FileRange(InputFile(f"{file.path}x", 1, 1), 0, 1)))


def test_a_file_that_changes_while_it_is_read_is_refused(file):
    tables = iter(read(SCAN, FileRange(file, 0, file.size_bytes)))
    next(tables)
    os.utime(file.path)
    with pytest.raises(BadInput, match="must not change"):
        list(tables)


def test_a_batch_has_the_files_that_its_entries_list(file):
    uri = "file://" + file.path.replace("%", "%25").replace(" ", "%20")
    new = position(3, 5, _4=f"v1\n{entry(uri, 4)}", _5=f"v1\n{entry(uri, 5)}\n{entry(uri, 5)}")
    folder = file.path.rpartition("/")[0]
    assert files_of_batch(new, position(2, 3), folder) == (file, file, file)
    assert files_of_batch(new, position(2, 4), "") == (file, file)
    assert files_of_batch(position(3, 5), position(2, 5), folder) == ()
    compacted = {"sources/0/9.compact": "v1\n" + "\n".join(entry(uri, batch) for batch in range(10))}
    whole = SourcePosition("query", 0, position(0, 9).offsets, compacted)
    assert files_of_batch(whole, SourcePosition(), folder) == (file,) * 10


@pytest.mark.parametrize(
    ("before", "path", "mtime_ms", "reason"),
    [
        (1, "file://{}", 10**12 + 123, "not the one of the last epoch"),
        (2, "s3a://bucket/x", 10**12 + 123, "local or shared disk"),
        (2, "file://{}", 10**12, "was changed"),
        (2, "file://{}x", 10**12, "cannot be read"),
        (2, "file:///data/day=1/x.parquet", 10**12, "names of its folders"),
        (2, "file:///data/_metadata", 10**12, "summary"),
    ],
)
def test_other_files_are_left_to_spark(file, before, path, mtime_ms, reason):
    uri = path.format(file.path.replace("%", "%25"))
    new = position(3, 4, _4=f"v1\n{entry(uri, 4, mtime_ms)}")
    assert reason in str(files_of_batch(new, position(before, 3), "/data"))


def test_files_that_are_not_listed_are_left_to_spark():
    assert "[4]" in str(files_of_batch(position(3, 4), position(2, 3), ""))
    several = SourcePosition("query", 0, position(0, 1).offsets + "\n-")
    assert "2 sources" in str(files_of_batch(several, SourcePosition(), ""))


def test_paths_are_decoded_as_spark_writes_them():
    assert local_path("file:///a%20b/%C3%A4%25%23.parquet") == "/a b/ä%#.parquet"
    assert local_path("file:/a/b") == "/a/b" and local_path("hdfs://x/y") is None
