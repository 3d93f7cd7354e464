"""The Python representation of values for users: an array is a list, a struct a dict, a map a dict."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain.lossless import UNFIT, Lossy
from floodplain.state.kinds import plain_kind
from floodplain.state.pythonic import to_python

Normalizer: TypeAlias = Callable[[Any], Any]
Leaf: TypeAlias = Callable[[pa.DataType], Normalizer | None]
"""The normalizer of a type that is not nested; None if its values stay unchanged."""


def _unchanged(_: pa.DataType) -> None:
    return None


def normalizer_for(type_: pa.DataType, leaf: Leaf = _unchanged, *, strict: bool = False) -> Normalizer | None:
    """Copies a value, in any form that Arrow accepts, to the Python representation of this type.

    None for types whose values are immutable. A map whose keys are not hashable (structs and arrays) is a list of pairs. An
    invalid value stays unchanged, and Arrow rejects it when it is stored; if ``strict``, it raises at once, and so does a field
    that the struct does not have.
    """
    normalizers = _Normalizers(leaf, strict)
    return normalizers.of(type_) if pa.types.is_nested(type_) else None


def copier_for(type_: pa.DataType) -> Normalizer:
    """As ``normalizer_for``, with the identity for immutable values."""
    return normalizer_for(type_) or _same


def user_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as users see them."""
    values = to_python(column)
    return list(map(copier_for(column.type), values)) if _holds_map(column.type) else values


def user_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as users see them."""
    if not any(map(_holds_map, table.schema.types)):
        return table.to_pylist()
    names, columns = table.column_names, map(user_values, table.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _same(value: Any) -> Any:
    return value


def _holds_map(type_: pa.DataType) -> bool:
    return pa.types.is_map(type_) or any(_holds_map(type_.field(i).type) for i in range(type_.num_fields))


class _Normalizers:
    """Normalizers of nested types."""

    def __init__(self, leaf: Leaf, strict: bool) -> None:
        self._leaf = leaf
        self._strict = strict

    def of(self, type_: pa.DataType) -> Normalizer | None:
        if pa.types.is_struct(type_):
            return self._struct(type_)
        if pa.types.is_map(type_):
            return self._map(type_)
        return self._array(type_) if pa.types.is_nested(type_) and hasattr(type_, "value_type") else self._leaf(type_)

    def _array(self, type_: pa.DataType) -> Normalizer:
        element = self.of(type_.value_type)
        plain = {plain_kind(type_.value_type), type(None)}

        def normalize(value: Any) -> Any:
            if type(value) is list:
                return value[:] if element is None or plain.issuperset(map(type, value)) else list(map(element, value))
            if value is None:
                return None
            return normalize(list(value)) if isinstance(value, tuple) else self._by_arrow(value, type_, normalize)

        return normalize

    def _struct(self, type_: pa.DataType) -> Normalizer:
        names = [field.name for field in type_]
        nested = [(field.name, one) for field in type_ if (one := self.of(field.type))]
        known = frozenset(names) if self._strict else None

        def normalize(value: Any) -> Any:
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
                return self._by_arrow(value, type_, normalize)
            for name, one in nested:
                made[name] = one(made[name])
            return made

        return normalize

    def _map(self, type_: pa.DataType) -> Normalizer:
        key, item = self.of(type_.key_type), self.of(type_.item_type) or _same
        hashable = not pa.types.is_nested(type_.key_type)
        plain_key = key or _same

        def normalize(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, dict):
                pairs: Any = value.items()
            elif isinstance(value, list | tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
                pairs = value
            else:
                return self._by_arrow(value, type_, normalize)
            if not hashable:
                return [(plain_key(one), item(other)) for one, other in pairs]
            try:
                return {plain_key(one): item(other) for one, other in pairs}
            except TypeError:
                if self._strict:
                    raise
                return value

        return normalize

    def _by_arrow(self, value: Any, type_: pa.DataType, normalize: Normalizer) -> Any:
        """Normalizes what Arrow accepts besides lists, tuples and dicts, such as a NumPy array."""
        if self._strict:
            return normalize(_plain_of(value, type_))
        try:
            return normalize(pa.array([value], type_)[0].as_py())
        except UNFIT:
            return value


def _plain_of(value: Any, type_: pa.DataType) -> Any:
    """A value as lists, tuples and dicts, without loss. Raises ``Lossy`` if it cannot be a value of the type."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if pa.types.is_struct(type_) and isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        return dict(value)
    if pa.types.is_map(type_) and isinstance(value, list) and all(isinstance(one, dict) and len(one) == 2 for one in value):
        return [tuple(one.values()) for one in value]
    is_list = not (pa.types.is_struct(type_) or pa.types.is_map(type_))
    if is_list and isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    raise Lossy(f"a {type(value).__name__} is not a value of this type")
