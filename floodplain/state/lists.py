"""Handles on lists."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.state.descriptors import List
from floodplain.state.handles import restore
from floodplain.state.keyspace import TableCursor
from floodplain.state.kinds import plain_kind
from floodplain.state.positions import pack
from floodplain.state.prefetch import PrefetchedEntries
from floodplain.state.row_expressions import ALL
from floodplain.state.tables import StateColumn, state_of
from floodplain.state.value_check import check_each, checked_converter, identity


class ListHandle:
    """``get``, ``append``, ``extend``, ``set``, ``clear``, ``exists``; iteration takes bounded memory. Appending reads
    nothing."""

    def __init__(self, state: List, place: StateColumn, cursor: TableCursor, epoch: int) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self.cursor = cursor
        self.epoch = epoch
        self._prefetched = PrefetchedEntries(cursor, [place.column or ""])
        self._all = state.prefetch == ALL
        self._appended: dict[int, list[Any]] = {}
        self._cleared: set[int] = set()
        self._kind, self._convert = plain_kind(state.arrow), checked_converter(f"state {state_of(place)}", state.arrow)

    def trust(self) -> None:
        """Skips conversions: a built-in caller passes only valid values."""
        self._convert = identity

    def get(self) -> list[Any]:
        """The elements, oldest first."""
        return [*chain.from_iterable(self._stored()), *self._appended.get(self.i, ())]

    def __iter__(self) -> Iterator[Any]:
        """The elements as they are now, oldest first."""
        return chain(chain.from_iterable(self._stored()), self._appended.get(self.i, ())[:])

    def __len__(self) -> int:
        return sum(map(len, self._stored())) + len(self._appended.get(self.i, ()))

    def exists(self) -> bool:
        return bool(self._appended.get(self.i)) or any(self._stored())

    def append(self, value: Any) -> None:
        if type(value) is not self._kind:
            value = self._convert(value)
        appended = self._appended.get(self.i)
        if appended is None:
            self._appended[self.i] = [value]
        else:
            appended.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        kind, convert = self._kind, self._convert
        values = [value if type(value) is kind else convert(value) for value in values]
        if values:
            self._appended.setdefault(self.i, []).extend(values)

    def set(self, values: Iterable[Any]) -> None:
        """Replaces all elements."""
        values = list(values)
        self.clear()
        self.extend(values)

    def clear(self) -> None:
        self._cleared.add(self.i)
        self._appended.pop(self.i, None)

    def _stored(self) -> Iterable[list[Any]]:
        """The elements at the start of the epoch, in blocks."""
        if self.i in self._cleared:
            return ()
        if self._all and self._prefetched.within_budget(self.i):
            return self._prefetched.of(self.i)
        return (values for (values,) in self._prefetched.slices(self.i))

    def write(self) -> None:
        if self._cleared:
            self.cursor.write_at(np.array(sorted(self._cleared)), {}, "clear")
        numbers = [number for number, values in self._appended.items() if values]
        if not numbers:
            return
        sizes = [len(self._appended[number]) for number in numbers]
        ordinals = np.arange(sum(sizes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        values = pa.array([value for number in numbers for value in self._appended[number]], self.state.arrow)
        columns = {self.place.subkey or "": pa.array(pack(self.epoch, ordinals)), self.place.column or "": values}
        self.cursor.write_at(np.repeat(numbers, sizes), columns, "put")

    def mark(self) -> Any:
        return list(self._appended[self.i]) if self.i in self._appended else None, self.i in self._cleared

    def rollback(self, marked: Any) -> None:
        restore(self._appended, self.i, marked[0])
        (self._cleared.add if marked[1] else self._cleared.discard)(self.i)

    def check(self) -> None:
        if self.i in self._appended:
            check_each(self._appended[self.i], self.state.arrow)
