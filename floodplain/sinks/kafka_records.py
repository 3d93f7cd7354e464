"""Encodes rows as Kafka records."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from floodplain.errors import BadInput, short
from floodplain.sinks.row_checks import RowCheck

BATCH_ROWS = 8192
RECORD_BYTES = 128
"""Overhead besides key, value and headers that client and broker count for a record in a batch of its own."""
HEADER_BYTES = 10
UNENCODABLE = (ValueError, OverflowError, TypeError, KeyError, NotImplementedError, RecursionError)
"""Errors of values that Python or JSON cannot represent."""
_JSON = msgspec.json.Encoder(decimal_format="number")


class Records:
    """Maps the columns of an output to key, value, headers and partition. Raises ``BadInput`` for columns it does not have."""

    def __init__(
        self, schema: pa.Schema, key: tuple[str, ...] | None, value: tuple[str, ...] | None, headers: Mapping[str, str]
    ) -> None:
        self._headers = [(name, text.encode()) for name, text in headers.items()]
        self._as_spark = key is None and value is None and "value" in schema.names and _is_raw(schema.field("value").type)
        if self._as_spark:
            key, value = (("key",) if "key" in schema.names else ()), ("value",)
            if key and not _is_raw(schema.field("key").type):
                raise BadInput(f"column key is {schema.field('key').type}: with a column value it must be string or binary")
        self._key = key or ()
        self._value = tuple(schema.names) if value is None else value
        missing = [name for name in (*self._key, *self._value) if not schema.get_all_field_indices(name)]
        if missing or not self._value:
            raise BadInput(f"the output has no column {', '.join(missing) or 'for the value'}: it has {', '.join(schema.names)}")
        self._raw = {
            columns for columns in (self._key, self._value) if len(columns) == 1 and _is_raw(schema.field(columns[0]).type)
        }

    def of(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """The arguments of ``Producer.produce`` for each row."""
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            record: dict[str, Any] = {"value": self._encoded(row, self._value)}
            if self._key:
                record["key"] = self._encoded(row, self._key)
            headers = self._headers + (_headers(row.get("headers")) if self._as_spark else [])
            if headers:
                record["headers"] = headers
            if self._as_spark and row.get("partition") is not None:
                record["partition"] = row["partition"]
            yield record

    def first_refused(self, rows: pa.Table, most_bytes: int, partitions: int) -> tuple[int, str] | None:
        """The first row that cannot be encoded, is larger than ``most_bytes`` or names a missing partition, and the reason."""
        try:
            for at, record in enumerate(record for batch in rows.to_batches(BATCH_ROWS) for record in self.of(batch)):
                if (reason := _refusal(record, most_bytes, partitions)) is not None:
                    return at, reason
        except UNENCODABLE as error:
            if len(rows) == 1:
                return 0, f"its columns cannot be encoded: {type(error).__name__}: {short(str(error), quoted=False)}"
        else:
            return None
        return self._search(rows, most_bytes, partitions)

    def _search(self, rows: pa.Table, most_bytes: int, partitions: int) -> tuple[int, str] | None:
        """Bisects, because the error does not say which row could not be encoded. Requires: more than one row."""
        half = len(rows) // 2
        refused = self.first_refused(rows.slice(0, half), most_bytes, partitions)
        if refused is not None:
            return refused
        refused = self.first_refused(rows.slice(half), most_bytes, partitions)
        return None if refused is None else (refused[0] + half, refused[1])

    def _encoded(self, row: Mapping[str, Any], columns: tuple[str, ...]) -> bytes | None:
        if columns not in self._raw:
            return _JSON.encode({name: row[name] for name in columns})
        value = row[columns[0]]
        return value.encode() if isinstance(value, str) else value


@dataclass(frozen=True)
class RecordSizes(RowCheck):
    """Refuses rows whose records a topic would not accept."""

    records: Records
    topic: str
    most_bytes: int
    partitions: int

    def first_refused(self, rows: pa.Table) -> tuple[int, str] | None:
        refused = self.records.first_refused(rows, self.most_bytes, self.partitions)
        return None if refused is None else (refused[0], f"topic {self.topic}: {refused[1]}")


def _refusal(record: Mapping[str, Any], most_bytes: int, partitions: int) -> str | None:
    headers = record.get("headers", ())
    for key, value in headers:
        if not isinstance(key, str) or not isinstance(value, bytes | str | None):
            return f"a header ({short(key)}, {short(value)}) has no name, or is not bytes"
    if not 0 <= record.get("partition", 0) < partitions:
        return f"there is no partition {record['partition']}: the topic has {partitions}, counted from 0"
    parts = [record["value"], record.get("key"), *(part for header in headers for part in header)]
    size_bytes = sum(len(part.encode() if isinstance(part, str) else part) for part in parts if part is not None)
    size_bytes += RECORD_BYTES + HEADER_BYTES * len(headers)
    if size_bytes > most_bytes:
        return (
            f"its record would have {size_bytes} bytes, and {most_bytes} is the most: raise max.message.bytes of the topic and "
            "config={'message.max.bytes': …} of the sink, or make it smaller"
        )
    return None


def _headers(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in headers or ()]


def _is_raw(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))
