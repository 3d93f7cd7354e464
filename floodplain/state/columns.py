"""Lists, maps, sets and timers of all keys of a task at once, as Arrow columns.

Changes go to a log, which is written as it is. A read before that merges the stored rows with the log, by the rules of the store.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.keys import hash_columns, normalize_keys
from floodplain.state.keyspace import TableCursor
from floodplain.state.positions import pack
from floodplain.state.tables import StateColumn
from floodplain.store.rows import layout
from floodplain.store.rows.definition import recorded
from floodplain.store.rows.delta import physical_rows
from floodplain.store.rows.layout import EXPIRES, SUB
from floodplain.store.rows.resolve import Rules, resolve
from floodplain.store.rows.row_classes import refine, starts_of

_NOTHING_FIRED = np.iinfo(np.int64).min

Numbered: TypeAlias = tuple[np.ndarray, pa.Table]
"""The key number of each row, and the rows."""
Change: TypeAlias = tuple[np.ndarray, Mapping[str, pa.Array], str]
"""The key number of each row, its other columns, and the operation."""


class EntryColumns:
    """The entries of a map, set or list."""

    def __init__(self, place: StateColumn, cursor: TableCursor) -> None:
        self.subkey = place.subkey or ""
        self._cursor = cursor
        self._schema = recorded(cursor.schema)
        self._names = [name for name in (place.subkey, place.column) if name]
        self._log: list[Change] = []

    def change(self, op: str, numbers: np.ndarray, columns: Mapping[str, pa.Array]) -> None:
        """``put``, ``merge`` or ``delete`` entries, or ``clear`` keys; the last change of an entry wins."""
        if len(numbers):
            self._log.append((numbers, columns, op))

    def all(self) -> Numbered:
        """All entries of all keys, sorted by key number, then by sub-key."""
        stored = self._cursor.lookup()
        return self._now(stored.key_number, stored.rows)

    def some(self, numbers: np.ndarray, subkeys: pa.Array) -> tuple[np.ndarray, pa.Table]:
        """Reads these entries in one multi-get: the row number of each, −1 if it does not exist, and the rows."""
        stored = self._cursor.entries(numbers, {self.subkey: subkeys})
        if not self._log:
            row = np.full(len(numbers), -1)
            row[stored.key_number] = np.arange(len(stored.key_number))
            return row, stored.rows.select(self._names)
        of, rows = self._now(numbers[stored.key_number], stored.rows)
        return _matched(of, layout.one_array(rows.column(self.subkey)), numbers, subkeys), rows

    def write(self) -> None:
        if self._schema.ttl_ms and self._cursor.by_event_time and any(op == "merge" for _, _, op in self._log):
            self._log = self._settled()
        for numbers, columns, op in self._log:
            self._cursor.write_at(numbers, columns, op)

    def _settled(self) -> list[Change]:
        """The log with merges resolved to puts, which reads their base: see ``ReducingHandle._merges``."""
        named = [(of, columns[self.subkey]) for of, columns, op in self._log if op != "clear"]
        numbers, subkeys = np.concatenate([of for of, _ in named]), pa.concat_arrays([keys for _, keys in named])
        row, rows = self.some(numbers, subkeys)
        gone, present = row < 0, np.flatnonzero(row >= 0)
        kept = present[np.unique(row[present], return_index=True)[1]]
        values = {name: layout.one_array(rows.column(name)).take(pa.array(row[kept])) for name in self._names}
        return [
            *((of, columns, op) for of, columns, op in self._log if op == "clear"),
            (numbers[gone], {self.subkey: subkeys.filter(pa.array(gone))}, "delete"),
            (numbers[kept], values, "put"),
        ]

    def _now(self, numbers: np.ndarray, stored: pa.Table) -> Numbered:
        if not self._log:
            return numbers, stored.select(self._names)
        columns = dict(zip(stored.column_names, stored.columns, strict=True))
        before = {name: layout.one_array(columns[name]) for name in (*self._names, EXPIRES) if name in columns}
        parts = [(numbers, before, "put"), *self._log]
        rows = pa.concat_tables([self._physical(*part) for part in parts]).combine_chunks()
        owner = np.concatenate([of for of, _, _ in parts])
        rows, owner = resolve(rows, owner, np.arange(len(owner)), self._schema, Rules(self._cursor.now_ms))
        return owner, pa.table({name: self._logical(rows, name) for name in self._names})

    def _physical(self, numbers: np.ndarray, columns: Mapping[str, pa.Array], op: str) -> pa.Table:
        return physical_rows(self._schema, self._cursor.space.at(numbers, columns), op, self._cursor.now_ms)

    def _logical(self, rows: pa.Table, name: str) -> pa.Array:
        field = next(field for field in self._schema.fields if field.name == name)
        if field in self._schema.subkeys and self._schema.shape != "hashed":
            return layout.sub_to_integers(layout.numbers(rows, SUB), field)
        return rows.column(layout.column(field))


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of lists: key number, position, value and expiry time of each (without expiry times if none expires)."""

    numbers: np.ndarray
    positions: np.ndarray
    values: pa.Array
    ends: np.ndarray

    def at(self, rows: np.ndarray) -> "Elements":
        ends = self.ends[rows] if len(self.ends) else self.ends
        return Elements(self.numbers[rows], self.positions[rows], self.values.take(pa.array(rows)), ends)


