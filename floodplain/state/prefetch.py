"""Prefetches entries of lists, maps and sets as of the start of the epoch, in bounded memory."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.state.keyspace import TableCursor
from floodplain.store.read.lookup import Footprint
from floodplain.store.rows.layout import one_array

_FIRST_KEYS = 1024
"""Keys in the first batch, while the size of a key is not known."""
_GROWTH = 8
_BLOCK_ROWS = 1 << 14
"""Rows that are converted to Python values at a time: these take many times the memory of Arrow."""


class PrefetchedEntries:
    """All entries of each key: of all keys in one multi-get if they are within the budget, else in batches that are.

    Rows are processed in ascending order of keys, so batches move forward; an earlier key (that of a timer) is read alone.
    """

    def __init__(self, cursor: TableCursor, columns: list[str]) -> None:
        self._cursor = cursor
        self._columns = columns
        self._low = self._high = 0
        self._bounds: list[int] = [0]
        self._blocks: list[_Block] = []
        self._seen_keys = self._seen_bytes = 0
        self._alone: tuple[int, list[list[Any]]] | None = None

    def within_budget(self, number: int) -> bool:
        """Whether the key may be prefetched: not if it alone is known to exceed the budget."""
        if self._low <= number < self._high:
            return True
        return bool(self._footprint.at_least[number] <= self._cursor.prefetch_bytes)

    def of(self, number: int) -> list[list[Any]]:
        """Per column, the values of the key's entries, sorted by sub-key."""
        if not self._low <= number < self._high:
            if number < self._high:
                return self._read_alone(number)
            self._fetch(number)
        begin, end = self._bounds[number - self._low], self._bounds[number - self._low + 1]
        if begin == end:
            return [[] for _ in self._columns]
        return [block.values(begin, end) for block in self._blocks]

    def slices(self, number: int) -> Iterator[list[list[Any]]]:
        """As ``of``, in bounded slices, for keys that exceed the budget."""
        for rows in self._cursor.pieces(number):
            for start in range(0, len(rows), _BLOCK_ROWS):
                part = rows.slice(start, _BLOCK_ROWS)
                yield [part.column(name).to_pylist() for name in self._columns]

    @cached_property
    def _footprint(self) -> Footprint:
        return self._cursor.footprint()

    def _fetch(self, number: int) -> None:
        whole = self._footprint.at_most <= self._cursor.prefetch_bytes
        self._low, self._high = (0, len(self._cursor.space)) if whole else (number, self._end(number))
        self._blocks = []
        stored = self._cursor.lookup_of(np.arange(self._low, self._high))
        self._seen_keys += self._high - self._low
        self._seen_bytes += stored.rows.nbytes
        self._bounds = np.searchsorted(stored.key_number, np.arange(self._high - self._low + 1)).tolist()
        self._blocks = [_Block(one_array(stored.rows.column(name))) for name in self._columns]

    def _end(self, number: int) -> int:
        each = self._seen_bytes / self._seen_keys if self._seen_keys else 0
        most = min(_GROWTH * self._seen_keys or _FIRST_KEYS, len(self._cursor.space) - number)
        sizes = np.cumsum(self._footprint.at_least[number : number + most] + each)
        return number + max(1, int(np.searchsorted(sizes, self._cursor.prefetch_bytes, "right")))

    def _read_alone(self, number: int) -> list[list[Any]]:
        if self._alone is None or self._alone[0] != number:
            rows = self._cursor.lookup_of(np.array([number])).rows
            self._alone = number, [rows.column(name).to_pylist() for name in self._columns]
        return self._alone[1]


class _Block:
    """A column with a window of rows converted to Python values."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column
        self._low = self._high = 0
        self._values: list[Any] = []

    def values(self, begin: int, end: int) -> list[Any]:
        if begin >= self._high:
            self._low, self._high = begin, min(max(end, begin + _BLOCK_ROWS), len(self._column))
            self._values = self._column.slice(begin, self._high - begin).to_pylist()
        if self._low <= begin and end <= self._high:
            return self._values[begin - self._low : end - self._low]
        return self._column.slice(begin, end - begin).to_pylist()
