"""Session windows: stored by key and start, merged when a row bridges the gap between two."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import END_MS, NONE_MS, as_ms, joined_us, split_us
from floodplain.operators.aggregates.aggregation import merged
from floodplain.operators.aggregates.combiner import partials_of
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.pane_index import Pairs, order_of
from floodplain.operators.kernel.segments import Groups, at, valid
from floodplain.operators.windows.base import EpochPartials, WindowProcess
from floodplain.operators.windows.open_windows import UNFIRED, OpenWindows
from floodplain.operators.windows.storage import ListStorage
from floodplain.operators.windows.triggers import DueTriggers, set_ticks
from floodplain.store.rows.row_classes import starts_of

LAST, WAKE = "_end", "_wake"
START_REST, LAST_REST = "_start_rest", "_end_rest"
"""Starts and ends are stored in milliseconds, and the remaining microseconds apart: older states have none."""


class SessionProcess(WindowProcess):
    """One timer per session at its end; when it is due and the session has grown, another is set."""

    numbers = (LAST, WAKE, START_REST, LAST_REST)
    storage: ListStorage

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Whether a session of this row alone would still be open. Rows without a time are in no session."""
        times = as_ms(event_time)
        ends = pc.fill_null(times, 0).to_numpy(zero_copy_only=False) + self.windows.gap_ms
        return pa.array((ends > self.rules.late_cutoff_ms(late_ms)) & valid(times))

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:
        timers = batch.take_due()
        sessions = _Sessions(self, *self.storage.known(batch), *self._new_sessions(batch))
        windows = sessions.windows
        due = DueTriggers.of(self.rules, windows.end > ctx.late_ms, timers, windows.key_of, ctx)
        retractions = sessions.retractions()
        fires = self.rules.fires(windows, due, ctx)
        output = self.results.of(batch, windows, fires)
        self._keep(batch, sessions, fires, ctx)
        if retractions is not None:
            output = pa.concat_tables([self.results.weighted(batch, *retractions, -1), output])
        return output

    def _new_sessions(self, batch: Batch) -> tuple[EpochPartials, np.ndarray]:
        """Sessions of the epoch's rows alone, and their ends."""
        times, key_of, gap = self.times_us(batch), batch.key_of_row, self.windows.gap_ms * 1000
        order = order_of((key_of, times))
        if order is not None:
            times, key_of = times[order], key_of[order]
        first = starts_of(key_of)
        first[1:] |= times[1:] - times[:-1] > gap
        groups = Groups(np.flatnonzero(first), len(times))
        last = groups.starts + groups.sizes - 1
        partials, rows = partials_of(self.aggregation, batch, groups, order)
        fresh = EpochPartials(key_of[groups.starts], times[groups.starts], partials, rows)
        return fresh, times[last] + gap

    def _keep(self, batch: Batch, sessions: "_Sessions", fires: np.ndarray, ctx: BatchContext) -> None:
        windows, wake = sessions.windows, sessions.wake
        expired = windows.end + self.rules.lateness_ms <= ctx.watermark_ms
        wanted = windows.end + np.where(windows.end <= ctx.watermark_ms, self.rules.lateness_ms, 0)
        arm = ~expired & (wake <= ctx.watermark_ms)
        wake = np.where(arm, wanted, wake)
        batch.timer(wanted[arm], windows.key_of[arm])
        changed = (windows.added > 0) | arm | (fires & (self.rules.counted | (windows.emitted is not None)))
        last, last_rest = split_us(sessions.end)
        ends = {LAST: last, LAST_REST: last_rest, START_REST: split_us(sessions.start)[1]}
        self.storage.save(batch, windows, ~expired, changed, {**ends, WAKE: wake, UNFIRED: windows.unfired})
        set_ticks(self.rules, batch, windows, ~expired, ctx)


class _Sessions:
    """Stored sessions merged with those of the epoch: sessions that overlap or touch become one."""

    def __init__(
        self, process: SessionProcess, known: Pairs, entries: pa.Array, fresh: EpochPartials, fresh_ends: np.ndarray
    ) -> None:
        layout = process.layout
        last, wakes, start_rest, last_rest = (layout.number(entries, name) for name in process.numbers)
        unfired = layout.number(entries, UNFIRED)
        assert last is not None and wakes is not None and start_rest is not None and last_rest is not None
        self._key = np.concatenate([known[0], fresh.key_of])
        self._start = np.concatenate([joined_us(known[1], start_rest), fresh.number])
        end, count = np.concatenate([joined_us(last, last_rest), fresh_ends]), len(entries)
        order = order_of((self._key, self._start))
        order = np.arange(len(end)) if order is None else order
        groups = _overlapping(self._key[order], self._start[order], end[order])
        self._owner = np.empty(len(end), np.int64)
        self._owner[order] = groups.of_row
        first = order[groups.starts]
        self._known = np.arange(len(end)) < count
        added = np.append(np.zeros(count, np.int64), fresh.rows)
        old = np.append(np.zeros(count, np.int64) if unfired is None else unfired, np.zeros(len(fresh.rows), np.int64))
        kept = np.flatnonzero(old[:count] > 0) if process.rules.firing == "discarding" else np.arange(count)
        partials = layout.partials(entries.take(pa.array(kept)))
        parts = [(self._owner[kept], partials), (self._owner[count:], fresh.partials)]
        self.wake = groups.reduced(np.minimum, np.append(wakes, np.full(len(fresh.rows), END_MS))[order])
        self.wake = np.where(self.wake == END_MS, NONE_MS, self.wake)
        self._emitted = layout.emitted(entries)
        self.start, self.end = self._start[first], groups.reduced(np.maximum, end[order])
        self.windows = OpenWindows(
            key_of=self._key[first],
            start=self.start // 1000,
            end=self.end // 1000,
            partials=merged(process.aggregation, self._key[first], parts),
            stored=groups.any(self._known[order]),
            added=groups.reduced(np.add, added[order]),
            unfired=groups.reduced(np.add, (added + old)[order]),
            emitted=None if self._emitted is None else at(self._emitted, self._first_emitted(len(groups))),
            bounds_us=(self.start, self.end),
        )

    def _first_emitted(self, count: int) -> np.ndarray:
        """For each session the earliest stored one with an emitted result; -1 if there is none."""
        assert self._emitted is not None
        rows = np.flatnonzero(valid(self._emitted))
        rows = rows[np.argsort(self._start[rows], kind="stable")]
        first = np.full(count, -1)
        first[self._owner[rows[::-1]]] = rows[::-1]
        return first

    def retractions(self) -> tuple[np.ndarray, pa.Array] | None:
        """Emitted results of sessions that were merged into another: their keys, and the results."""
        if self._emitted is None:
            return None
        other = valid(self._emitted)
        first = self._first_emitted(len(self.windows.end))
        other[first[first >= 0]] = False
        rows = np.flatnonzero(other)
        return self._key[rows], self._emitted.take(pa.array(rows))


def _overlapping(key: np.ndarray, start: np.ndarray, end: np.ndarray) -> Groups:
    """Groups sessions of one key that overlap or touch. Requires: sorted by key and start."""
    _, rank = np.unique(end, return_inverse=True)
    # The latest end so far within the key: the number of the key outweighs every end.
    latest = np.maximum.accumulate(key * (len(end) + 1) + rank) if len(end) else rank
    by_rank = np.sort(np.unique(end))
    before = by_rank[latest - key * (len(end) + 1)] if len(end) else end
    first = starts_of(key)
    first[1:] |= start[1:] > before[:-1]
    return Groups(np.flatnonzero(first), len(end))
