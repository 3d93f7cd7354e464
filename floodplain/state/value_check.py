"""Lossless conversion of Python values to Arrow types, for outputs, states, defaults and the rows of kits.

A value fits a type if the store returns an equal one. ``2.0`` fits ``long``; 1.5 does not, and a time without a zone does not fit
``timestamp``. ``floodplain.lossless`` has the same rule for Arrow columns.
"""

import math
from collections.abc import Callable, Sequence
from datetime import datetime, time
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import SchemaMismatch, short
from floodplain.lossless import NO_ZONE, UNFIT, ZONE_LOST, Lossy
from floodplain.state.kinds import FINE_UNITS, plain_kind
from floodplain.state.python_values import normalizer_for

Converter: TypeAlias = Callable[[Any], Any]
"""Converts a value to the one that is stored, or raises one of ``UNFIT``."""


def quick_check(type_: pa.DataType) -> Callable[[Any], bool]:
    """A cheap check. True: the value fits. False: it may fit, and ``array_of`` decides."""
    if pa.types.is_signed_integer(type_):
        bound = 1 << (type_.bit_width - 1)
        return lambda value: value is None or (type(value) is int and -bound <= value < bound)
    if pa.types.is_string(type_):
        return lambda value: value is None or (type(value) is str and value.isascii())
    if pa.types.is_float64(type_):
        return lambda value: value is None or type(value) is float
    if pa.types.is_boolean(type_):
        return lambda value: value is None or type(value) is bool
    return lambda value: value is None


def converter_for(type_: pa.DataType) -> Converter:
    """The converter of any value that Arrow accepts to a copy of what the store returns."""
    return normalizer_for(type_, leaf=_leaf, strict=True) or _leaf(type_)


def identity(value: Any) -> Any:
    """The converter of values that are known to fit."""
    return value


def checked_converter(where: str, type_: pa.DataType, *, check_range: bool = False) -> Converter:
    """``converter_for`` with errors that name the state and the value.

    ``check_range``: also checks what only Arrow knows, such as the range of a number; else that is checked when it is stored.
    """
    convert = converter_for(type_)

    def checked(value: Any) -> Any:
        try:
            converted = convert(value)
            if check_range:
                pa.array([converted], type_)
            return converted
        except UNFIT as error:
            reason = str(error).partition("\n")[0]
            raise SchemaMismatch(f"{where}: {short(value)} does not fit type {type_}: {reason}") from error

    return checked


