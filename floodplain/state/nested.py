"""Handles on states whose values can be changed in place: they give copies and keep copies, so that only what is set counts.

Values of other states are given and kept as they are, by the handles that these build on.
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
from floodplain.state.python_values import form_of, fresh_by
from floodplain.state.tables import StateColumn

Handle = TypeVar("Handle", ValueHandle, ReducingHandle, ListHandle, MapHandle, SetHandle)


class NestedValueHandle(ValueHandle):
    def __init__(self, state: Value, place: StateColumn, cursor: TableCursor) -> None:
        super().__init__(state, place, cursor)
        self._fresh = fresh_by(state.arrow)

    def get(self) -> Any:
        value = (self._values or self._load())[self.i]
        return self._fresh(self._default if value is ABSENT else value)


class NestedReducingHandle(ReducingHandle):
    def __init__(self, state: Reducing | Aggregating, place: StateColumn, cursor: TableCursor) -> None:
        super().__init__(state, place, cursor)
        self._fresh_out = fresh_by(_result_type(state))

    def get(self) -> Any:
        return self._fresh_out(super().get())


class NestedListHandle(ListHandle):
    def __init__(self, state: List, place: StateColumn, cursor: TableCursor, epoch: int) -> None:
        super().__init__(state, place, cursor, epoch)
        self._fresh = fresh_by(state.arrow)

    def get(self) -> list[Any]:
        return list(map(self._fresh, super().get()))

    def __iter__(self) -> Iterator[Any]:
        return map(self._fresh, super().__iter__())


class NestedMapHandle(MapHandle):
    def __init__(self, state: Map, place: StateColumn, cursor: TableCursor, rows: pa.Table, starts: np.ndarray) -> None:
        super().__init__(state, place, cursor, rows, starts)
        self._fresh_key, self._fresh = fresh_by(state.arrow_key), fresh_by(state.arrow_value)

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._now(key)
        return default if value is NO_ENTRY else self._fresh(value)

    def _all(self) -> Iterator[tuple[Any, Any]]:
        return ((self._fresh_key(key), self._fresh(value)) for key, value in super()._all())


class NestedSetHandle(SetHandle):
    def __init__(self, state: Set, place: StateColumn, cursor: TableCursor, rows: pa.Table, starts: np.ndarray) -> None:
        super().__init__(state, place, cursor, rows, starts)
        self._fresh = fresh_by(state.arrow)

    def _all(self) -> Iterator[tuple[Any, Any]]:
        return ((self._fresh(key), value) for key, value in super()._all())


_NESTED: dict[type, type] = {
    ValueHandle: NestedValueHandle,
    ReducingHandle: NestedReducingHandle,
    ListHandle: NestedListHandle,
    MapHandle: NestedMapHandle,
    SetHandle: NestedSetHandle,
}


def copying(kind: type[Handle], state: State) -> type[Handle]:
    """The handle of this kind for users: one that copies, if values of the state can be changed in place."""
    return _NESTED[kind] if any(form_of(type_) for type_ in _types(state)) else kind


def _types(state: State) -> tuple[pa.DataType, ...]:
    """What users give and get."""
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
