"""Tumbling windows, sliding windows with early or taken-back results, and the global window: one entry per key and window."""

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
"""Windows that a key may have at a time and still be kept as one value."""


class TimeWindowProcess(WindowProcess):
    """A window is kept by its start until ``end + lateness``; a timer waits for each of the two."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        windows, open_ms = self.windows, self.windows.size_ms + self.rules.lateness_ms
        if not windows.is_global and open_ms // (windows.pane_ms if self.shares_panes else windows.slide_ms) > MOST_AT_ONCE:
            self.kept = MapStorage(self.layout)

    shares_panes = False

    def continued(self, apart: Collection[str], before: Sequence[tuple[int, int]]) -> "TimeWindowProcess":
        found = super().continued(apart, before)
        # How many windows a key may have at a time can change; where they are kept stays.
        found.kept = MapStorage(self.layout) if WINDOWS in apart else ListStorage(self.layout)
        return found

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Whether a window of the row is still there. Rows without a time are in none but the global one."""
        times = as_ms(event_time)
        timed = valid(times) | self.windows.is_global
        plain = pane_ms(event_time, inclusive=self.inclusive)
        ends = self.windows.last_of(plain) + self.windows.size_ms
        return pa.array((ends > self.rules.late_cutoff_ms(late_ms)) & timed)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:
        timers = batch.take_due()
        fresh = self._fresh(batch, ctx)
        held, due, postponed = self._held(batch, fresh, timers, ctx)
        fires = self.rules.fires(held, due, ctx) & (held.stored | (held.added > 0))
        made = self.results.of(batch, held, fires)
        self._keep(batch, held, fires, due.ended | postponed, ctx)
        return made

    def _fresh(self, batch: Batch, ctx: BatchContext) -> EpochPartials:
        """The rows of the epoch by window. Where windows overlap, what a pane adds is added to each of them."""
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

    def _held(
        self, batch: Batch, fresh: EpochPartials, timers: pa.Table, ctx: BatchContext
    ) -> tuple[OpenWindows, DueTriggers, np.ndarray]:
        """All windows that may change or fire, as they are with the rows of the epoch; and which of them were to go by now, but
        lateness has grown since."""
        mine = pc.equal(timers.column("clock"), "event").to_numpy()
        of, at_ms = timers.column(KEY_OF).to_numpy()[mine], timers.column("time").to_numpy()[mine]
        ended = self._starting(of, at_ms - self.windows.size_ms)
        lateness = [self.rules.lateness_ms, *(shorter for _, shorter in self.rules.before)]
        gone = [self._starting(of, at_ms - self.windows.size_ms - each) for each in lateness]
        sources = [(fresh.key_of, fresh.number), ended, *gone]
        loaded = self.kept.load(batch, sources, everything=bool(self.rules.ticks))
        (key_of, start), places, found = loaded.pairs, loaded.places, loaded.found
        stored = valid(found)
        old = self.layout.number(found, UNFIRED)
        kept = np.flatnonzero(stored if self.rules.firing != "discarding" or old is None else stored & (old > 0))
        before = self.layout.partials(found.take(pa.array(kept)))
        added = np.zeros(len(start), np.int64)
        added[places[0]] = fresh.rows
        held = OpenWindows(
            key_of=key_of,
            start=start,
            end=start + self.windows.size_ms,
            partials=merged(self.aggregation, key_of, [(kept, before), (places[0], fresh.partials)]),
            stored=stored,
            added=added,
            unfired=added.copy() if old is None else added + old,
            shown=self.layout.shown(found),
        )
        reached, postponed = np.zeros((2, len(start)), bool)
        reached[places[1]] = True
        for shorter in places[3:]:
            postponed[shorter] = True
        return held, DueTriggers.of(self.rules, reached, timers, key_of, ctx), postponed

    def _starting(self, of: np.ndarray, start: np.ndarray) -> Pairs:
        """Those that are starts of windows: a timer may have been set for something else."""
        mine = self.windows.starts(start)
        return of[mine], start[mine]

    def _keep(self, batch: Batch, held: OpenWindows, fires: np.ndarray, due: np.ndarray, ctx: BatchContext) -> None:
        """``due``: windows whose timer was due."""
        expired = held.end + self.rules.lateness_ms <= ctx.watermark_ms
        reached = held.end <= ctx.watermark_ms
        there = held.stored | (held.added > 0)
        changed = there & ~expired & ((held.added > 0) | (fires & (self.rules.counted | (held.shown is not None))))
        self.kept.save(batch, held, there & ~expired, changed, {UNFIRED: held.unfired})
        opened = there & ~held.stored & ~reached
        batch.timer(held.end[opened], held.key_of[opened])
        closed = there & reached & ~expired & (due | ~held.stored)
        batch.timer(held.end[closed] + self.rules.lateness_ms, held.key_of[closed])
        set_ticks(self.rules, batch, held, there & ~expired, ctx)
