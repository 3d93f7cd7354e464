"""Handles on lists, maps and sets: many entries per key."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.state.descriptors import List, Map, Set
from floodplain.state.handles import restore
from floodplain.state.keyspace import TableCursor
from floodplain.state.positions import pack
from floodplain.state.pythonic import to_python
from floodplain.state.tables import Place
from floodplain.store import folds
from floodplain.store.view import Lookup


class _Before:
    """The entries of each key as the epoch began; columns become Python values when first asked for."""

    def __init__(self, lookup: Lookup, size: int) -> None:
        self.rows = lookup.rows
        self._bounds = np.searchsorted(lookup.needle, np.arange(size + 1)).tolist()
        self._lists: dict[str, list[Any]] = {}

    def of(self, key: int, column: str) -> list[Any]:
        low, high = self._bounds[key], self._bounds[key + 1]
        if low == high:
            return []
        if column not in self._lists:
            self._lists[column] = to_python(self.rows.column(column))
        return self._lists[column][low:high]


class ListHandle:
    """``get``, ``append``, ``extend``, ``set``, ``clear``, ``exists``. Appending reads nothing."""

    def __init__(self, state: List, place: Place, cursor: TableCursor, epoch: int) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self._cursor = cursor
        self._epoch = epoch
        self._before: _Before | None = None
        self._appended: dict[int, list[Any]] = {}
        self._cleared: set[int] = set()

    def get(self) -> list[Any]:
        """The elements, oldest first."""
        return self._kept() + self._appended.get(self.i, [])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self.get())

    def exists(self) -> bool:
        return bool(self._appended.get(self.i) or self._kept())

    def append(self, value: Any) -> None:
        appended = self._appended.get(self.i)
        if appended is None:
            self._appended[self.i] = [value]
        else:
            appended.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            self.append(value)

    def set(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        self.clear()
        self.extend(values)

    def clear(self) -> None:
        self._cleared.add(self.i)
        self._appended.pop(self.i, None)

    def _kept(self) -> list[Any]:
        if self.i in self._cleared:
            return []
        if self._before is None:
            self._before = _Before(self._cursor.lookup(), len(self._cursor.space))
        return self._before.of(self.i, self.place.column or "")

    def write(self) -> None:
        if self._cleared:
            self._cursor.write_at(np.array(sorted(self._cleared)), {}, "clear")
        numbers = [number for number, values in self._appended.items() if values]
        if not numbers:
            return
        sizes = [len(self._appended[number]) for number in numbers]
        ordinals = np.arange(sum(sizes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        values = pa.array([value for number in numbers for value in self._appended[number]], self.state.arrow)
        columns = {self.place.subkey or "": pa.array(pack(self._epoch, ordinals)), self.place.column or "": values}
        self._cursor.write_at(np.repeat(numbers, sizes), columns, "put")

    def mark(self) -> Any:
        return list(self._appended[self.i]) if self.i in self._appended else None, self.i in self._cleared

    def rollback(self, marked: Any) -> None:
        restore(self._appended, self.i, marked[0])
        (self._cleared.add if marked[1] else self._cleared.discard)(self.i)

    def check(self) -> None:
        if self.i in self._appended:
            pa.array(self._appended[self.i], self.state.arrow)


_REMOVED = object()


class MapHandle:
    """``get``, ``put``, ``merge``, ``remove``, ``contains``, ``keys``, ``values``, ``items``, ``clear``, ``exists``."""

    def __init__(self, state: Map | Set, place: Place, cursor: TableCursor) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self._cursor = cursor
        self._before: _Before | None = None
        self._entries: dict[int, dict[Any, Any]] = {}
        self._written: dict[int, dict[Any, Any]] = {}
        self._merged: dict[int, list[tuple[Any, Any]]] = {}
        self._cleared: set[int] = set()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._current().get(_frozen(key), (key, default))[1]

    def contains(self, key: Any) -> bool:
        return _frozen(key) in self._current()

    def put(self, key: Any, value: Any) -> None:
        frozen = _frozen(key)
        self._current()[frozen] = (key, value)
        self._written.setdefault(self.i, {})[frozen] = (key, value)

    def merge(self, key: Any, operand: Any) -> None:
        """Fold ``operand`` into the entry. Reads nothing unless the map of this key was read before."""
        if self.i in self._entries:
            self._fold_now(key, operand)
        else:
            self._merged.setdefault(self.i, []).append((key, operand))

    def _fold_now(self, key: Any, operand: Any) -> None:
        frozen = _frozen(key)
        found = self._entries[self.i].get(frozen)
        if found is not None and found[1] is not None:
            assert isinstance(self.state, Map)
            pair = pa.array([found[1], operand], self.state.arrow_value)
            operand = folds.required(self.state.merge_name, self._cursor.name)(pair, np.zeros(1, np.int64))[0].as_py()
        self.put(key, operand)

    def remove(self, key: Any) -> None:
        frozen = _frozen(key)
        self._current().pop(frozen, None)
        self._written.setdefault(self.i, {})[frozen] = (key, _REMOVED)

    def keys(self) -> list[Any]:
        return [key for key, _ in self._current().values()]

    def values(self) -> list[Any]:
        return [value for _, value in self._current().values()]

    def items(self) -> list[tuple[Any, Any]]:
        return list(self._current().values())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._current())

    def exists(self) -> bool:
        return bool(self._current())

    def clear(self) -> None:
        self._cleared.add(self.i)
        self._entries[self.i] = {}
        self._written.pop(self.i, None)
        self._merged.pop(self.i, None)

    def _current(self) -> dict[Any, tuple[Any, Any]]:
        found = self._entries.get(self.i)
        if found is None:
            found = self._entries[self.i] = self._load()
            for key, operand in self._merged.pop(self.i, ()):
                self._fold_now(key, operand)
        return found

    def _load(self) -> dict[Any, tuple[Any, Any]]:
        if self._before is None:
            self._before = _Before(self._cursor.lookup(), len(self._cursor.space))
        keys = self._before.of(self.i, self.place.subkey or "")
        values = self._before.of(self.i, self.place.column) if self.place.column else [None] * len(keys)
        return {_frozen(key): (key, value) for key, value in zip(keys, values, strict=True)}

    def write(self) -> None:
        if self._cleared:
            self._cursor.write_at(np.array(sorted(self._cleared)), {}, "clear")
        written = [(number, key, value) for number, entries in self._written.items() for key, value in entries.values()]
        for op, rows in (
            ("put", [row for row in written if row[2] is not _REMOVED]),
            ("delete", [row for row in written if row[2] is _REMOVED]),
        ):
            if rows:
                columns = {self.place.subkey or "": pa.array([row[1] for row in rows], _key_type(self.state))}
                if op == "put" and self.place.column and isinstance(self.state, Map):
                    columns[self.place.column] = pa.array([row[2] for row in rows], self.state.arrow_value)
                self._cursor.write_at(np.array([row[0] for row in rows]), columns, op)
        self._write_merges()

    def _write_merges(self) -> None:
        rows = [(number, key, operand) for number, merges in self._merged.items() for key, operand in merges]
        if rows and isinstance(self.state, Map):
            columns = {
                self.place.subkey or "": pa.array([row[1] for row in rows], self.state.arrow_key),
                self.place.column or "": pa.array([row[2] for row in rows], self.state.arrow_value),
            }
            self._cursor.write_at(np.array([row[0] for row in rows]), columns, "merge")

    def mark(self) -> Any:
        return [copy.copy(of.get(self.i)) for of in self._per_key()], self.i in self._cleared

    def rollback(self, marked: Any) -> None:
        for of, kept in zip(self._per_key(), marked[0], strict=True):
            restore(of, self.i, kept)
        (self._cleared.add if marked[1] else self._cleared.discard)(self.i)

    def _per_key(self) -> tuple[dict[int, Any], ...]:
        return self._entries, self._written, self._merged

    def check(self) -> None:
        rows = [*self._written.get(self.i, {}).values(), *self._merged.get(self.i, [])]
        if not rows:
            return
        pa.array([key for key, _ in rows], _key_type(self.state))
        if isinstance(self.state, Map):
            pa.array([value for _, value in rows if value is not _REMOVED], self.state.arrow_value)


class SetHandle(MapHandle):
    """``add``, ``remove``, ``contains``, iteration, ``clear``."""

    def add(self, element: Any) -> None:
        self.put(element, None)


def _key_type(state: Map | Set) -> pa.DataType:
    return state.arrow_key if isinstance(state, Map) else state.arrow


def _frozen(key: Any) -> Any:
    """A form of ``key`` that a dict can hold, equal exactly where Spark's grouping is: NaN is NaN, and 0.0 is −0.0."""
    if isinstance(key, float) and key != key:
        return ("nan",)
    if isinstance(key, dict):
        return tuple((name, _frozen(value)) for name, value in key.items())
    if isinstance(key, (list, tuple)):
        return tuple(_frozen(value) for value in key)
    return key
