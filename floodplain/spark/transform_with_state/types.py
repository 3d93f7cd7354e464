"""State values as PySpark's state API gives and takes them, and as our tables keep them.

Spark sends a state value to the JVM in its internal form and converts each field there to the type of the schema: an integer
wraps around at its width, a value of another kind becomes null, and a string field takes the text of any value. This module does
the same without the JVM.
"""

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.pandas.types import to_arrow_type

from floodplain.spark.transform_with_state.errors import wrong_length

TIME_ZONE = "UTC"

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_INTEGER_BITS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
# Types whose Python value needs no conversion: Spark gives the same value back.
_PLAIN: dict[type[T.DataType], type] = {
    T.BooleanType: bool,
    **dict.fromkeys(_INTEGER_BITS, int),
    T.DoubleType: float,
    T.StringType: str,
    T.BinaryType: bytes,
}

Convert = Callable[[Any], Any]


class Codec:
    """Converts between the values that users pass and what handles store, for one schema of a state.

    A schema of one field is stored as that field, one of several as a struct.
    """

    def __init__(self, schema: T.StructType, stored: T.StructType | None = None, *, whole: bool = False) -> None:
        """``stored``: the same schema with other names of fields, which are those in the tables. ``whole``: a single field is
        stored as a struct, too."""
        stored = stored or schema
        self.schema = schema
        self._names = stored.names
        self.is_bare = len(schema) == 1 and not whole
        types = [field.dataType for field in stored]
        fields = [pa.field(field.name, to_arrow_type(field.dataType, timezone=TIME_ZONE)) for field in stored]
        self.arrow: pa.DataType = fields[0].type if self.is_bare else pa.struct(fields)
        self._plain = tuple(_PLAIN.get(type(dtype)) for dtype in types)
        bits = [(at, _INTEGER_BITS[type(dtype)]) for at, dtype in enumerate(types) if type(dtype) in _INTEGER_BITS]
        self._bounds = [(at, -(1 << (width - 1)), 1 << (width - 1)) for at, width in bits]
        self._in = [_inward(dtype) for dtype in types]
        self._out = [_outward(field.dataType, kept) for field, kept in zip(schema, types, strict=True)]
        self.as_it_is = all(convert is None for convert in self._out)
        self.encode: Callable[[Any, str], Any] = self._encode
        """From a user's value to what handles store. The second argument is the start of the error message, in Spark's words."""
        if self.is_bare and self._plain[0] is not None:
            self.encode = self._encode_one(self._plain[0])

    def _encode(self, value_tuple: Any, failure: str) -> Any:
        if type(value_tuple) is tuple and tuple(map(type, value_tuple)) == self._plain:
            for at, low, high in self._bounds:
                if not low <= value_tuple[at] < high:
                    break
            else:
                return value_tuple[0] if self.is_bare else dict(zip(self._names, value_tuple, strict=True))
        return self._converted(value_tuple, failure)

    def _encode_one(self, kind: Any) -> Callable[[Any, str], Any]:
        """``encode`` for the most frequent case: one field that needs no conversion."""
        low, high = self._bounds[0][1:] if self._bounds else (0, 0)
        bounded = kind is int

        def encode(value_tuple: Any, failure: str) -> Any:
            if type(value_tuple) is tuple and len(value_tuple) == 1:
                value = value_tuple[0]
                if type(value) is kind and (not bounded or low <= value < high):
                    return value
            return self._converted(value_tuple, failure)

        return encode

    def _converted(self, value_tuple: Any, failure: str) -> Any:
        internal = self.schema.toInternal(tuple(map(_normal, value_tuple)))
        if len(internal) != len(self._names):
            raise PySparkRuntimeError(f"{failure}: {wrong_length(len(self._names), len(internal))}")
        try:
            values = [None if value is None else convert(value) for value, convert in zip(internal, self._in, strict=True)]
        except ArithmeticError as error:
            raise PySparkRuntimeError(f"{failure}: {error}") from error
        return values[0] if self.is_bare else dict(zip(self._names, values, strict=True))

    def decode(self, kept: Any) -> tuple[Any, ...]:
        values = (kept,) if self.is_bare else tuple(kept.values())
        if self.as_it_is:
            return values
        return tuple(
            value if value is None or convert is None else convert(value)
            for value, convert in zip(values, self._out, strict=True)
        )

    def row(self, kept: Any) -> T.Row:
        """As ``decode``, with the names of the fields."""
        return T._create_row(self.schema.names, self.decode(kept))


