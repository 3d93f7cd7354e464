"""Tumbling windows, sliding windows with early or retracted results, and the global window: one entry per key and window."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import as_ms
from floodplain.operators.aggregates.aggregation import merged
from floodplain.operators.aggregates.combiner import pane_ms
from floodplain.operators.kernel.batch import KEY_OF, Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.pane_index import Pairs, union
from floodplain.operators.kernel.segments import groups_are, groups_of, valid
from floodplain.operators.windows.base import EpochPartials, WindowProcess
from floodplain.operators.windows.open_windows import UNFIRED, OpenWindows
from floodplain.operators.windows.storage import WINDOWS, ListStorage, MapStorage
from floodplain.operators.windows.triggers import DueTriggers, set_ticks

MOST_AT_ONCE = 100
"""Open windows per key up to which they are stored as one value."""


class TimeWindowProcess(WindowProcess):
    """A window stays open until ``end + lateness``, stored by its start; it has a timer at its end and one at its expiry."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        kind, open_ms = self.windows, self.windows.size_ms + self.rules.lateness_ms
        if not kind.is_global and open_ms // (kind.pane_ms if self.shares_panes else kind.slide_ms) > MOST_AT_ONCE:
            self.storage = MapStorage(self.layout)

    shares_panes = False

    def resumed(self, apart: Collection[str], before: Sequence[tuple[int, int]]) -> "TimeWindowProcess":
        process = super().resumed(apart, before)
        # The number of open windows per key can change with the lateness; the storage they are in stays.
        process.storage = MapStorage(self.layout) if WINDOWS in apart else ListStorage(self.layout)
        return process

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Whether a window of the row is still open. Rows without a time are only in the global window."""
        times = as_ms(event_time)
        timed = valid(times) | self.windows.is_global
        plain = pane_ms(event_time, inclusive=self.inclusive)
        ends = self.windows.last_of(plain) + self.windows.size_ms
        return pa.array((ends > self.rules.late_cutoff_ms(late_ms)) & timed)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:
        timers = batch.take_due()
        fresh = self._fresh(batch, ctx)
        windows, due, postponed = self._open_windows(batch, fresh, timers, ctx)
        fires = self.rules.fires(windows, due, ctx) & (windows.stored | (windows.added > 0))
        output = self.results.of(batch, windows, fires)
        self._keep(batch, windows, fires, due.ended | postponed, ctx)
        return output

    def _fresh(self, batch: Batch, ctx: BatchContext) -> EpochPartials:
        """The epoch's partials by window. Where windows overlap, those of a pane are added to each of them."""
        panes = self.fresh(batch, self.windows.pane_of(self.times_ms(batch)))
        if self.windows.per_pane == 1:
            return panes
        last = self.windows.last_of(panes.number)
        starts = np.stack([last - step * self.windows.slide_ms for step in range(self.windows.per_pane)])
        ends = starts + self.windows.size_ms
        open_ = (ends > panes.number) & (ends > self.rules.late_cutoff_ms(ctx.late_ms))
        _, pane = np.nonzero(open_)
        (key_of, start), (place,) = union([(panes.key_of[pane], starts[open_])])
        order = np.argsort(place, kind="stable")
        groups = groups_of(place[order])
        spread = panes.at(pane[order])
        with groups_are(key_of):
            partials = self.aggregation.combine(spread.partials, groups)
        return EpochPartials(key_of, start, partials, groups.reduced(np.add, spread.rows))

    def _open_windows(
        self, batch: Batch, fresh: EpochPartials, timers: pa.Table, ctx: BatchContext
    ) -> tuple[OpenWindows, DueTriggers, np.ndarray]:
        """All windows that may change or fire, with the rows of the epoch; and which of them have a timer of an earlier, shorter
        lateness."""
        mine = pc.equal(timers.column("clock"), "event").to_numpy()
        of, at_ms = timers.column(KEY_OF).to_numpy()[mine], timers.column("time").to_numpy()[mine]
        ended = self._starting(of, at_ms - self.windows.size_ms)
        lateness = [self.rules.lateness_ms, *(shorter for _, shorter in self.rules.before)]
        expiring = [self._starting(of, at_ms - self.windows.size_ms - each) for each in lateness]
        sources = [(fresh.key_of, fresh.number), ended, *expiring]
        loaded = self.storage.load(batch, sources, everything=bool(self.rules.ticks))
        (key_of, start), places, entries = loaded.pairs, loaded.places, loaded.entries
        stored = valid(entries)
        old = self.layout.number(entries, UNFIRED)
        kept = np.flatnonzero(stored if self.rules.firing != "discarding" or old is None else stored & (old > 0))
        before = self.layout.partials(entries.take(pa.array(kept)))
        added = np.zeros(len(start), np.int64)
        added[places[0]] = fresh.rows
        windows = OpenWindows(
            key_of=key_of,
            start=start,
            end=start + self.windows.size_ms,
            partials=merged(self.aggregation, key_of, [(kept, before), (places[0], fresh.partials)]),
            stored=stored,
            added=added,
            unfired=added.copy() if old is None else added + old,
            emitted=self.layout.emitted(entries),
        )
        reached, postponed = np.zeros((2, len(start)), bool)
        reached[places[1]] = True
        for shorter in places[3:]:
            postponed[shorter] = True
        return windows, DueTriggers.of(self.rules, reached, timers, key_of, ctx), postponed

    def _starting(self, of: np.ndarray, start: np.ndarray) -> Pairs:
        """Those times that are starts of windows: a timer may be for something else."""
        mine = self.windows.starts(start)
        return of[mine], start[mine]

    def _keep(self, batch: Batch, windows: OpenWindows, fires: np.ndarray, due: np.ndarray, ctx: BatchContext) -> None:
        """``due``: windows whose timer was due."""
        expired = windows.end + self.rules.lateness_ms <= ctx.watermark_ms
        reached = windows.end <= ctx.watermark_ms
        there = windows.stored | (windows.added > 0)
        changed = there & ~expired & ((windows.added > 0) | (fires & (self.rules.counted | (windows.emitted is not None))))
        self.storage.save(batch, windows, there & ~expired, changed, {UNFIRED: windows.unfired})
        opened = there & ~windows.stored & ~reached
        batch.timer(windows.end[opened], windows.key_of[opened])
        closed = there & reached & ~expired & (due | ~windows.stored)
        batch.timer(windows.end[closed] + self.rules.lateness_ms, windows.key_of[closed])
        set_ticks(self.rules, batch, windows, there & ~expired, ctx)
