"""Whether Python values fit an Arrow type: the one rule for outputs, states, defaults and the rows of kits.

A value fits if the store gives an equal one back. ``2.0`` is a ``long``; 1.5 is none, nor is a time without a zone a
``timestamp``. Columns of Arrow go by ``floodplain.lossless``, which is the same rule.
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
from floodplain.state.python_values import form_of

Fit: TypeAlias = Callable[[Any], Any]
"""Makes of a value the one that is kept, or raises one of ``UNFIT``."""


def surely_fits(type_: pa.DataType) -> Callable[[Any], bool]:
    """True: the value can be stored. False: only ``array_of`` can tell."""
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


def fit_of(type_: pa.DataType) -> Fit:
    """What makes of a value, given in any way that Arrow knows, a fresh one as the store gives it back."""
    return form_of(type_, leaf=_leaf, strict=True) or _leaf(type_)


def as_it_is(value: Any) -> Any:
    """The ``Fit`` of values that are known to fit."""
    return value


def fitting(where: str, type_: pa.DataType, *, wholly: bool = False) -> Fit:
    """``fit_of`` with errors that name the place and the value.

    ``wholly``: what only Arrow can tell, such as a number beyond its range, is refused here too, not when it is stored.
    """
    fit = fit_of(type_)

    def checked(value: Any) -> Any:
        try:
            fitted = fit(value)
            if wholly:
                pa.array([fitted], type_)
            return fitted
        except UNFIT as error:
            reason = str(error).partition("\n")[0]
            raise SchemaMismatch(f"{where}: {short(value)} does not fit type {type_}: {reason}") from error

    return checked


def array_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The values as an array. Raises one of ``UNFIT`` if one of them does not fit."""
    if _taken_as_they_are(values, type_):
        made = pa.array(values, type_)
        if not pa.types.is_float32(type_) or not pc.any(pc.is_inf(made)).as_py():
            return made
    return pa.array(list(map(fit_of(type_), values)), type_)


def check_each(values: Sequence[Any], type_: pa.DataType) -> None:
    """Raises ``Lossy`` that names the first value that does not fit."""
    found = first_unfit(values, type_)
    if found is not None:
        reason = str(found[1]).partition("\n")[0]
        raise Lossy(f"{short(values[found[0]])} does not fit type {type_}: {reason}") from found[1]


def first_unfit(values: Sequence[Any], type_: pa.DataType) -> tuple[int, Exception] | None:
    """The place of the first value that does not fit, and why."""
    fit = fit_of(type_)
    for at, value in enumerate(values):
        try:
            pa.array([fit(value)], type_)
        except UNFIT as reason:
            return at, reason
    return None


def table_of(rows: Sequence[Any], schema: pa.Schema, where: str) -> pa.Table:
    """Rows, given as dicts, as a table; a field that a row lacks is null.

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
        found = first_unfit(values, field.type)
        at, reason = found if found is not None else (0, error)
        line = str(reason).partition("\n")[0]
        raise SchemaMismatch(
            f"{where}: {short(values[at])} does not fit column {field.name} of type {field.type}: {line}"
        ) from error


def _taken_as_they_are(values: Sequence[Any], type_: pa.DataType) -> bool:
    """Whether Arrow loses nothing of these values without saying so; found out for all of them at once."""
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


def _holds(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Whether all values of which Arrow says that they are of the one type fit the other, but for those that it refuses."""
    types = pa.types
    if types.is_null(given) or types.is_integer(given):
        return types.is_null(given) or types.is_integer(wanted) or types.is_float64(wanted)
    if types.is_struct(given) and types.is_struct(wanted):
        of = {field.name: field.type for field in wanted}
        return all(field.name in of and _holds(of[field.name], field.type) for field in given)
    if types.is_list(given) and types.is_list(wanted):
        return _holds(wanted.value_type, given.value_type)
    same = (types.is_string, types.is_binary, types.is_boolean, types.is_float64)
    return any(is_one(given) and is_one(wanted) for is_one in same)


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


def _leaf(type_: pa.DataType) -> Fit:
    """As ``fit_of``, for types that hold no others."""
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


def _by_arrow(type_: pa.DataType, kind: type | None) -> Fit:
    def fit(value: Any) -> Any:
        return value if value is None or type(value) is kind else pa.array([value], type_)[0].as_py()

    return fit


def _equal(type_: pa.DataType, kind: type | None) -> Fit:
    """What Arrow makes of a value, if that is equal to it."""

    def fit(value: Any) -> Any:
        if value is None or type(value) is kind:
            return value
        made = pa.array([value], type_)[0].as_py()
        value = value.as_py() if isinstance(value, pa.Scalar) else value
        if made == value or (made != made and value != value):
            return made
        raise Lossy.of(value, made)

    return fit


def _narrow_float(type_: pa.DataType) -> Fit:
    def fit(value: Any) -> Any:
        if value is None:
            return None
        made = pa.array([value], type_)[0].as_py()
        if math.isinf(made) and not math.isinf(value):
            raise Lossy.of(value, made)
        return made

    return fit


def _timestamp(type_: pa.DataType) -> Fit:
    aware, exact = type_.tz is not None, _equal(type_, None)
    as_it_is = type_.unit in FINE_UNITS

    def fit(value: Any) -> Any:
        if type(value) is datetime and (value.tzinfo is not None) is aware and as_it_is:
            return value
        if isinstance(value, np.datetime64) and aware:
            raise Lossy(NO_ZONE)
        if isinstance(value, datetime) and (value.tzinfo is not None) is not aware:
            raise Lossy(NO_ZONE if aware else ZONE_LOST)
        return _of_number(value, type_, exact)

    return fit


def _other_time(type_: pa.DataType) -> Fit:
    kind = plain_kind(type_)
    exact = _equal(type_, kind)
    is_date = pa.types.is_date(type_)

    def fit(value: Any) -> Any:
        if is_date and isinstance(value, datetime) and value.tzinfo is None and value.time() == time():
            return value.date()
        return _of_number(value, type_, exact)

    return fit


def _of_number(value: Any, type_: pa.DataType, exact: Fit) -> Any:
    """A number is a time in the unit of the type; a fraction of it is none."""
    if isinstance(value, int | float | Decimal | np.integer | np.floating) and not isinstance(value, bool):
        if value != int(value):
            raise Lossy.of(value, int(value))
        return pa.array([int(value)], type_)[0].as_py()
    return exact(value)
