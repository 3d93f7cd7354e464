"""Handles on states with mutable values: they return and store copies, so that a change in place has no effect unless it is set.

The base handles return and store immutable values without a copy.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from floodplain.state.descriptors import Aggregating, List, Map, Reducing, Set, State, Value
from floodplain.state.entries import ABSENT as NO_ENTRY
from floodplain.state.handles import ABSENT, ReducingHandle, ValueHandle
from floodplain.state.keyspace import TableCursor
from floodplain.state.lists import ListHandle
from floodplain.state.maps import MapHandle, SetHandle
from floodplain.state.python_values import copier_for, normalizer_for
from floodplain.state.tables import StateColumn

Handle = TypeVar("Handle", ValueHandle, ReducingHandle, ListHandle, MapHandle, SetHandle)


class NestedValueHandle(ValueHandle):
    def __init__(self, state: Value, place: StateColumn, cursor: TableCursor) -> None:
        super().__init__(state, place, cursor)
        self._copy = copier_for(state.arrow)

    def get(self) -> Any:
        value = (self._values or self._load())[self.i]
        return self._copy(self._default if value is ABSENT else value)


class NestedReducingHandle(ReducingHandle):
    def __init__(self, state: Reducing | Aggregating, place: StateColumn, cursor: TableCursor) -> None:
        super().__init__(state, place, cursor)
        self._copy_result = copier_for(_result_type(state))

    def get(self) -> Any:
        return self._copy_result(super().get())


class NestedListHandle(ListHandle):
    def __init__(self, state: List, place: StateColumn, cursor: TableCursor, epoch: int) -> None:
        super().__init__(state, place, cursor, epoch)
        self._copy = copier_for(state.arrow)

    def get(self) -> list[Any]:
        return list(map(self._copy, super().get()))

    def __iter__(self) -> Iterator[Any]:
        return map(self._copy, super().__iter__())


class NestedMapHandle(MapHandle):
    def __init__(self, state: Map, place: StateColumn, cursor: TableCursor, rows: pa.Table, starts: np.ndarray) -> None:
        super().__init__(state, place, cursor, rows, starts)
        self._copy_key, self._copy = copier_for(state.arrow_key), copier_for(state.arrow_value)

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._now(key)
        return default if value is NO_ENTRY else self._copy(value)

    def _all(self) -> Iterator[tuple[Any, Any]]:
        return ((self._copy_key(key), self._copy(value)) for key, value in super()._all())


class NestedSetHandle(SetHandle):
    def __init__(self, state: Set, place: StateColumn, cursor: TableCursor, rows: pa.Table, starts: np.ndarray) -> None:
        super().__init__(state, place, cursor, rows, starts)
        self._copy = copier_for(state.arrow)

    def _all(self) -> Iterator[tuple[Any, Any]]:
        return ((self._copy(key), value) for key, value in super()._all())


_NESTED: dict[type, type] = {
    ValueHandle: NestedValueHandle,
    ReducingHandle: NestedReducingHandle,
    ListHandle: NestedListHandle,
    MapHandle: NestedMapHandle,
    SetHandle: NestedSetHandle,
}


def copying(kind: type[Handle], state: State) -> type[Handle]:
    """The class of handles for users: one that copies, if values of the state are mutable."""
    return _NESTED[kind] if any(normalizer_for(type_) for type_ in _types(state)) else kind


def _types(state: State) -> tuple[pa.DataType, ...]:
    """The types of values that users pass and get."""
    match state:
        case Map():
            return state.arrow_key, state.arrow_value
        case Aggregating():
            return state.arrow_input, _result_type(state)
        case Value() | Reducing() | List() | Set():
            return (state.arrow,)
    return ()


def _result_type(state: Reducing | Aggregating) -> pa.DataType:
    return state.arrow_output if isinstance(state, Aggregating) else state.arrow
