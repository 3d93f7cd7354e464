"""Handles on maps and sets."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.state.descriptors import Map, Set
from floodplain.state.entries import ABSENT, Entries, Frozen, is_plain
from floodplain.state.handles import restore
from floodplain.state.keyspace import TableCursor
from floodplain.state.kinds import plain_kind
from floodplain.state.tables import StateColumn, state_of
from floodplain.state.value_check import check_each, checked_converter, identity
from floodplain.store.rows import merge_functions

_STORED: Final = object()
"""Marks the value at the start of the epoch, not read yet."""


class _Change:
    """A changed entry: its value (``ABSENT``: removed; ``_STORED``: unchanged), then operands to fold into it."""

    __slots__ = ("key", "operands", "value")

    def __init__(self, key: Any, value: Any, operands: list[Any]) -> None:
        self.key = key
        self.value = value
        self.operands = operands


class _EntriesHandle:
    """The base of the handles on maps and sets. Writing reads nothing; reading an entry fetches what ``prefetch`` declares."""

    def __init__(self, state: Map | Set, place: StateColumn, cursor: TableCursor, rows: pa.Table, starts: np.ndarray) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self.cursor = cursor
        self._entries = Entries(state, place, cursor, rows, starts)
        self._freeze = self._entries.freeze
        self._changes: dict[int, dict[Frozen, _Change]] = {}
        self._cleared: set[int] = set()
        where = f"state {state_of(place)}"
        plain = is_plain(self.key_type)
        self._key_kind = plain_kind(self.key_type) if plain else None
        self._convert_key = checked_converter(f"{where}, entry key", self.key_type, check_range=not plain)
        if isinstance(state, Map):
            self._kind, self._convert = plain_kind(state.arrow_value), checked_converter(where, state.arrow_value)

    def trust(self) -> None:
        """Skips conversions: a built-in caller passes only valid values."""
        self._convert = self._convert_key = identity

    @property
    def key_type(self) -> pa.DataType:
        return self.state.arrow_key if isinstance(self.state, Map) else self.state.arrow

    def contains(self, key: Any) -> bool:
        return self._now(key) is not ABSENT

    def remove(self, key: Any) -> None:
        self._change(key, ABSENT)

    def clear(self) -> None:
        self._cleared.add(self.i)
        self._changes.pop(self.i, None)

    def exists(self) -> bool:
        """Whether there is any entry; reads no further than the first."""
        if any(change.operands or change.value is not ABSENT for change in self._changes.get(self.i, {}).values()):
            return True
        return next(self._all(), None) is not None

    def __iter__(self) -> Iterator[Any]:
        """The keys of the entries, unaffected by changes during the iteration; in bounded memory."""
        return (key for key, _ in self._all())

    def __len__(self) -> int:
        return sum(1 for _ in self._all())

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def _change(self, key: Any, value: Any) -> None:
        if type(key) is not self._key_kind:
            key = self._convert_key(key)
        self._changes.setdefault(self.i, {})[self._freeze(key)] = _Change(key, value, [])

    def _now(self, key: Any) -> Any:
        if type(key) is not self._key_kind:
            key = self._convert_key(key)
        name = self._freeze(key)
        change = self._changes.get(self.i, _NONE).get(name)
        if change is None:
            return self._stored(key, name)
        if change.operands:
            base = self._stored(key, name) if change.value is _STORED else change.value
            change.value, change.operands = self._folded(base, change.operands), []
        return change.value

    def _stored(self, key: Any, name: Frozen) -> Any:
        return ABSENT if self.i in self._cleared else self._entries.value(self.i, key, name)

    def _all(self) -> Iterator[tuple[Any, Any]]:
        """(entry key, value): stored entries in their order, then new ones."""
        # A copy, so that the map may be changed during iteration.
        changes = self._copied()
        stored = iter(()) if self.i in self._cleared else self._entries.all(self.i)
        return self._walk(changes, stored)

    def _walk(self, changes: dict[Frozen, _Change], stored: Iterator[tuple[Frozen, Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for name, key, value in stored:
            change = changes.pop(name, None)
            if change is not None:
                value = self._folded(value if change.value is _STORED else change.value, change.operands)
            if value is not ABSENT:
                yield key, value
        for change in changes.values():
            value = self._folded(ABSENT if change.value is _STORED else change.value, change.operands)
            if value is not ABSENT:
                yield change.key, value

    def _folded(self, base: Any, operands: list[Any]) -> Any:
        """Folds as the store does: null operands are ignored, and a missing entry is created."""
        if not operands:
            return base
        assert isinstance(self.state, Map)
        values = [value for value in (base, *operands) if value is not None and value is not ABSENT]
        if len(values) < 2:
            return values[0] if values else None
        fold = merge_functions.required(self.state.merge_name, self.cursor.name)
        return fold(pa.array(values, self.state.arrow_value), np.zeros(1, np.int64))[0].as_py()

    def _copied(self) -> dict[Frozen, _Change]:
        changes = self._changes.get(self.i, _NONE)
        return {name: _Change(change.key, change.value, change.operands[:]) for name, change in changes.items()}

    def mark(self) -> Any:
        return self._copied() or None, self.i in self._cleared

    def rollback(self, marked: Any) -> None:
        restore(self._changes, self.i, marked[0])
        (self._cleared.add if marked[1] else self._cleared.discard)(self.i)

    def check(self) -> None:
        changes = self._changes.get(self.i, _NONE).values()
        check_each([change.key for change in changes], self.key_type)
        if isinstance(self.state, Map):
            values = [value for change in changes for value in (change.value, *change.operands)]
            check_each([value for value in values if value is not ABSENT and value is not _STORED], self.state.arrow_value)

    def write(self) -> None:
        if self._cleared:
            self.cursor.write_at(np.array(sorted(self._cleared)), {}, "clear")
        if self.state.ttl_ms and self.cursor.by_event_time:
            self._fold_operands()
        changes = [(number, change) for number, entries in self._changes.items() for change in entries.values()]
        self._write([(at, change.key, None) for at, change in changes if change.value is ABSENT], "delete")
        put = [
            (at, change.key, change.value) for at, change in changes if change.value is not ABSENT and change.value is not _STORED
        ]
        self._write(put, "put")
        self._write([(at, change.key, operand) for at, change in changes for operand in change.operands], "merge")

    def _fold_operands(self) -> None:
        """Folds operands into the stored values, which are read: see ``ReducingHandle._merges``."""
        for number, entries in self._changes.items():
            self.i = number
            for change in entries.values():
                self._now(change.key)

    def _write(self, rows: list[tuple[int, Any, Any]], op: str) -> None:
        if not rows:
            return
        numbers, keys, values = zip(*rows, strict=True)
        columns = {self.place.subkey or "": pa.array(keys, self.key_type)}
        if isinstance(self.state, Map) and op != "delete":
            columns[self.place.column or ""] = pa.array(values, self.state.arrow_value)
        self.cursor.write_at(np.array(numbers), columns, op)


_NONE: Final[dict[Frozen, _Change]] = {}


class MapHandle(_EntriesHandle):
    """``get``, ``put``, ``merge``, ``remove``, ``contains``, ``keys``, ``values``, ``items``, ``clear``, ``exists``."""

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._now(key)
        return default if value is ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        """Reads nothing."""
        if type(value) is not self._kind:
            value = self._convert(value)
        self._change(key, value)

    def has_put(self, key: Any, value: Any) -> bool:
        """Whether this epoch has put this entry, with this value."""
        if type(key) is not self._key_kind:
            key = self._convert_key(key)
        change = self._changes.get(self.i, _NONE).get(self._freeze(key))
        return change is not None and not change.operands and bool(change.value == self._convert(value))

    def changed(self) -> dict[Frozen, bool]:
        """The entries of this key that this epoch has put (true) or removed (false), since it was cleared if it was."""
        return {name: change.value is not ABSENT for name, change in self._changes.get(self.i, _NONE).items()}

    def name_of(self, key: Any) -> Frozen:
        """How ``changed`` calls an entry."""
        return self._freeze(key)

    def merge(self, key: Any, operand: Any) -> None:
        """Folds ``operand`` into the entry. Reads nothing."""
        assert isinstance(self.state, Map)
        if not self.state.merge_name:
            operator, _, state = self.cursor.name.partition("__")
            raise BadInput(
                f"operator {operator}, state {state}: values of type {self.state.arrow_value} have no merge function: declare one"
            )
        if type(key) is not self._key_kind:
            key = self._convert_key(key)
        if type(operand) is not self._kind:
            operand = self._convert(operand)
        changes = self._changes.setdefault(self.i, {})
        name = self._freeze(key)
        change = changes.get(name)
        if change is None:
            changes[name] = _Change(key, _STORED, [operand])
        else:
            change.operands.append(operand)

    def keys(self) -> list[Any]:
        return list(self)

    def values(self) -> list[Any]:
        return [value for _, value in self._all()]

    def items(self) -> list[tuple[Any, Any]]:
        return list(self._all())


class SetHandle(_EntriesHandle):
    """``add``, ``remove``, ``contains``, iteration, ``clear``, ``exists``."""

    @property
    def operand_type(self) -> pa.DataType:
        return self.key_type

    def add(self, element: Any) -> None:
        """Reads nothing."""
        self._change(element, None)
