"""Handles on task-level state: values per slot, and broadcast maps."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput, UserError, short
from floodplain.lossless import UNFIT
from floodplain.state.descriptors import Broadcast, TaskValue
from floodplain.state.entries import Frozen, frozen
from floodplain.state.python_values import copier_for
from floodplain.state.tables import StateColumn
from floodplain.state.value_check import checked_converter
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.task_writer import TaskWriter


class TaskValueHandle:
    """``get``, ``set``, ``clear``, ``exists``: the value of the slot, independent of the current key."""

    def __init__(self, name: str, state: TaskValue, value: Any) -> None:
        self.i = 0
        self._name = name
        self._state = state
        self._value = value
        self._copy, self._convert = (
            copier_for(state.arrow),
            checked_converter(f"task value {name}", state.arrow, check_range=True),
        )
        self.changed = False

    def get(self) -> Any:
        return self._copy(self._state.default if self._value is None else self._value)

    def exists(self) -> bool:
        return self._value is not None

    def set(self, value: Any) -> None:
        self._value = None if value is None else self._convert(value)
        self.changed = True

    def clear(self) -> None:
        self.set(None)

    def mark(self) -> Any:
        return self._value, self.changed

    def rollback(self, marked: Any) -> None:
        self._value, self.changed = marked

    def check(self) -> None:
        if self.changed:
            self.array()

    def array(self) -> pa.Array:
        """The value as an array of one. Raises ``UserError`` if it does not fit the declared type."""
        try:
            return pa.array([self._value], self._state.arrow)
        except UNFIT as error:
            message = f"task value {self._name}: {short(self._value)} does not fit type {self._state.arrow}: {error}"
            raise UserError(message) from error


class BroadcastHandle:
    """``get``, ``contains``, ``keys``, ``values``, ``items``, ``table``; in ``on_broadcast`` ``put``, ``remove``, ``clear``."""

    def __init__(self, name: str, state: Broadcast, place: StateColumn, snapshot: Snapshot) -> None:
        self.i = 0
        self.writable = False
        self._name = name
        self._state = state
        self._place = place
        self._snapshot = snapshot
        self._copy_key, self._copy = copier_for(state.arrow_key), copier_for(state.arrow_value)
        where = f"broadcast state {name}"
        self._convert_key = checked_converter(f"{where}, entry key", state.arrow_key, check_range=True)
        self._convert = checked_converter(where, state.arrow_value, check_range=True)
        self._entries: dict[Any, tuple[Any, Any]] | None = None
        self._changed: dict[Any, Any] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        entry = self._all().get(self._frozen(key))
        return default if entry is None else self._copy(entry[1])

    def contains(self, key: Any) -> bool:
        return self._frozen(key) in self._all()

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def items(self) -> list[tuple[Any, Any]]:
        return list(zip(self.keys(), self.values(), strict=True))

    def keys(self) -> list[Any]:
        return [self._copy_key(key) for key, _ in self._all().values()]

    def values(self) -> list[Any]:
        return [self._copy(value) for _, value in self._all().values()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._all())

    def table(self) -> pa.Table:
        """All entries, as columns ``key`` and ``value``."""
        columns = [pa.array(self.keys(), self._state.arrow_key), pa.array(self.values(), self._state.arrow_value)]
        return pa.Table.from_arrays(columns, ["key", "value"])

    def put(self, key: Any, value: Any) -> None:
        self._check_writable()
        key = self._convert_key(key)
        self._all()[frozen(key)] = (key, self._convert(value))
        self._changed[frozen(key)] = key

    def remove(self, key: Any) -> None:
        self._check_writable()
        key = self._convert_key(key)
        if self._all().pop(frozen(key), None) is not None:
            self._changed[frozen(key)] = key

    def clear(self) -> None:
        for key in self.keys():
            self.remove(key)

    def _frozen(self, key: Any) -> Frozen:
        return frozen(self._convert_key(key))

    def _check_writable(self) -> None:
        if not self.writable:
            raise BadInput(
                f"broadcast state {self._name} can be changed only in on_broadcast, so that it stays the same in all tasks"
            )

    def _all(self) -> dict[Any, tuple[Any, Any]]:
        if self._entries is None:
            rows = self._snapshot.stored(self._place.table).to_arrow()
            columns = (rows.column(name).to_pylist() for name in (self._place.subkey, self._place.column))
            self._entries = {frozen(key): (key, value) for key, value in zip(*columns, strict=True)}
        return self._entries

    def mark(self) -> None:
        """No savepoint is needed: calls for a key cannot change it."""

    def rollback(self, _: None) -> None:
        pass

    def check(self) -> None:
        pass

    def write(self, writer: TaskWriter) -> None:
        """Writes the changes since the last write."""
        entries = self._all() if self._changed else {}
        put = [entries[name] for name in self._changed if name in entries]
        gone = [key for name, key in self._changed.items() if name not in entries]
        key_name, value_name = self._place.subkey, self._place.column
        if put:
            columns = [
                pa.array([key for key, _ in put], self._state.arrow_key),
                pa.array([value for _, value in put], self._state.arrow_value),
            ]
            writer.write(self._place.table, pa.Table.from_arrays(columns, [key_name, value_name]), "put")
        if gone:
            writer.write(self._place.table, pa.table({key_name: pa.array(gone, self._state.arrow_key)}), "delete")
        self._changed = {}