def _normal(value: Any) -> Any:
    """NumPy and pandas scalars as Python values, at any depth."""
    if isinstance(value, np.generic):
        return value.tolist()
    if isinstance(value, T.Row) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value)(*map(_normal, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_normal, value))
    if isinstance(value, dict):
        return {_normal(key): _normal(one) for key, one in value.items()}
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _inward(dtype: T.DataType) -> Convert:
    """From the internal form of a value, not None, to what an Arrow column of its type takes; None for another kind."""
    kind = type(dtype)
    if kind in _INTEGER_BITS:
        return _integer(_INTEGER_BITS[kind])
    if kind in _INWARD:
        return _INWARD[kind]
    match dtype:
        case T.DecimalType():
            return _decimal(dtype.precision, dtype.scale)
        case T.ArrayType():
            element = _nullable(_inward(dtype.elementType))
            return lambda value: [element(one) for one in value] if isinstance(value, list | tuple) else None
        case T.MapType():
            key, entry = _nullable(_inward(dtype.keyType)), _nullable(_inward(dtype.valueType))
            return lambda value: [(key(k), entry(v)) for k, v in value.items()] if isinstance(value, dict) else None
        case T.StructType():
            return _struct(dtype)
        case _:
            return lambda value: value


def _outward(dtype: T.DataType, stored: Any) -> Convert | None:
    """From what a handle keeps, not None, to what Spark's state API returns; None if that is the same. ``stored``: the type with
    the names of fields that are kept."""
    match dtype:
        case T.TimestampType():
            return _local_time
        case T.ArrayType():
            # Always a new list: what a processor does to it must not reach the state.
            element = _outward(dtype.elementType, stored.elementType)
            return list if element is None else lambda value: [one if one is None else element(one) for one in value]
        case T.MapType():
            key, entry = _maybe(_outward(dtype.keyType, stored.keyType)), _maybe(_outward(dtype.valueType, stored.valueType))
            return lambda value: {key(k): entry(v) for k, v in value}
        case T.StructType():
            outs = [_maybe(_outward(field.dataType, kept.dataType)) for field, kept in zip(dtype, stored, strict=True)]
            return lambda value: T._create_row(
                dtype.names, tuple(out(value[name]) for out, name in zip(outs, stored.names, strict=True))
            )
        case _:
            return None


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _maybe(convert: Convert | None) -> Convert:
    return (lambda value: value) if convert is None else _nullable(convert)


def _integer(bits: int) -> Convert:
    half, whole = 1 << (bits - 1), 1 << bits

    def convert(value: Any) -> int | None:
        if type(value) is not int or not _LONG_MIN <= value <= _LONG_MAX:
            return None
        return value if -half <= value < half else (value + half) % whole - half

    return convert


def _decimal(precision: int, scale: int) -> Convert:
    context = decimal.Context(prec=precision + scale + 40, rounding=decimal.ROUND_HALF_UP)

    def convert(value: Any) -> decimal.Decimal | None:
        if not isinstance(value, decimal.Decimal):
            return None
        rounded = value.quantize(decimal.Decimal(1).scaleb(-scale), context=context)
        if len(rounded.as_tuple().digits) > precision:
            raise ArithmeticError(
                f"[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] {value} cannot be represented as Decimal({precision}, {scale})"
            )
        return rounded

    return convert


def _struct(dtype: T.StructType) -> Convert:
    converts = [_nullable(_inward(field.dataType)) for field in dtype]

    def convert(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, tuple | list):
            return None
        return {name: one(part) for name, one, part in zip(dtype.names, converts, value, strict=True)}

    return convert


def _float(value: Any) -> float | None:
    if type(value) is not float:
        return None
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _text(value: Any) -> str:
    """As Java writes what Python sent."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    return str(value)


def _java_double(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) - 1 + int(exponent)
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"


def _binary(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _only(kind: type) -> Convert:
    return lambda value: value if type(value) is kind else None


_INWARD: dict[type[T.DataType], Convert] = {
    T.BooleanType: _only(bool),
    T.FloatType: _float,
    T.DoubleType: _only(float),
    T.StringType: _text,
    T.BinaryType: _binary,
    T.DateType: lambda value: (_EPOCH + datetime.timedelta(days=value)).date() if type(value) is int else None,
    T.TimestampType: lambda value: _EPOCH + datetime.timedelta(microseconds=value) if type(value) is int else None,
    T.TimestampNTZType: lambda value: _EPOCH.replace(tzinfo=None) + datetime.timedelta(microseconds=value),
    T.DayTimeIntervalType: lambda value: datetime.timedelta(microseconds=value),
}


def _local_time(value: datetime.datetime) -> datetime.datetime:
    """Spark's internal time to Python: the local time of the process, with no zone."""
    return value.astimezone().replace(tzinfo=None)
