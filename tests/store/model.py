"""What a store should hold, worked out the plain way: dictionaries, one row after the other, no runs and no columns.

A blind merge is modelled as reading, adding and writing back at the time of the merge; that is what the store promises.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.rows.delta import EXPIRES_OF
from floodplain.store.rows.layout import EXPIRES
from floodplain.store.rows.merge_functions import register_merge
from floodplain.versions.records.schema import TableSchema

Row = Mapping[str, Any]
Entry = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The key and the sub-key, in a form that is equal where grouping equality says so."""
Contents = dict[Entry, dict[int, Any]]
"""Entry → column uid → value."""

NAN = "not a number"


def join_text(older: pa.Array, newer: pa.Array) -> pa.Array:
    """A user's merge that shows in which order it was applied."""
    return pc.binary_join_element_wise(older, newer, pa.scalar("", older.type))


JOIN_TEXT = register_merge(join_text)


def plain(value: Any) -> Any:
    """Hashable, and equal where grouping equality says so."""
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, plain(item)) for name, item in value.items())
    return value


@dataclass(frozen=True)
class ModelColumn:
    uid: int
    name: str
    type: pa.DataType
    default: Any = None
    merge: str = ""
    ttl_ms: int = 0

    def fold(self, older: Any, newer: Any) -> Any:
        if older is None or newer is None:
            return newer if older is None else older
        if self.merge in ("min", "max"):
            return (min if self.merge == "min" else max)(older, newer, key=lambda v: (math.isnan(v), v))
        return older + newer


@dataclass
class _Row:
    values: dict[int, Any]
    ends_ms: float
    column_ends_ms: dict[int, float]


@dataclass
class ModelTable:
    name: str
    shape: str
    keys: dict[str, pa.DataType]
    subkeys: dict[str, pa.DataType]
    columns: tuple[ModelColumn, ...]
    ttl_ms: int = 0
    held: dict[tuple[Any, ...], dict[tuple[Any, ...], _Row]] = field(default_factory=dict)

    def schema(self) -> TableSchema:
        values = {c.name: Column(c.type, default=c.default, merge=c.merge, ttl_ms=c.ttl_ms) for c in self.columns}
        match self.shape:
            case "value":
                return value_table(self.name, self.keys, values, ttl_ms=self.ttl_ms)
            case "ordered":
                return list_table(self.name, self.keys, values, position=next(iter(self.subkeys)), ttl_ms=self.ttl_ms)
            case "hashed":
                return map_table(self.name, self.keys, self.subkeys, values, ttl_ms=self.ttl_ms)
            case _:
                return timer_table(self.name, self.keys, values, time=next(iter(self.subkeys)))

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(plain(row[name]) for name in self.keys)

    def entry_of(self, row: Row) -> Entry:
        return self.key_of(row), tuple(plain(row[name]) for name in self.subkeys)

    def apply(self, op: str, rows: Iterable[Row], now_ms: int) -> None:
        for row in rows:
            entries = self.held.setdefault(self.key_of(row), {})
            if op == "clear":
                entries.clear()
            elif op == "delete":
                entries.pop(self.entry_of(row)[1], None)
            elif op == "put":
                entries[self.entry_of(row)[1]] = self._put(row, now_ms)
            else:
                self._merge(entries, self.entry_of(row)[1], row, now_ms)

    def _fresh(self, values: dict[int, Any], now_ms: int) -> _Row:
        ends = {c.uid: now_ms + c.ttl_ms if c.ttl_ms else math.inf for c in self.columns}
        return _Row(values, now_ms + self.ttl_ms if self.ttl_ms else math.inf, ends)

    def _put(self, row: Row, now_ms: int) -> _Row:
        fresh = self._fresh({c.uid: row.get(c.name, c.default) for c in self.columns}, now_ms)
        fresh.ends_ms = row.get(EXPIRES, fresh.ends_ms)
        fresh.column_ends_ms |= {c.uid: row[EXPIRES_OF + c.name] for c in self.columns if EXPIRES_OF + c.name in row}
        return fresh

    def _merge(self, entries: dict[tuple[Any, ...], _Row], sub: tuple[Any, ...], row: Row, now_ms: int) -> None:
        found = entries.get(sub)
        if found is None or found.ends_ms <= now_ms:
            found = self._fresh({c.uid: c.default for c in self.columns}, now_ms)
        for column in self.columns:
            operand = row.get(column.name)
            if operand is not None:
                ended = found.column_ends_ms[column.uid] <= now_ms
                found.values[column.uid] = column.fold(column.default if ended else found.values[column.uid], operand)
                found.column_ends_ms[column.uid] = now_ms + column.ttl_ms if column.ttl_ms else math.inf
        if self.ttl_ms:
            found.ends_ms = now_ms + self.ttl_ms
        entries[sub] = found

    def contents(self, now_ms: float) -> Contents:
        """What can be seen at this time."""
        return {
            (key, sub): {
                c.uid: plain(c.default if row.column_ends_ms[c.uid] <= now_ms else row.values[c.uid]) for c in self.columns
            }
            for key, entries in self.held.items()
            for sub, row in entries.items()
            if row.ends_ms > now_ms
        }

    def read(self, rows: pa.Table) -> Contents:
        """Rows of the store in the model's form; no entry may be there twice."""
        found: Contents = {}
        for row in rows.to_pylist():
            entry = self.entry_of(row)
            assert entry not in found, f"{self.name} has {entry} twice"
            found[entry] = self.values_of(row)
        return found

    def values_of(self, row: Row) -> dict[int, Any]:
        return {c.uid: plain(row[c.name]) for c in self.columns}

    def defaults(self) -> dict[int, Any]:
        return {c.uid: plain(c.default) for c in self.columns}

    def add(self, column: ModelColumn) -> None:
        self.columns = (*self.columns, column)
        for row in self._rows():
            row.values[column.uid] = column.default
            row.column_ends_ms[column.uid] = math.inf

    def drop(self, uid: int) -> None:
        self.columns = tuple(c for c in self.columns if c.uid != uid)

    def change(self, uid: int, **changes: Any) -> None:
        self.columns = tuple(replace(c, **changes) if c.uid == uid else c for c in self.columns)

    def _rows(self) -> Iterable[_Row]:
        return (row for entries in self.held.values() for row in entries.values())


@dataclass(frozen=True)
class Seen:
    """A table as an epoch showed it."""

    table: ModelTable
    contents: Contents

    @classmethod
    def of(cls, table: ModelTable, now_ms: int) -> "Seen":
        return cls(replace(table, held={}), table.contents(now_ms))

    def under(self, newer: ModelTable) -> Contents:
        """As the columns of a later version show it."""
        return {entry: {c.uid: row.get(c.uid, plain(c.default)) for c in newer.columns} for entry, row in self.contents.items()}


@dataclass(frozen=True)
class Difference:
    added: Contents
    before: Contents
    after: Contents
    deleted: Contents

    @classmethod
    def between(cls, older: Seen | None, newer: Seen) -> "Difference":
        was, now = older.under(newer.table) if older else {}, newer.contents
        both = [entry for entry in now if entry in was and now[entry] != was[entry]]
        return cls(
            added={entry: row for entry, row in now.items() if entry not in was},
            before={entry: was[entry] for entry in both},
            after={entry: now[entry] for entry in both},
            deleted={entry: row for entry, row in was.items() if entry not in now},
        )
