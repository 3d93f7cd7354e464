"""Rows as Kafka records."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from floodplain.errors import BadInput

_JSON = msgspec.json.Encoder(decimal_format="number")


class Records:
    """How the columns of an output become key, value, headers and partition. Raises ``BadInput`` for columns it does not have."""

    def __init__(
        self, schema: pa.Schema, key: tuple[str, ...] | None, value: tuple[str, ...] | None, headers: Mapping[str, str]
    ) -> None:
        self._headers = [(name, text.encode()) for name, text in headers.items()]
        self._as_spark = key is None and value is None and "value" in schema.names and _is_raw(schema.field("value").type)
        if self._as_spark:
            key, value = (("key",) if "key" in schema.names else ()), ("value",)
            if key and not _is_raw(schema.field("key").type):
                raise BadInput(f"column key is {schema.field('key').type}: beside a column value it must be string or binary")
        self._key = key or ()
        self._value = tuple(schema.names) if value is None else value
        missing = [name for name in (*self._key, *self._value) if not schema.get_all_field_indices(name)]
        if missing or not self._value:
            raise BadInput(f"the output has no column {', '.join(missing) or 'for the value'}: it has {', '.join(schema.names)}")
        self._raw = {
            columns for columns in (self._key, self._value) if len(columns) == 1 and _is_raw(schema.field(columns[0]).type)
        }

    def of(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """What ``Producer.produce`` takes, for each row."""
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

    def _encoded(self, row: Mapping[str, Any], columns: tuple[str, ...]) -> bytes | None:
        if columns not in self._raw:
            return _JSON.encode({name: row[name] for name in columns})
        value = row[columns[0]]
        return value.encode() if isinstance(value, str) else value


def _headers(found: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in found or ()]


def _is_raw(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))
