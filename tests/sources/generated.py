"""Rows of all types that Parquet files of an input can have."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

FIELD = pa.field("p", pa.int64())
TYPES: dict[str, pa.DataType] = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.int16(),
    "whole": pa.int32(),
    "big": pa.int64(),
    "single": pa.float32(),
    "real": pa.float64(),
    "text": pa.string(),
    "raw": pa.binary(),
    "cents": pa.decimal128(7, 2),
    "price": pa.decimal128(15, 4),
    "huge": pa.decimal128(38, 6),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "wall": pa.timestamp("us"),
    "list": pa.list_(pa.field("element", pa.int32())),
    "lists": pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string())))),
    "map": pa.map_(pa.string(), pa.float64()),
    "pair": pa.struct([FIELD, pa.field("Q", pa.string())]),
    "deep": pa.struct(
        [pa.field("inner", pa.struct([FIELD])), pa.field("many", pa.list_(pa.field("element", pa.struct([FIELD]))))]
    ),
}
_TEXTS = ("", "a", "A", "b", "ä", "z\u0000", "\U0001f30a", "word", "word " * 20)
_REALS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, -2.25, 1e300, 5e-324)


def table(rng: np.random.Generator, rows: int, names: tuple[str, ...] = tuple(TYPES), nulls: float = 0.2) -> pa.Table:
    columns = {name: pa.array([_value(rng, TYPES[name], nulls) for _ in range(rows)], TYPES[name]) for name in names}
    return pa.table({"id": pa.array(range(rows), pa.int64()), **columns})


def _value(rng: np.random.Generator, type_: pa.DataType, nulls: float) -> Any:
    if rng.random() < nulls:
        return None
    if pa.types.is_nested(type_):
        return _nested(rng, type_, nulls)
    return _flat(rng, type_)


def _nested(rng: np.random.Generator, type_: pa.DataType, nulls: float) -> Any:
    if pa.types.is_struct(type_):
        return {field.name: _value(rng, field.type, nulls) for field in type_}
    count = int(rng.integers(0, 4))
    if pa.types.is_map(type_):
        keys = rng.choice(_TEXTS, count, replace=False)
        return [(str(key), _value(rng, type_.item_type, nulls)) for key in keys]
    return [_value(rng, type_.value_type, nulls) for _ in range(count)]


def _flat(rng: np.random.Generator, type_: pa.DataType) -> Any:
    number = int(rng.integers(-100, 100))
    if pa.types.is_boolean(type_):
        return number > 0
    if pa.types.is_integer(type_):
        most = 2 ** (type_.bit_width - 1) - 1
        return [number, most, -most - 1, 0][int(rng.choice(4, p=[0.85, 0.05, 0.05, 0.05]))]
    if pa.types.is_floating(type_):
        value = float(rng.choice(_REALS))
        return number / 4 if type_ == pa.float32() and abs(value) == 1e300 else value
    if pa.types.is_decimal(type_):
        return Decimal(int(rng.integers(-(10**6), 10**6))).scaleb(-type_.scale)
    if pa.types.is_date(type_):
        return date(1970, 1, 1) + timedelta(days=int(rng.integers(-60_000, 60_000)))
    if pa.types.is_timestamp(type_):
        return datetime(1970, 1, 1, tzinfo=UTC if type_.tz else None) + timedelta(microseconds=int(rng.integers(-(2**51), 2**52)))
    text = str(rng.choice(_TEXTS))
    return text if pa.types.is_string(type_) else text.encode() + bytes([number % 256])
