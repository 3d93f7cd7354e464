"""Columns in the names of folders, as in ``day=2024-01-31/user=7``, with the values that Spark gives them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa

from floodplain.sources.scan import Const, decoded_type

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class PartitionColumn:
    """A column of the input whose values are in the names of folders."""

    name: str
    type: bytes


def can_be_read(type_: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(type_) or pa.types.is_string(type_) or type_ == pa.date32())


def partition_values(folders: Sequence[str], columns: Sequence[PartitionColumn]) -> tuple[Const, ...] | None:
    """The values of the files in a folder. ``folders``: its path below that of the source.

    None if the folders are not those of exactly these columns in their order, or if a value is not written in the one way that
    every reader takes alike: Spark reads it, or refuses it.
    """
    pairs = [folder.partition("=") for folder in folders]
    if [name for name, _, _ in pairs] != [column.name for column in columns]:
        return None
    values = [_value(text, column) for (_, _, text), column in zip(pairs, columns, strict=True)]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _value(text: str, column: PartitionColumn) -> Const | None:
    type_ = decoded_type(column.type)
    if text == _NULL:
        return Const(None, column.type)
    if pa.types.is_string(type_):
        return Const(_ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), text), column.type) if text else None
    if pa.types.is_date(type_):
        return _day(text, column)
    if _INTEGER.fullmatch(text) and -(1 << type_.bit_width - 1) <= int(text) < 1 << type_.bit_width - 1:
        return Const(int(text), column.type)
    return None


def _day(text: str, column: PartitionColumn) -> Const | None:
    try:
        return Const(date.fromisoformat(text).toordinal() - _EPOCH, column.type) if _DATE.fullmatch(text) else None
    except ValueError:
        return None