class ListColumns(EntryColumns):
    """The elements of a list."""

    def __init__(self, place: StateColumn, cursor: TableCursor, epoch: int) -> None:
        super().__init__(place, cursor)
        self._column = place.column or ""
        self._arrow = next(field.arrow for field in cursor.schema.values if field.name == self._column)
        self._epoch = epoch
        self._appended = np.zeros(len(cursor.space), np.int64)

    def stored(self, numbers: np.ndarray) -> "Elements":
        """The elements of these keys at the start of the epoch."""
        if not len(numbers):
            return Elements(numbers, np.empty(0, np.uint64), pa.nulls(0, self._arrow), np.empty(0, np.int64))
        stored = self._cursor.lookup_of(numbers)
        rows = stored.rows
        ends = np.empty(0, np.int64) if EXPIRES not in rows.column_names else layout.expiries(rows, EXPIRES)
        positions, values = (layout.one_array(rows.column(name)) for name in (self.subkey, self._column))
        return Elements(numbers[stored.key_number], positions.to_numpy(), values, ends - self._cursor.lateness_ms)

    def replace(self, elements: "Elements") -> None:
        """Replaces the values at these positions; expiry times stay."""
        ends = {EXPIRES: pa.array(elements.ends + self._cursor.lateness_ms)} if len(elements.ends) else {}
        positions = pa.array(elements.positions)
        self.change("put", elements.numbers, {self.subkey: positions, self._column: elements.values, **ends})

    def remove(self, elements: "Elements") -> None:
        self.change("delete", elements.numbers, {self.subkey: pa.array(elements.positions)})

    def append(self, numbers: np.ndarray, values: pa.Array, ends: np.ndarray | None = None) -> None:
        """Appends value i to the list of key ``numbers[i]``; values of one key in their order.

        ``ends``: the expiry time of each, by the operator's watermark; by default the ttl from now on.
        """
        order = np.argsort(numbers, kind="stable")
        of = numbers[order]
        ordinals = self._appended[of] + np.arange(len(of)) - np.searchsorted(of, of)
        self._appended += np.bincount(of, minlength=len(self._appended))
        columns = {self.subkey: pa.array(pack(self._epoch, ordinals)), self._column: values.take(pa.array(order))}
        dated = {} if ends is None else {EXPIRES: pa.array(ends[order] + self._cursor.lateness_ms)}
        self.change("put", of, {**columns, **dated})


