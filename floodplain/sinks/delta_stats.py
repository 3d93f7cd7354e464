"""Column statistics of a Parquet file in the form of the Delta log, from the file's footer. No row is read."""

from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

_TEXT = 32
"""Characters of a string bound. A truncated minimum is still a lower bound; a longer maximum is omitted."""


def stats(file: pq.ParquetFile) -> str:
    """The number of rows; for each column that is not nested, its null count and, for ordered types, its bounds.

    Floating point has no bounds: those of the footer ignore NaN, which Spark sorts above all numbers.
    """
    statistics: dict[str, Any] = {"numRecords": file.metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for leaf, field in _simple(file):
        groups = [file.metadata.row_group(n).column(leaf).statistics for n in range(file.metadata.num_row_groups)]
        if all(group is not None and group.has_null_count for group in groups):
            statistics["nullCount"][field.name] = sum(group.null_count for group in groups)
        filled = [group for group in groups if group is None or not group.has_null_count or group.num_values]
        if filled and _is_ordered(field.type) and all(group is not None and group.has_min_max for group in filled):
            low, high = _bounds(filled)
            if low is not None:
                statistics["minValues"][field.name] = low
            if high is not None:
                statistics["maxValues"][field.name] = high
    return msgspec.json.encode(statistics).decode()


def _simple(file: pq.ParquetFile) -> list[tuple[int, pa.Field]]:
    """Columns that are not nested, with their index among the leaf columns of the file."""
    leaves = {file.metadata.schema.column(n).path: n for n in range(file.metadata.num_columns)}
    return [(leaves[field.name], field) for field in file.schema_arrow if not pa.types.is_nested(field.type)]


def _is_ordered(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_) or pa.types.is_string(type_)
    )


def _bounds(groups: list[Any]) -> tuple[Any, Any]:
    """Minimum and maximum; None if Python cannot represent one of them, such as a time after the year 9999."""
    try:
        return _low(min(group.min for group in groups)), _high(max(group.max for group in groups))
    except (ValueError, OverflowError):
        return None, None


def _low(value: Any) -> Any:
    if isinstance(value, datetime):
        return _text(value.replace(microsecond=value.microsecond // 1000 * 1000))
    if isinstance(value, date):
        return value.isoformat()
    return value[:_TEXT] if isinstance(value, str) else value


def _high(value: Any) -> Any:
    if isinstance(value, datetime):
        # Readers compare timestamps by milliseconds: rounding down would let them skip rows with later microseconds.
        floor = value.replace(microsecond=value.microsecond // 1000 * 1000)
        try:
            return _text(floor if floor == value else floor + timedelta(milliseconds=1))
        except OverflowError:
            return None
    if isinstance(value, date):
        return value.isoformat()
    return None if isinstance(value, str) and len(value) > _TEXT else value


def _text(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")
