"""Timers of the keys of one task: registered, deleted, listed, and those that are due."""

import heapq
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from floodplain.state.handles import restore
from floodplain.state.keyspace import TableCursor
from floodplain.state.tables import Place


class TimersHandle:
    """Many per key, told apart by their time."""

    def __init__(self, place: Place, cursor: TableCursor, numbers: np.ndarray, times: np.ndarray, until_ms: int) -> None:
        """``numbers`` and ``times``: the keys and times of stored timers that are due, up to ``until_ms``."""
        self.i = 0
        self.place = place
        self._cursor = cursor
        self._until_ms = until_ms
        last_first = np.lexsort((numbers, times))[::-1]
        self._due = list(zip(times[last_first].tolist(), numbers[last_first].tolist(), strict=True))
        self._added: list[tuple[int, int]] = []
        self._changed: dict[tuple[int, int], bool] = {}
        self._stored: dict[int, set[int]] | None = None
        self._journal: list[tuple[int, bool | None]] | None = None

    def add(self, at_ms: int) -> None:
        if self._changed.get((self.i, at_ms)) is True:
            return
        self._change(at_ms, True)
        if at_ms <= self._until_ms:
            heapq.heappush(self._added, (at_ms, self.i))

    def delete(self, at_ms: int) -> None:
        self._change(at_ms, False)

    def _change(self, at_ms: int, there: bool) -> None:
        if self._journal is not None:
            self._journal.append((at_ms, self._changed.get((self.i, at_ms))))
        self._changed[self.i, at_ms] = there

    def all(self) -> list[int]:
        """The times set for this key, ascending."""
        if self._stored is None:
            lookup = self._cursor.lookup()
            self._stored = {}
            for number, at_ms in zip(lookup.needle.tolist(), lookup.rows.column(self.place.subkey).to_pylist(), strict=True):
                self._stored.setdefault(number, set()).add(at_ms)
        times = set(self._stored.get(self.i, ()))
        for (number, at_ms), there in self._changed.items():
            if number == self.i:
                (times.add if there else times.discard)(at_ms)
        return sorted(times)

    def fire(self) -> Iterator[tuple[int, int]]:
        """(key number, time) of each timer that is due, by time; it is gone before its callback runs, which may set it again."""
        due, added, changed = self._due, self._added, self._changed
        while due or added:
            stored = not added or bool(due and due[-1] <= added[0])
            at_ms, number = due.pop() if stored else heapq.heappop(added)
            if changed.get((number, at_ms), stored):
                changed[number, at_ms] = False
                yield number, at_ms

    def write(self) -> None:
        for op, wanted in (("delete", False), ("put", True)):
            rows = [key for key, there in self._changed.items() if there is wanted]
            if rows:
                numbers, times = np.array([number for number, _ in rows]), pa.array([at_ms for _, at_ms in rows], pa.int64())
                self._cursor.write_at(numbers, {self.place.subkey or "": times}, op)

    def mark(self) -> None:
        self._journal = []

    def rollback(self, _: None) -> None:
        """Undoes what was changed since the last mark. What it leaves among those added is not there when it comes up."""
        for at_ms, there in reversed(self._journal or ()):
            restore(self._changed, (self.i, at_ms), there)

    def check(self) -> None:
        """Times are whole numbers already."""