class TimerColumns:
    """The timers of one clock."""

    def __init__(self, place: StateColumn, cursor: TableCursor, due: tuple[np.ndarray, np.ndarray], until_ms: int) -> None:
        self._subkey = place.subkey or ""
        self._cursor = cursor
        self._until_ms = until_ms
        self._due = due
        self._log: list[tuple[np.ndarray, np.ndarray, bool]] = []
        self._fired_ms: np.ndarray | None = None

    def change(self, numbers: np.ndarray, times: np.ndarray, is_set: bool) -> None:
        if len(numbers):
            self._log.append((numbers, times, is_set))

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Key numbers and times of all registered timers, sorted by key and time."""
        stored = self._cursor.lookup()
        numbers, times, is_set = self._settled(stored.key_number, stored.rows.column(self._subkey).to_numpy())
        return numbers[is_set], times[is_set]

    def keys_due(self) -> np.ndarray:
        """The keys that have due timers from earlier epochs."""
        return np.unique(self._due[0][self._due[1] <= self._until_ms])

    def take_due(self, *, fire: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Removes and returns the due timers, sorted by time. They may be set again.

        ``fire``: a callback follows. A timer that it sets for a key is due in this epoch only if it is later than the first one
        of the key here.
        """
        numbers, times, is_set = self._settled(*self._due)
        ripe = np.flatnonzero(is_set & (times <= self._until_ms))
        if self._fired_ms is not None:
            fired_ms = self._fired_ms[numbers[ripe]]
            ripe = ripe[(times[ripe] > fired_ms) | (fired_ms == _NOTHING_FIRED)]
        ripe = ripe[np.lexsort((numbers[ripe], times[ripe]))]
        self.change(numbers[ripe], times[ripe], False)
        if fire:
            self._note_fired(numbers[ripe], times[ripe])
        return numbers[ripe], times[ripe]

    def _note_fired(self, numbers: np.ndarray, times: np.ndarray) -> None:
        if self._fired_ms is None and len(numbers):
            self._fired_ms = np.full(len(self._cursor.space), _NOTHING_FIRED)
        if self._fired_ms is not None:
            keys, first = np.unique(numbers, return_index=True)
            self._fired_ms[keys] = np.maximum(times[first], _NOTHING_FIRED + 1)

    def write(self) -> None:
        nothing = np.empty(0, np.int64)
        numbers, times, is_set = self._settled(nothing, nothing)
        for op, wanted in (("delete", ~is_set), ("put", is_set)):
            if wanted.any():
                self._cursor.write_at(numbers[wanted], {self._subkey: pa.array(times[wanted])}, op)

    def _settled(self, numbers: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Applies the log to these timers: each timer once, and whether it is set; sorted by key and time."""
        parts = [(numbers, times, True), *self._log]
        of, at = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        is_set = np.repeat([part[2] for part in parts], [len(part[0]) for part in parts])
        order = np.lexsort((at, of))
        of, at, is_set = of[order], at[order], is_set[order]
        last = np.append(starts_of(of, at)[1:], True)[: len(of)]
        return of[last], at[last], is_set[last]


def _matched(of: np.ndarray, subkeys: pa.Array, wanted_of: np.ndarray, wanted: pa.Array) -> np.ndarray:
    """For each wanted (key number, sub-key) its row among the others; −1 if it is not there."""
    keys = normalize_keys([pa.concat_arrays([subkeys, wanted])])[0]
    numbers, hashes = np.concatenate([of, wanted_of]), hash_columns([keys])
    order = np.lexsort((hashes, numbers))
    entry = np.empty(len(order), np.int64)
    entry[order] = refine(starts_of(numbers[order], hashes[order]), [keys.take(pa.array(order))])
    row = np.full(len(order), -1)
    row[entry[: len(of)]] = np.arange(len(of))
    return row[entry[len(of) :]]
