"""The one form in which users see values, wherever they come from: an array is a list, a struct a dict, a map a dict."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain.lossless import UNFIT, Lossy
from floodplain.state.kinds import plain_kind
from floodplain.state.pythonic import to_python

Form: TypeAlias = Callable[[Any], Any]
Leaf: TypeAlias = Callable[[pa.DataType], Form | None]
"""What is made of the values of a type that holds no others; None: they are what they are."""


def _as_they_are(_: pa.DataType) -> None:
    return None


def form_of(type_: pa.DataType, leaf: Leaf = _as_they_are, *, strict: bool = False) -> Form | None:
    """What makes of a value of this type, given in any way that Arrow knows, a fresh one in the one form.

    None for types whose values cannot be changed in place: they are what they are. A map whose keys no dict can have (structs
    and arrays) is a list of pairs. What does not fit is left as it is, for Arrow to refuse when it is stored; if ``strict``, it
    is refused at once, and so is a field that the struct does not have.
    """
    form = _Forms(leaf, strict)
    return form.of(type_) if pa.types.is_nested(type_) else None


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
    names, columns = table.column_names, map(in_form, table.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _same(value: Any) -> Any:
    return value


def _holds_map(type_: pa.DataType) -> bool:
    return pa.types.is_map(type_) or any(_holds_map(type_.field(i).type) for i in range(type_.num_fields))


class _Forms:
    """Forms of types within types."""

    def __init__(self, leaf: Leaf, strict: bool) -> None:
        self._leaf = leaf
        self._strict = strict

    def of(self, type_: pa.DataType) -> Form | None:
        if pa.types.is_struct(type_):
            return self._struct(type_)
        if pa.types.is_map(type_):
            return self._map(type_)
        return self._array(type_) if pa.types.is_nested(type_) and hasattr(type_, "value_type") else self._leaf(type_)

    def _array(self, type_: pa.DataType) -> Form:
        element = self.of(type_.value_type)
        plain = {plain_kind(type_.value_type), type(None)}

        def form(value: Any) -> Any:
            if type(value) is list:
                return value[:] if element is None or plain.issuperset(map(type, value)) else list(map(element, value))
            if value is None:
                return None
            return form(list(value)) if isinstance(value, tuple) else self._by_arrow(value, type_, form)

        return form

    def _struct(self, type_: pa.DataType) -> Form:
        names = [field.name for field in type_]
        nested = [(field.name, one) for field in type_ if (one := self.of(field.type))]
        known = frozenset(names) if self._strict else None

        def form(value: Any) -> Any:
            if isinstance(value, dict):
                get = value.get
                made = {name: get(name) for name in names}
                if known is not None and not known.issuperset(value):
                    raise Lossy(f"the struct has no field {min(map(str, value.keys() - known))}; it has: {', '.join(names)}")
            elif value is None:
                return None
            elif isinstance(value, tuple) and len(value) == len(names):
                made = dict(zip(names, value, strict=True))
            else:
                return self._by_arrow(value, type_, form)
            for name, one in nested:
                made[name] = one(made[name])
            return made

        return form

    def _map(self, type_: pa.DataType) -> Form:
        key, item = self.of(type_.key_type), self.of(type_.item_type) or _same
        hashable = not pa.types.is_nested(type_.key_type)
        plain_key = key or _same

        def form(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, dict):
                pairs: Any = value.items()
            elif isinstance(value, list | tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
                pairs = value
            else:
                return self._by_arrow(value, type_, form)
            if not hashable:
                return [(plain_key(one), item(other)) for one, other in pairs]
            try:
                return {plain_key(one): item(other) for one, other in pairs}
            except TypeError:
                if self._strict:
                    raise
                return value

        return form

    def _by_arrow(self, value: Any, type_: pa.DataType, form: Form) -> Any:
        """Of what Arrow takes besides lists, tuples and dicts, such as a NumPy array."""
        if self._strict:
            return form(_plain_of(value, type_))
        try:
            return form(pa.array([value], type_)[0].as_py())
        except UNFIT:
            return value


def _plain_of(value: Any, type_: pa.DataType) -> Any:
    """As lists, tuples and dicts, without any loss. Raises ``Lossy`` for what cannot be a value of the type."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if pa.types.is_struct(type_) and isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        return dict(value)
    if pa.types.is_map(type_) and isinstance(value, list) and all(isinstance(one, dict) and len(one) == 2 for one in value):
        return [tuple(one.values()) for one in value]
    is_list = not (pa.types.is_struct(type_) or pa.types.is_map(type_))
    if is_list and isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    raise Lossy(f"a {type(value).__name__} is no value of it")
