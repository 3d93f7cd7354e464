"""The one form in which users see values, wherever they come from: an array is a list, a struct a dict, a map a dict."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain.state.fit import UNFIT
from floodplain.state.pythonic import to_python

Form: TypeAlias = Callable[[Any], Any]


def form_of(type_: pa.DataType) -> Form | None:
    """What makes of a value of this type, given in any way that Arrow knows, a fresh one in the one form.

    None for types whose values cannot be changed in place: they are what they are. A map whose keys no dict can have (structs
    and arrays) is a list of pairs. What does not fit is left as it is, for Arrow to refuse when it is stored.
    """
    if pa.types.is_struct(type_):
        return _struct(type_)
    if pa.types.is_map(type_):
        return _map(type_)
    return _array(type_) if pa.types.is_nested(type_) and hasattr(type_, "value_type") else None


def fresh_by(type_: pa.DataType) -> Form:
    """As ``form_of``, where a call more does not matter."""
    return form_of(type_) or _same


def in_form(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """A column as users see its values."""
    values = to_python(column)
    return list(map(fresh_by(column.type), values)) if _holds_map(column.type) else values


def rows_in_form(table: pa.Table) -> list[dict[str, Any]]:
    """A table as users see its rows."""
    if not any(map(_holds_map, table.schema.types)):
        return table.to_pylist()
    columns = map(in_form, table.columns)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _same(value: Any) -> Any:
    return value


def _holds_map(type_: pa.DataType) -> bool:
    return pa.types.is_map(type_) or any(_holds_map(type_.field(i).type) for i in range(type_.num_fields))


def _array(type_: pa.DataType) -> Form:
    element = form_of(type_.value_type)

    def form(value: Any) -> Any:
        if type(value) is list:
            return value[:] if element is None else list(map(element, value))
        if value is None:
            return None
        return form(list(value)) if isinstance(value, tuple) else _by_arrow(value, type_, form)

    return form


def _struct(type_: pa.DataType) -> Form:
    names = [field.name for field in type_]
    nested = [(field.name, one) for field in type_ if (one := form_of(field.type))]

    def form(value: Any) -> Any:
        if isinstance(value, dict):
            get = value.get
            made = {name: get(name) for name in names}
        elif value is None:
            return None
        elif isinstance(value, tuple) and len(value) == len(names):
            made = dict(zip(names, value, strict=True))
        else:
            return _by_arrow(value, type_, form)
        for name, one in nested:
            made[name] = one(made[name])
        return made

    return form


def _map(type_: pa.DataType) -> Form:
    key, item = form_of(type_.key_type), fresh_by(type_.item_type)

    def form(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            pairs: Any = value.items()
        elif isinstance(value, list | tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            pairs = value
        else:
            return _by_arrow(value, type_, form)
        if key is not None:
            return [(key(one), item(other)) for one, other in pairs]
        try:
            return {one: item(other) for one, other in pairs}
        except TypeError:
            return value

    return form


def _by_arrow(value: Any, type_: pa.DataType, form: Form) -> Any:
    """Of what Arrow takes besides lists, tuples and dicts, such as a NumPy array."""
    try:
        return form(pa.array([value], type_)[0].as_py())
    except UNFIT:
        return value
