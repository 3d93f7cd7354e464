"""Count windows: every N rows of a key."""

from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.eventtime.times import END_MS, NONE_MS, as_us, joined_us, split_us
from floodplain.operators.aggregates.aggregation import merged
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.pane_index import find
from floodplain.operators.kernel.segments import Groups, filled, groups_of, valid
from floodplain.operators.windows.base import WindowProcess
from floodplain.operators.windows.open_windows import OpenWindows
from floodplain.state.descriptors import State, Value

SEEN = "rows_seen"
FIRST, LAST = "_first", "_last"
FIRST_REST, LAST_REST = "_first_rest", "_last_rest"
"""Times are stored in milliseconds, and the remaining microseconds apart: older states have none."""


class CountWindowProcess(WindowProcess):
    """Window i of a key starts at its row ``i * slide`` and fires when it is full. Rows are aggregated in panes.

    ``window_start`` and ``window_end`` are the earliest and latest event time of its rows.
    """

    numbers = (FIRST, LAST, FIRST_REST, LAST_REST)
    drops_late = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pane = int(np.gcd(self.windows.size, self.windows.slide))
        self.order_by = () if self.event_time is None else (self.event_time,)

    def states(self) -> dict[str, State]:
        return {**super().states(), SEEN: Value("long", 0, nullable=False)}

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:  # noqa: ARG002
        """No row is late."""
        return pa.repeat(True, len(event_time))

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.keys):
            return None
        before = filled(batch.state(SEEN), 0)
        after = before + batch.rows_per_key()
        panes, first, last = self._panes(batch, before)
        full = self._full(panes, first, last, before, after)
        output = self.results.of(batch, full, np.ones(len(full.end), bool))
        self._keep(batch, panes, first, last, after)
        return output

    def _panes(self, batch: Batch, before: np.ndarray) -> tuple[OpenWindows, np.ndarray, np.ndarray]:
        """All panes of the batch's keys, and their earliest and latest times."""
        of = batch.key_of_row
        position = before[of] + np.arange(len(of)) - batch.starts[:-1][of]
        fresh = self.fresh(batch, position // self.pane)
        groups = groups_of(of, position // self.pane)
        earliest, latest = self._ends(batch, groups)
        loaded = self.storage.load(batch, [(fresh.key_of, fresh.number)], everything=True)
        (key_of, number), (new,) = loaded.pairs, loaded.places
        stored, added = valid(loaded.entries), np.zeros(len(number), np.int64)
        added[new], old = fresh.rows, np.flatnonzero(stored)
        entries = loaded.entries.take(pa.array(old))
        first, last = np.full(len(number), END_MS), np.full(len(number), NONE_MS)
        first[old], last[old] = (self._stored_us(entries, *names) for names in ((FIRST, FIRST_REST), (LAST, LAST_REST)))
        first[new], last[new] = np.minimum(first[new], earliest), np.maximum(last[new], latest)
        partials = merged(self.aggregation, key_of, [(old, self.layout.partials(entries)), (new, fresh.partials)])
        return OpenWindows(key_of, number, number, partials, stored, added, added), first, last

    def _stored_us(self, entries: pa.Array, name: str, rest: str) -> np.ndarray:
        whole, more = self.layout.number(entries, name), self.layout.number(entries, rest)
        assert whole is not None and more is not None
        return joined_us(whole, more)

    def _ends(self, batch: Batch, groups: Groups) -> tuple[np.ndarray, np.ndarray]:
        if self.event_time is None:
            return np.full(len(groups), END_MS), np.full(len(groups), NONE_MS)
        times = as_us(pa.chunked_array([batch.column(self.event_time)]))
        return groups.reduced(np.minimum, filled(times, END_MS)), groups.reduced(np.maximum, filled(times, NONE_MS))

    def _full(
        self, panes: OpenWindows, first: np.ndarray, last: np.ndarray, before: np.ndarray, after: np.ndarray
    ) -> OpenWindows:
        """The windows that became full, merged from their panes."""
        done, now = self._windows(before), self._windows(after)
        key_of = np.repeat(np.arange(len(done)), now - done)
        number = np.arange(len(key_of)) - np.repeat(np.cumsum(now - done) - (now - done), now - done) + done[key_of]
        start = number * (self.windows.slide // self.pane)
        low = find(panes.pairs, (key_of, start)) if len(start) else start
        width = self.windows.size // self.pane
        owner = np.repeat(np.arange(len(start)), width)
        member = (low[:, None] + np.arange(width)).ravel()
        partials = merged(self.aggregation, key_of, [(owner, [column.take(pa.array(member)) for column in panes.partials])])
        groups = groups_of(owner)
        earliest, latest = groups.reduced(np.minimum, first[member]), groups.reduced(np.maximum, last[member])
        rows = np.ones(len(start), np.int64)
        return OpenWindows(key_of, start, start, partials, rows > 0, rows, rows.copy(), bounds_us=(earliest, latest))

    def _windows(self, rows: np.ndarray) -> np.ndarray:
        """The number of full windows after this many rows."""
        return np.maximum((rows - self.windows.size) // self.windows.slide + 1, 0)

    def _keep(self, batch: Batch, panes: OpenWindows, first: np.ndarray, last: np.ndarray, after: np.ndarray) -> None:
        batch.set(SEEN, pa.array(after))
        needed = panes.start >= (self._windows(after) * (self.windows.slide // self.pane))[panes.key_of]
        times = dict(zip((FIRST, FIRST_REST, LAST, LAST_REST), (*split_us(first), *split_us(last)), strict=True))
        self.storage.save(batch, panes, needed, panes.added > 0, times)
