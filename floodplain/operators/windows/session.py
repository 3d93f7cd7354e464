"""Session windows: stretches of rows of a key, kept by their start, that merge when a row bridges them."""

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
"""Starts and ends are stored in milliseconds, and what is beyond them in microseconds, of which older state has none."""


class SessionProcess(WindowProcess):
    """One timer per session waits for its end; when it is due and the session has grown, another is set."""

    numbers = (LAST, WAKE, START_REST, LAST_REST)
    kept: ListStorage

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Whether a session of the row alone would still be there. Rows without a time are in none."""
        times = as_ms(event_time)
        ends = pc.fill_null(times, 0).to_numpy(zero_copy_only=False) + self.windows.gap_ms
        return pa.array((ends > self.rules.late_cutoff_ms(late_ms)) & valid(times))

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:
        timers = batch.take_due()
        sessions = _Sessions(self, *self.kept.known(batch), *self._stretches(batch))
        held = sessions.held
        due = DueTriggers.of(self.rules, held.end > ctx.late_ms, timers, held.key_of, ctx)
        taken_back = sessions.taken_back()
        fires = self.rules.fires(held, due, ctx)
        made = self.results.of(batch, held, fires)
        self._keep(batch, sessions, fires, ctx)
        if taken_back is not None:
            made = pa.concat_tables([self.results.weighted(batch, *taken_back, -1), made])
        return made

    def _stretches(self, batch: Batch) -> tuple[EpochPartials, np.ndarray]:
        """The sessions that the rows of the epoch make by themselves, and their ends."""
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
        held, wake = sessions.held, sessions.wake
        expired = held.end + self.rules.lateness_ms <= ctx.watermark_ms
        wanted = held.end + np.where(held.end <= ctx.watermark_ms, self.rules.lateness_ms, 0)
        arm = ~expired & (wake <= ctx.watermark_ms)
        wake = np.where(arm, wanted, wake)
        batch.timer(wanted[arm], held.key_of[arm])
        changed = (held.added > 0) | arm | (fires & (self.rules.counted | (held.shown is not None)))
        last, last_rest = split_us(sessions.end)
        ends = {LAST: last, LAST_REST: last_rest, START_REST: split_us(sessions.start)[1]}
        self.kept.save(batch, held, ~expired, changed, {**ends, WAKE: wake, UNFIRED: held.unfired})
        set_ticks(self.rules, batch, held, ~expired, ctx)


class _Sessions:
    """Stored sessions and those of the epoch, those that overlap or touch as one."""

    def __init__(
        self, process: SessionProcess, known: Pairs, found: pa.Array, fresh: EpochPartials, fresh_ends: np.ndarray
    ) -> None:
        layout = process.layout
        last, wakes, start_rest, last_rest = (layout.number(found, name) for name in process.numbers)
        unfired = layout.number(found, UNFIRED)
        assert last is not None and wakes is not None and start_rest is not None and last_rest is not None
        self._key = np.concatenate([known[0], fresh.key_of])
        self._start = np.concatenate([joined_us(known[1], start_rest), fresh.number])
        end, count = np.concatenate([joined_us(last, last_rest), fresh_ends]), len(found)
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
        partials = layout.partials(found.take(pa.array(kept)))
        parts = [(self._owner[kept], partials), (self._owner[count:], fresh.partials)]
        self.wake = groups.reduced(np.minimum, np.append(wakes, np.full(len(fresh.rows), END_MS))[order])
        self.wake = np.where(self.wake == END_MS, NONE_MS, self.wake)
        self._shown = layout.shown(found)
        self.start, self.end = self._start[first], groups.reduced(np.maximum, end[order])
        self.held = OpenWindows(
            key_of=self._key[first],
            start=self.start // 1000,
            end=self.end // 1000,
            partials=merged(process.aggregation, self._key[first], parts),
            stored=groups.any(self._known[order]),
            added=groups.reduced(np.add, added[order]),
            unfired=groups.reduced(np.add, (added + old)[order]),
            shown=None if self._shown is None else at(self._shown, self._first_shown(len(groups))),
            bounds_us=(self.start, self.end),
        )

    def _first_shown(self, count: int) -> np.ndarray:
        """Of each session, the stored one that was shown and began first; -1 if none was."""
        assert self._shown is not None
        rows = np.flatnonzero(valid(self._shown))
        rows = rows[np.argsort(self._start[rows], kind="stable")]
        found = np.full(count, -1)
        found[self._owner[rows[::-1]]] = rows[::-1]
        return found

    def taken_back(self) -> tuple[np.ndarray, pa.Array] | None:
        """WindowResults of sessions that another has swallowed: their keys, and what was shown."""
        if self._shown is None:
            return None
        other = valid(self._shown)
        first = self._first_shown(len(self.held.end))
        other[first[first >= 0]] = False
        rows = np.flatnonzero(other)
        return self._key[rows], self._shown.take(pa.array(rows))


def _overlapping(key: np.ndarray, start: np.ndarray, end: np.ndarray) -> Groups:
    """Stretches, by key and start, that overlap with one before them of the same key, or begin where it ends."""
    _, rank = np.unique(end, return_inverse=True)
    # The latest end so far within the key: the number of the key outweighs every end.
    latest = np.maximum.accumulate(key * (len(end) + 1) + rank) if len(end) else rank
    by_rank = np.sort(np.unique(end))
    before = by_rank[latest - key * (len(end) + 1)] if len(end) else end
    first = starts_of(key)
    first[1:] |= start[1:] > before[:-1]
    return Groups(np.flatnonzero(first), len(end))