def array_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The values as an array. Raises one of ``UNFIT`` if one of them does not fit."""
    if _arrow_keeps(values, type_):
        made = pa.array(values, type_)
        if not pa.types.is_float32(type_) or not pc.any(pc.is_inf(made)).as_py():
            return made
    return pa.array(list(map(converter_for(type_), values)), type_)


def check_each(values: Sequence[Any], type_: pa.DataType) -> None:
    """Raises ``Lossy`` that names the first value that does not fit."""
    unfit = first_unfit(values, type_)
    if unfit is not None:
        reason = str(unfit[1]).partition("\n")[0]
        raise Lossy(f"{short(values[unfit[0]])} does not fit type {type_}: {reason}") from unfit[1]


def first_unfit(values: Sequence[Any], type_: pa.DataType) -> tuple[int, Exception] | None:
    """The position of the first value that does not fit, and the error; None if all fit."""
    convert = converter_for(type_)
    for at, value in enumerate(values):
        try:
            pa.array([convert(value)], type_)
        except UNFIT as reason:
            return at, reason
    return None


def table_of(rows: Sequence[Any], schema: pa.Schema, where: str) -> pa.Table:
    """A table of rows, which are dicts; a missing field is null.

    Raises ``SchemaMismatch`` that names the column and the value that does not fit.
    """
    known = frozenset(schema.names)
    unknown = next((name for row in rows for name in row if name not in known), None)
    if unknown is not None:
        raise SchemaMismatch(f"{where}: there is no column {unknown}; the columns are {', '.join(schema.names)}")
    return pa.Table.from_arrays([_column([row.get(field.name) for row in rows], field, where) for field in schema], schema=schema)


def _column(values: list[Any], field: pa.Field, where: str) -> pa.Array:
    try:
        return array_of(values, field.type)
    except UNFIT as error:
        at, reason = first_unfit(values, field.type) or (0, error)
        line = str(reason).partition("\n")[0]
        raise SchemaMismatch(
            f"{where}: {short(values[at])} does not fit column {field.name} of type {field.type}: {line}"
        ) from error


def _arrow_keeps(values: Sequence[Any], type_: pa.DataType) -> bool:
    """Whether Arrow converts these values without silent loss; checked for all of them at once."""
    types = pa.types
    if types.is_integer(type_) or types.is_nested(type_):
        return _inferred_fits(values, type_)
    if types.is_temporal(type_):
        return _times_fit(values, type_)
    return not types.is_float16(type_) and not isinstance(type_, pa.BaseExtensionType)


def _inferred_fits(values: Sequence[Any], type_: pa.DataType) -> bool:
    try:
        return _holds(type_, pa.infer_type(values))
    except UNFIT:
        return False


def _holds(wanted: pa.DataType, inferred: pa.DataType) -> bool:
    """Whether Arrow converts all values of the inferred type to the wanted one without silent loss."""
    types = pa.types
    if types.is_null(inferred) or types.is_integer(inferred):
        return types.is_null(inferred) or types.is_integer(wanted) or types.is_float64(wanted)
    if types.is_struct(inferred) and types.is_struct(wanted):
        of = {field.name: field.type for field in wanted}
        return all(field.name in of and _holds(of[field.name], field.type) for field in inferred)
    if types.is_list(inferred) and types.is_list(wanted):
        return _holds(wanted.value_type, inferred.value_type)
    same = (types.is_string, types.is_binary, types.is_boolean, types.is_float64)
    return any(is_one(inferred) and is_one(wanted) for is_one in same)


def _times_fit(values: Sequence[Any], type_: pa.DataType) -> bool:
    types = pa.types
    kinds = set(map(type, values)) - {type(None)}
    if types.is_date32(type_) or types.is_duration(type_):
        return kinds <= {plain_kind(type_)}
    timestamp = types.is_timestamp(type_)
    if not kinds <= {datetime if timestamp else time} or type_.unit not in FINE_UNITS:
        return False
    zones = {value.tzinfo for value in values if value is not None}
    return None not in zones if timestamp and type_.tz is not None else zones <= {None}


def _leaf(type_: pa.DataType) -> Converter:
    """As ``converter_for``, for types that are not nested."""
    types = pa.types
    if types.is_timestamp(type_):
        return _timestamp(type_)
    if types.is_temporal(type_):
        return _other_time(type_)
    if types.is_floating(type_) and not types.is_float64(type_):
        return _narrow_float(type_)
    kind = plain_kind(type_)
    if kind is None or kind in (str, bytes):
        return _by_arrow(type_, kind)
    return _equal(type_, kind)


def _by_arrow(type_: pa.DataType, kind: type | None) -> Converter:
    def convert(value: Any) -> Any:
        return value if value is None or type(value) is kind else pa.array([value], type_)[0].as_py()

    return convert


def _equal(type_: pa.DataType, kind: type | None) -> Converter:
    """Converts by Arrow, and raises ``Lossy`` unless the result is equal."""

    def convert(value: Any) -> Any:
        if value is None or type(value) is kind:
            return value
        made = pa.array([value], type_)[0].as_py()
        value = value.as_py() if isinstance(value, pa.Scalar) else value
        if made == value or (made != made and value != value):
            return made
        raise Lossy.of(value, made)

    return convert


def _narrow_float(type_: pa.DataType) -> Converter:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        made = pa.array([value], type_)[0].as_py()
        if math.isinf(made) and not math.isinf(value):
            raise Lossy.of(value, made)
        return made

    return convert


def _timestamp(type_: pa.DataType) -> Converter:
    aware, exact = type_.tz is not None, _equal(type_, None)
    keeps_micros = type_.unit in FINE_UNITS

    def convert(value: Any) -> Any:
        if type(value) is datetime and (value.tzinfo is not None) is aware and keeps_micros:
            return value
        if isinstance(value, np.datetime64) and aware:
            raise Lossy(NO_ZONE)
        if isinstance(value, datetime) and (value.tzinfo is not None) is not aware:
            raise Lossy(NO_ZONE if aware else ZONE_LOST)
        return _of_number(value, type_, exact)

    return convert


def _other_time(type_: pa.DataType) -> Converter:
    kind = plain_kind(type_)
    exact = _equal(type_, kind)
    is_date = pa.types.is_date(type_)

    def convert(value: Any) -> Any:
        if is_date and isinstance(value, datetime) and value.tzinfo is None and value.time() == time():
            return value.date()
        return _of_number(value, type_, exact)

    return convert


def _of_number(value: Any, type_: pa.DataType, exact: Converter) -> Any:
    """A number is a time in the unit of the type, without a fraction."""
    if isinstance(value, int | float | Decimal | np.integer | np.floating) and not isinstance(value, bool):
        if value != int(value):
            raise Lossy.of(value, int(value))
        return pa.array([int(value)], type_)[0].as_py()
    return exact(value)
