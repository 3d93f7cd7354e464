"""Timers of the keys of one task: set, delete, list and fire."""

import heapq
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.state.handles import restore
from floodplain.state.keyspace import TableCursor
from floodplain.state.tables import StateColumn

_NOTHING_FIRED = -(1 << 64)
"""Earlier than any timer."""


EVENT_TIMERS, PROCESSING_TIMERS = "event_timers", "processing_timers"
"""The states in which every operator has its timers."""


class TimersHandle:
    """The timers of a key for one clock, identified by their time."""

    def __init__(self, place: StateColumn, cursor: TableCursor, due: tuple[np.ndarray, np.ndarray], until_ms: int) -> None:
        """``due``: key numbers and times of the stored timers that are due, up to ``until_ms``."""
        self.i = 0
        self.place = place
        self.cursor = cursor
        self.due = due
        self.until_ms = until_ms
        self.refusal: str | None = None
        """Why timers cannot be set; None if they can."""
        self._new_due: list[tuple[int, int]] = []
        self._fired_ms = _NOTHING_FIRED
        self._changed: dict[int, dict[int, bool]] = {}
        self._journal: list[tuple[int, bool | None]] | None = None

    def add(self, at_ms: int) -> None:
        if self.refusal is not None:
            raise BadInput(f"a timer is set for {at_ms} ms, and {self.refusal}")
        if self._changed.get(self.i, {}).get(at_ms) is True:
            return
        self._change(at_ms, True)
        # A past timer set by a callback would fire endlessly: it fires in the next epoch.
        if self._fired_ms < at_ms <= self.until_ms:
            heapq.heappush(self._new_due, (at_ms, self.i))

    def delete(self, at_ms: int) -> None:
        self._change(at_ms, False)

    def _change(self, at_ms: int, is_set: bool) -> None:
        changed = self._changed.setdefault(self.i, {})
        if self._journal is not None:
            self._journal.append((at_ms, changed.get(at_ms)))
        changed[at_ms] = is_set

    def all(self) -> list[int]:
        """The times of this key's timers, ascending."""
        times = set(self._stored.get(self.i, ()))
        for at_ms, is_set in self._changed.get(self.i, {}).items():
            (times.add if is_set else times.discard)(at_ms)
        return sorted(times)

    @cached_property
    def _stored(self) -> dict[int, list[int]]:
        lookup = self.cursor.lookup()
        times: dict[int, list[int]] = {}
        for number, at_ms in zip(lookup.key_number.tolist(), lookup.rows.column(self.place.subkey).to_pylist(), strict=True):
            times.setdefault(number, []).append(at_ms)
        return times

    def fire(self) -> Iterator[tuple[int, int]]:
        """(key number, time) of each due timer, sorted by time. It is deleted before its callback runs, which may set it again.

        A timer set by a callback fires too if it is due and later than the timer of the callback; else in the next epoch.
        """
        stored = sorted(zip(self.due[1].tolist(), self.due[0].tolist(), strict=True), reverse=True)
        pending, last = set(stored), None
        while stored or self._new_due:
            fresh = bool(self._new_due) and (not stored or self._new_due[0] <= stored[-1])
            at_ms, number = timer = heapq.heappop(self._new_due) if fresh else stored.pop()
            # A timer that was deleted and set again is among the stored and the new ones.
            if timer != last and self._changed.get(number, {}).get(at_ms, timer in pending):
                last, self._fired_ms = timer, at_ms
                self._changed.setdefault(number, {})[at_ms] = False
                yield number, at_ms

    def waiting(self, until_ms: int) -> list[tuple[int, int]]:
        """(time, key number) of each timer up to this time, sorted by time. They are not deleted."""
        timers = set(zip(self.due[1].tolist(), self.due[0].tolist(), strict=True))
        for number, changed in self._changed.items():
            for at_ms, is_set in changed.items():
                if is_set and at_ms <= until_ms:
                    timers.add((at_ms, number))
                elif not is_set:
                    timers.discard((at_ms, number))
        return sorted(timers)

    def write(self) -> None:
        for op, wanted in (("delete", False), ("put", True)):
            rows = [(at, at_ms) for at, times in self._changed.items() for at_ms, is_set in times.items() if is_set is wanted]
            if rows:
                numbers, times = np.array([number for number, _ in rows]), pa.array([at_ms for _, at_ms in rows], pa.int64())
                self.cursor.write_at(numbers, {self.place.subkey or "": times}, op)

    def mark(self) -> None:
        self._journal = []

    def rollback(self, _: None) -> None:
        """Undoes the changes since the last mark. ``fire`` skips new due timers that are not set any more."""
        for at_ms, was_set in reversed(self._journal or ()):
            restore(self._changed.setdefault(self.i, {}), at_ms, was_set)

    def check(self) -> None:
        """Nothing to check: times are integers already."""
