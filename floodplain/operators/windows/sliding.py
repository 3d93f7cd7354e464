"""Sliding windows over shared panes: a row is aggregated into one pane, and panes are merged when a window fires."""

import numpy as np
import pyarrow as pa

from floodplain.eventtime.times import END_MS
from floodplain.operators.aggregates.aggregation import merged
from floodplain.operators.kernel.batch import KEY_OF, Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.pane_index import find, union
from floodplain.operators.kernel.segments import groups_of, valid
from floodplain.operators.windows.open_windows import OpenWindows
from floodplain.operators.windows.time import TimeWindowProcess


class SlidingProcess(TimeWindowProcess):
    """Stores panes by their start until the last window of each expires. One timer per key, at the end of its next window."""

    shares_panes = True

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:
        due = batch.take_due()
        panes = self._panes(batch)
        fired = self._fired(panes, ctx)
        output = self.results.of(batch, fired, np.ones(len(fired.end), bool))
        self._keep_panes(batch, panes, due.column(KEY_OF).to_numpy(), ctx)
        return output

    def _panes(self, batch: Batch) -> OpenWindows:
        """All panes of the batch's keys, with the rows of the epoch."""
        fresh = self.fresh(batch, self.windows.pane_of(self.times_ms(batch)))
        loaded = self.storage.load(batch, [(fresh.key_of, fresh.number)], everything=True)
        (key_of, start), (new,) = loaded.pairs, loaded.places
        stored, added = valid(loaded.entries), np.zeros(len(start), np.int64)
        added[new], old = fresh.rows, np.flatnonzero(stored)
        before = self.layout.partials(loaded.entries.take(pa.array(old)))
        partials = merged(self.aggregation, key_of, [(old, before), (new, fresh.partials)])
        end = self.windows.last_of(start) + self.windows.size_ms
        return OpenWindows(key_of, start, end, partials, stored, added, added)

    def _fired(self, panes: OpenWindows, ctx: BatchContext) -> OpenWindows:
        """Windows whose end the watermark has just passed, and earlier ones with late rows, merged from their panes."""
        size, slide = self.windows.size_ms, self.windows.slide_ms
        last = self.windows.last_of(panes.start)
        starts = np.stack([last - step * slide for step in range(self.windows.per_pane)])
        ends = starts + size
        again = (panes.added > 0) & (ends > self.rules.late_cutoff_ms(ctx.late_ms))
        fires = (ends > panes.start) & (ends <= ctx.watermark_ms) & ((ends > ctx.late_ms) | again)
        _, pane = np.nonzero(fires)
        (key_of, start), _ = union([(panes.key_of[pane], starts[fires])])
        low, high = (find(panes.pairs, (key_of, at_ms)) if len(start) else start for at_ms in (start, start + size))
        owner = np.repeat(np.arange(len(start)), high - low)
        member = np.arange(len(owner)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[owner]
        partials = merged(self.aggregation, key_of, [(owner, [column.take(pa.array(member)) for column in panes.partials])])
        rows = np.ones(len(start), np.int64)
        return OpenWindows(key_of, start, start + size, partials, rows > 0, rows, rows.copy())

    def _keep_panes(self, batch: Batch, panes: OpenWindows, woken: np.ndarray, ctx: BatchContext) -> None:
        """``woken``: keys whose timer was due. Its time may differ from the one set now: lateness may have grown."""
        expired = panes.end + self.rules.lateness_ms <= ctx.watermark_ms
        self.storage.save(batch, panes, ~expired, panes.added > 0, {})
        before = self._next(batch, panes, panes.stored, ctx.late_ms)
        before[woken] = END_MS
        after = self._next(batch, panes, ~expired, ctx.watermark_ms)
        moved = np.flatnonzero((after < END_MS) & (after != before))
        batch.timer(after[moved], moved)

    def _next(self, batch: Batch, panes: OpenWindows, mask: np.ndarray, watermark_ms: int) -> np.ndarray:
        """Per key, the time of its next timer, given its panes and a watermark: a window ends, or a pane expires."""
        start, end, of = panes.start[mask], panes.end[mask], panes.key_of[mask]
        slide = self.windows.slide_ms
        since = np.maximum(start, watermark_ms)
        ends = since - (since - self.windows.offset_ms - self.windows.size_ms) % slide + slide
        wake = np.where(ends <= end, ends, end + self.rules.lateness_ms)
        timers = np.full(len(batch.keys), END_MS)
        groups = groups_of(of)
        timers[of[groups.starts]] = groups.reduced(np.minimum, wake)
        return timers
