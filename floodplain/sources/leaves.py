"""Values of Parquet columns as Spark's types: which conversions Spark accepts, and how they are made.

Spark goes by how a column is stored and by its annotation. The Arrow type of a column does not matter: other writers note one in
the file, which Spark does not look at.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import NotNative

CORRECTED = "CORRECTED"
_FIRST_DAY = -141_427
"""1582-10-15: from here on both calendars have the same dates."""
_FIRST_US = -2_208_988_800_000_000
"""1900-01-01: from here on Spark does not shift times of either calendar, in any time zone."""
_DIGITS = {"int8": 10, "int16": 10, "int32": 10, "int64": 20}
"""Whole digits of the decimals that can be read from an integer."""

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_TIMES = ("int96", "micros", "millis")
_WIDER: dict[str, tuple[pa.DataType, ...]] = {
    "bool": (pa.bool_(),),
    "int8": (*_INTEGERS, pa.float64()),
    "int16": (*_INTEGERS[1:], pa.float64()),
    "int32": (*_INTEGERS[2:], pa.float64()),
    "int64": (pa.int64(),),
    "float": (pa.float32(), pa.float64()),
    "double": (pa.float64(),),
    "date": (pa.date32(),),
    "bytes": (pa.string(), pa.binary()),
    "fixed": (pa.binary(),),
}
_INTEGER_WIDTHS = {"INT32": (8, 16, 32), "INT64": (64,)}
_PLAIN = {"BOOLEAN": "bool", "FLOAT": "float", "DOUBLE": "double", "INT96": "int96", "FIXED_LEN_BYTE_ARRAY": "fixed"}
_TEXTS = ("None", "String", "Enum", "JSON", "BSON")


@dataclass(frozen=True)
class Calendars:
    """How the dates and times of a file are to be read: ``CORRECTED`` as they are. Otherwise only if they are the same in the
    calendar of old writers."""

    datetime: str
    int96: str


@dataclass(frozen=True)
class Leaf:
    """A column of a Parquet file that holds values."""

    index: int
    path: str
    kind: str | None
    """How values are stored: a key of ``_WIDER``, ``decimal``, or one of ``_TIMES``. None: in a way that is not read here."""
    precision: int = 0
    scale: int = 0
    stored: str = ""

    @classmethod
    def of(cls, index: int, column: Any) -> "Leaf":
        """``column``: as pyarrow describes it."""
        logical = json.loads(column.logical_type.to_json())
        stored = f"{column.physical_type} ({logical['Type']})"
        return cls(index, column.path, _kind(column.physical_type, logical), column.precision, column.scale, stored)


def _kind(physical: str, logical: dict[str, Any]) -> str | None:
    annotation = logical["Type"]
    if annotation == "Decimal" and physical in ("INT32", "INT64", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        return "decimal"
    if physical in _INTEGER_WIDTHS:
        return _integer_kind(physical, logical)
    if physical == "BYTE_ARRAY":
        return "bytes" if annotation in _TEXTS else None
    return _PLAIN.get(physical) if annotation == "None" else None


def _integer_kind(physical: str, logical: dict[str, Any]) -> str | None:
    match logical["Type"]:
        case "None":
            return physical.lower()
        case "Int" if logical["isSigned"] and logical["bitWidth"] in _INTEGER_WIDTHS[physical]:
            return f"int{logical['bitWidth']}"
        case "Date":
            return "date"
        case "Timestamp":
            return {"microseconds": "micros", "milliseconds": "millis"}.get(logical["timeUnit"])
        case _:
            return None


def conversion(leaf: Leaf, type_: pa.DataType, calendars: Calendars) -> Callable[[pa.Array], pa.Array]:
    """Converts values of a column, as pyarrow reads them, to a type. Raises ``NotNative`` if that is not done here."""
    if leaf.kind in _TIMES and pa.types.is_timestamp(type_):
        return _times(leaf, type_, calendars)
    if leaf.kind == "date" and type_ == pa.date32():
        return _dates(leaf, calendars)
    if type_ in _WIDER.get(leaf.kind or "", ()):
        return _text if type_ == pa.string() else _bytes if type_ == pa.binary() else _numbers(type_)
    if pa.types.is_decimal(type_) and _holds(type_, leaf):
        return _numbers(type_)
    raise NotNative(
        f"column {leaf.path}, which is stored as {leaf.stored}, is not read as {type_} here: it is left to Spark, which may "
        "refuse it"
    )


def _holds(type_: pa.Decimal128Type, leaf: Leaf) -> bool:
    """Whether a decimal type can have all values of a column, by Spark's rules."""
    if leaf.kind == "decimal":
        return type_.scale >= leaf.scale and type_.precision - leaf.precision >= type_.scale - leaf.scale
    return leaf.kind in _DIGITS and type_.precision - type_.scale >= _DIGITS[leaf.kind]


def _plain(column: pa.Array) -> pa.Array:
    """Without a dictionary."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _numbers(type_: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def numbers(column: pa.Array) -> pa.Array:
        plain = _plain(column)
        if plain.type != type_ and type_ == pa.int64() and plain.type.bit_width == 64:
            return plain.view(type_)
        return plain.cast(type_)

    return numbers


def _text(column: pa.Array) -> pa.Array:
    """Bytes that are no UTF-8 stay what they are, as in Spark."""
    plain = _plain(column)
    return plain if plain.type == pa.string() else _bytes(plain).view(pa.string())


def _bytes(column: pa.Array) -> pa.Array:
    return _plain(column).cast(pa.binary())


def _dates(leaf: Leaf, calendars: Calendars) -> Callable[[pa.Array], pa.Array]:
    def dates(column: pa.Array) -> pa.Array:
        days = _plain(column).cast(pa.date32())
        _check_calendar(leaf, days.view(pa.int32()), _FIRST_DAY, calendars.datetime)
        return days

    return dates


def _times(leaf: Leaf, type_: pa.DataType, calendars: Calendars) -> Callable[[pa.Array], pa.Array]:
    calendar = calendars.int96 if leaf.kind == "int96" else calendars.datetime
    if type_.tz is None:
        calendar = CORRECTED  # Spark takes a time without a time zone as it is

    def times(column: pa.Array) -> pa.Array:
        micros = _plain(column).view(pa.int64())
        if leaf.kind == "millis":
            micros = pc.multiply_checked(micros, 1000)
        _check_calendar(leaf, micros, _FIRST_US, calendar)
        return micros.view(type_)

    return times


def _check_calendar(leaf: Leaf, values: pa.Array, first: int, calendar: str) -> None:
    if calendar == CORRECTED:
        return
    oldest = pc.min(values).as_py()
    if oldest is not None and oldest < first:
        raise NotNative(
            f"column {leaf.path} has dates of before 1900 in a file whose calendar is not known, or is that of old writers: it "
            f"is left to Spark, whose rebase mode is {calendar}"
        )
