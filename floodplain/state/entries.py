"""Reads entries of maps and sets as of the start of the epoch: all of a key, one, or those that the rows name."""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.expressions.identifiers import Path
from floodplain.keys import hash_columns, normalize_keys
from floodplain.lossless import UNFIT, cast
from floodplain.state.descriptors import Map, Set
from floodplain.state.keyspace import TableCursor
from floodplain.state.prefetch import PrefetchedEntries
from floodplain.state.row_expressions import ALL, LAZY, evaluate, parse_paths
from floodplain.state.tables import StateColumn
from floodplain.store.rows.row_classes import refine, starts_of

_CACHED_ENTRIES = 1 << 16
"""How many entries of the current key are cached."""


class _Absent:
    """Marks an entry that does not exist; null may be a value."""


ABSENT: Final = _Absent()

Frozen: TypeAlias = Any
"""A hashable form of an entry key, with the equality of Spark's grouping."""
Entry: TypeAlias = tuple[Frozen, Any, Any]
"""(frozen entry key, entry key, value)."""


class Entries:
    """Reads one entry, or all of a key, as ``prefetch`` declares."""

    def __init__(self, state: Map | Set, place: StateColumn, cursor: TableCursor, rows: pa.Table, starts: np.ndarray) -> None:
        """``rows``: those of key i are ``starts[i] : starts[i + 1]``; expressions of ``prefetch`` are evaluated on them."""
        self._type = state.arrow_key if isinstance(state, Map) else state.arrow
        self._place = place
        self._cursor = cursor
        self._rows, self._starts = rows, starts
        self._columns = [name for name in (place.subkey, place.column) if name]
        self._prefetched = PrefetchedEntries(cursor, self._columns)
        self._state = state
        self._all = state.prefetch == ALL
        self._wanted: dict[tuple[int, Frozen], Any] | None = {} if state.prefetch in (ALL, LAZY) else None
        self._cached_number = -1
        self._cached: dict[Frozen, Any] = {}
        self._cached_whole = False
        self.freeze: Callable[[Any], Frozen] = frozen if is_plain(self._type) else self._frozen_by_type

    def value(self, number: int, key: Any, frozen_key: Frozen) -> Any:
        """The value of an entry; ``ABSENT`` if it does not exist."""
        if self._all and self._prefetched.within_budget(number):
            return self._whole(number).get(frozen_key, ABSENT)
        if self._wanted is None:
            self._wanted = self._fetch_wanted()
        value = self._wanted.get((number, frozen_key), _UNREAD)
        return self._one(number, key, frozen_key) if value is _UNREAD else value

    def all(self, number: int) -> Iterator[Entry]:
        """All entries of a key, sorted by entry key; in bounded memory unless they are prefetched."""
        if self._all and self._prefetched.within_budget(number):
            yield from self._entries(self._prefetched.of(number))
            return
        first: dict[Frozen, Any] | None = None
        for columns in self._prefetched.slices(number):
            entries = list(self._entries(columns))
            # A loop over a map often reads the current entry, too.
            cached = {name: value for name, _, value in entries}
            self._cached_number, self._cached, self._cached_whole = number, cached, False
            first = cached if first is None else {}
            yield from entries
        self._cached_whole |= self._cached_number == number and self._cached is first

    def _whole(self, number: int) -> dict[Frozen, Any]:
        if self._cached_number != number or not self._cached_whole:
            self._cached = {name: value for name, _, value in self._entries(self._prefetched.of(number))}
            self._cached_number, self._cached_whole = number, True
        return self._cached

    def _one(self, number: int, key: Any, frozen_key: Frozen) -> Any:
        if self._cached_number != number or len(self._cached) > _CACHED_ENTRIES:
            self._cached_number, self._cached, self._cached_whole = number, {}, False
        value = self._cached.get(frozen_key, ABSENT if self._cached_whole else _UNREAD)
        if value is _UNREAD:
            read = self._cursor.entries(np.array([number]), {self._columns[0]: pa.array([key], self._type)}).rows
            value = self._cached[frozen_key] = self._value_of(read, 0) if len(read) else ABSENT
        return value

    def _value_of(self, rows: pa.Table, row: int) -> Any:
        return rows.column(self._place.column)[row].as_py() if self._place.column else None

    def _entries(self, columns: list[list[Any]]) -> Iterator[Entry]:
        keys = columns[0]
        values = columns[1] if self._place.column else [None] * len(keys)
        return zip(map(frozen, keys), keys, values, strict=True)

    def _fetch_wanted(self) -> dict[tuple[int, Frozen], Any]:
        """Fetches the entries that the rows name, in one multi-get; ``ABSENT`` for those that do not exist."""
        self._cursor.was_read_by_rows = True
        numbers, keys = named_by_rows(self._state, self._cursor.name, self._rows, self._starts)
        if not len(numbers):
            return {}
        stored = self._cursor.entries(numbers, {self._columns[0]: keys})
        wanted: dict[tuple[int, Frozen], Any] = dict.fromkeys(
            zip(numbers.tolist(), map(frozen, keys.to_pylist()), strict=True), ABSENT
        )
        names = map(frozen, stored.rows.column(self._columns[0]).to_pylist())
        values = stored.rows.column(self._place.column).to_pylist() if self._place.column else [None] * len(stored.rows)
        wanted.update(zip(zip(numbers[stored.key_number].tolist(), names, strict=True), values, strict=True))
        return wanted

    def _frozen_by_type(self, key: Any) -> Frozen:
        """For types with several Python representations (a struct as dict or tuple, a time in any zone)."""
        return frozen(pa.array([key], self._type)[0].as_py())


