"""Reads ranges of Parquet files, as Spark reads them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.errors import BadInput, NotNative
from floodplain.sources.evaluation import Rows, evaluate, matching, scalar_of
from floodplain.sources.event_times import EventTimes
from floodplain.sources.file_columns import FileColumns, bind_file, declared
from floodplain.sources.leaves import CORRECTED, Calendars
from floodplain.sources.scan import Const, Observe, ParquetScan, Project, Step, Where, decoded_schema

BATCH_ROWS = 1 << 17
"""Rows that are read and computed at a time, which bounds the memory."""
LEAST_RANGE_BYTES = 1 << 20
"""Smaller ranges cost more than they spread."""
_VERSION = b"org.apache.spark.version"
_LEGACY_DATETIME = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"


class InputFile(msgspec.Struct, frozen=True):
    """A file of this machine, as it was when it was listed."""

    path: str
    size_bytes: int
    mtime_ms: int
    values: tuple[Const, ...] = ()
    """Of the partition columns of its scan."""


class FileRange(msgspec.Struct, frozen=True):
    """The row groups of a file whose midpoint is within these bytes, the end excluded."""

    file: InputFile
    start: int
    end: int


def file_ranges(files: Sequence[InputFile], parts: int) -> list[FileRange]:
    """Ranges in the order of files, none with much more than its share of the bytes when they are divided by ``parts``. Every row
    is in one of them."""
    share = max(-(-sum(file.size_bytes for file in files) // max(parts, 1)), LEAST_RANGE_BYTES)
    return [each for file in files for each in _ranges(file, max(-(-file.size_bytes // share), 1))]


def _ranges(file: InputFile, count: int) -> Iterator[FileRange]:
    ends = [file.size_bytes * number // count for number in range(count + 1)]
    yield from (FileRange(file, start, end) for start, end in pairwise(ends))


def read(scan: ParquetScan, range_: FileRange) -> "RangeReader":
    """The rows of a range after the steps of the scan, as tables of its output schema. None is empty."""
    return RangeReader(scan, range_)


class RangeReader:
    """Tables of one range. What it counted is complete once all of them were read.

    Reading raises ``BadInput`` if the file is not the one that was listed, ``NotNative`` if it has to be left to Spark, and
    ``UserError`` if an expression fails.
    """

    def __init__(self, scan: ParquetScan, range_: FileRange) -> None:
        self._scan, self._range = scan, range_
        self._output = decoded_schema(scan.output_schema)
        self.rows = 0
        """Rows read, before any step."""
        self.event_times = EventTimes()
        """Where the scan observes them."""

    def __iter__(self) -> Iterator[pa.Table]:
        for rows in self._batches():
            self.rows += rows.count
            for step in self._scan.steps:
                rows = self._after(step, rows)
            if rows.count:
                columns = [
                    declared(rows.columns[name], field.type) for name, field in zip(self._scan.output, self._output, strict=True)
                ]
                yield pa.Table.from_arrays(columns, schema=self._output)

    def _after(self, step: Step, rows: Rows) -> Rows:
        match step:
            case Where(condition):
                return matching(condition, rows)
            case Project(columns):
                return Rows({name: evaluate(made, rows) for name, made in columns}, rows.count)
            case Observe(column):
                self.event_times = self.event_times.merged(EventTimes.of(rows.columns[column]))
                return rows

    def _batches(self) -> Iterator[Rows]:
        file = self._range.file
        check_unchanged(file)
        try:
            with pa.OSFile(file.path) as opened:
                yield from self._batches_of(pq.ParquetFile(opened, coerce_int96_timestamp_unit="us", pre_buffer=False))
        except (pa.ArrowException, OSError) as error:
            check_unchanged(file)
            raise NotNative(f"{file.path} is not read here ({error}): it is left to Spark") from error
        check_unchanged(file)

    def _batches_of(self, parquet: pq.ParquetFile) -> Iterator[Rows]:
        scan = self._scan
        groups, constants = _row_groups(parquet.metadata, self._range), self._constants(parquet)
        columns = bind_file(decoded_schema(scan.schema), parquet, scan.case_sensitive, _calendars(scan, parquet.metadata))
        for batch in _record_batches(parquet, groups, columns):
            repeated = {name: pa.repeat(value, len(batch)) for name, value in constants.items()}
            yield Rows(dict(zip(scan.names, columns.table(batch), strict=True)) | repeated, len(batch))

    def _constants(self, parquet: pq.ParquetFile) -> dict[str, pa.Scalar]:
        """The values of partition columns, by what the steps call them."""
        present = {name.lower() for name in parquet.schema_arrow.names}
        if twice := [name for _, name in self._scan.partitions if name.lower() in present]:
            raise NotNative(f"{self._range.file.path} has the column {twice[0]}, as has its folder: it is left to Spark")
        values = map(scalar_of, self._range.file.values)
        return {name: value for (name, _), value in zip(self._scan.partitions, values, strict=True)}


def _record_batches(parquet: pq.ParquetFile, groups: Sequence[int], columns: FileColumns) -> Iterator[pa.RecordBatch]:
    if groups and columns.leaves:
        yield from parquet.reader.iter_batches(
            BATCH_ROWS, row_groups=groups, column_indices=list(columns.leaves), use_threads=False
        )
        return
    for group in groups:
        count = parquet.metadata.row_group(group).num_rows
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def check_unchanged(file: InputFile) -> None:
    """Raises ``BadInput`` unless the file is there, with the size and time that it had when it was listed."""
    try:
        status = Path(file.path).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{file.path} was listed as input of this batch, and is not there any more: restore it") from None
    now = (status.st_size, status.st_mtime_ns // 10**6)
    if now != (file.size_bytes, file.mtime_ms):
        raise BadInput(
            f"{file.path} was listed as input of this batch with {file.size_bytes} bytes of {file.mtime_ms} ms, and now has "
            f"{now[0]} bytes of {now[1]} ms: files of a stream must not change, write new ones"
        )


def _row_groups(metadata: Any, range_: FileRange) -> list[int]:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    last = range_.file.size_bytes - 1
    midpoints = [min(max(_midpoint(group), 0), last) for group in groups]
    return [number for number, midpoint in enumerate(midpoints) if range_.start <= midpoint < range_.end]


def _midpoint(group: Any) -> int:
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [column.data_page_offset for column in columns[:1]]
    starts += [column.dictionary_page_offset for column in columns[:1] if column.dictionary_page_offset]
    return int(min(starts, default=0) + sum(column.total_compressed_size for column in columns) // 2)


def _calendars(scan: ParquetScan, metadata: Any) -> Calendars:
    """By the version of Spark that wrote the file, which is compared as text, as Spark does; else as the scan says."""
    about = metadata.metadata or {}
    version = about.get(_VERSION)
    if version is None:
        return Calendars(scan.datetime_rebase, scan.int96_rebase)
    return Calendars(
        "LEGACY" if version < b"3.0.0" or _LEGACY_DATETIME in about else CORRECTED,
        "LEGACY" if version < b"3.1.0" or _LEGACY_INT96 in about else CORRECTED,
    )