_UNREAD: Final = object()


def named_by_rows(state: Map | Set, table: str, rows: pa.Table, starts: np.ndarray) -> tuple[np.ndarray, pa.Array]:
    """The entries that ``prefetch`` names in these rows, each once: the number of its key, and its entry key, normalised.

    The rows of key i are ``starts[i] : starts[i + 1]``.
    """
    paths, type_ = parse_paths(state.prefetch), state.arrow_key if isinstance(state, Map) else state.arrow
    named = [_evaluated(path, state.prefetch, table, rows, type_) for path in paths]
    keys = normalize_keys([pa.chunked_array(named, type_)])[0]
    numbers = np.tile(np.repeat(np.arange(len(starts) - 1), np.diff(starts)), len(paths))
    if not len(numbers):
        return numbers, keys
    hashes = hash_columns([keys])
    order = np.lexsort((hashes, numbers))
    entry = refine(starts_of(numbers[order], hashes[order]), [keys], order)
    once = order[np.unique(entry, return_index=True)[1]]
    return numbers[once], keys.take(pa.array(once))


def _evaluated(path: Path, prefetch: str, table: str, rows: pa.Table, type_: pa.DataType) -> pa.Array:
    operator, _, state = table.partition("__")
    where = f"operator {operator}, state {state}, prefetch {prefetch!r}"
    try:
        return cast(evaluate(path, rows), type_)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    except UNFIT as error:
        raise SchemaMismatch(f"{where}: {'.'.join(path)} cannot name an entry of type {type_}: {error}") from error


def frozen(key: Any) -> Frozen:
    """Requires: the key is as Arrow returns it. NaN equals NaN, and 0.0 equals −0.0."""
    if isinstance(key, float) and key != key:
        return ("nan",)
    if isinstance(key, dict):
        return tuple((name, frozen(value)) for name, value in key.items())
    if isinstance(key, (list, tuple)):
        return tuple(frozen(value) for value in key)
    return key


def is_plain(type_: pa.DataType) -> bool:
    """Whether all Python representations of an entry key of this type are equal."""
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_integer, pa.types.is_boolean, pa.types.is_float64)
    return any(is_one(type_) for is_one in kinds)
