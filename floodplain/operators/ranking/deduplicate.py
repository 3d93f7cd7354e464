"""Deduplication: the first row of each key."""

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS, as_us
from floodplain.operators.changelog.changelog import NO_COLUMNS, changelog_refused
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, fixed, free
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.traits import DUPLICATES, UPDATED, OperatorTraits
from floodplain.operators.ranking.sort_order import Order, check_order, leaders, nulls_last, parse_order, the_rest
from floodplain.state.descriptors import State, Value
from floodplain.state.durations import duration

_NONE, _NEVER = -(1 << 61), -(1 << 62)
"""In microseconds: the time of a row without one, and of a key without an emitted row."""


@dataclass(frozen=True)
class Dedup(KeyedBatchProcess, OperatorTraits):
    """Emits the first row of each key and drops its duplicates.

    Of the rows of one epoch it emits the first by ``by`` (event time by default), then by all other columns. With ``within_ms``,
    a row at least that much later than the last emitted one is not a duplicate, whether or not the state has expired by then;
    a row without a time counts as the earliest, and its state expires that long after the watermark.
    """

    by: str | None = None
    within_ms: int | None = None
    output_time: str | None = None
    output: pa.Schema = NO_COLUMNS
    order: Order = ()
    event_time: str | None = None

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        by = ParameterSpec("by", self.by, f"first row by {self.by or 'event time'}", free if self.within_ms is None else fixed)
        within = "" if self.within_ms is None else f"within {duration(self.within_ms)}"
        return OperatorSpec("deduplicate", (by, ParameterSpec("within", self.within_ms, within)))

    def goes_by_time(self) -> bool:
        return self.within_ms is not None

    def for_changes(self, name: str) -> NoReturn:
        raise changelog_refused(
            name, "it cannot retract the rows that it has emitted", "use first(mode='retract') or last(mode='retract')"
        )

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "Dedup":
        if self.within_ms is not None and event_time is None:
            raise BadInput("dedup: within is a length of event time, and the rows have none: call watermark, or omit within")
        by = self.by or (event_time and f"`{event_time}`")
        order = nulls_last(parse_order(by)) if by else ()
        check_order(order, rows, "dedup")
        order += the_rest(order, rows, keys)
        return replace(self, output=rows, order=order, event_time=event_time, output_time=event_time)

    def states(self) -> dict[str, State]:
        if self.within_ms is None:
            return {"seen": Value("boolean", nullable=False)}
        return {"at_ms": Value("long", nullable=False), "at_us": Value("long", nullable=False)}

    @property
    def drops_late(self) -> bool:  # type: ignore[override]
        """With a bound: the state of the row that a late one duplicates may have expired."""
        return self.within_ms is not None

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Without a bound no state expires, and no row is late."""
        return pa.repeat(True, len(event_time)) if self.within_ms is None else super().on_time(event_time, late_ms)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:
        if not len(batch.key_of_row):
            return None
        within_ms = self.within_ms
        emitted = self._once(batch) if within_ms is None else self._emitted_within(batch, within_ms, ctx.watermark_ms)
        ctx.measure(UPDATED, len(emitted))
        ctx.measure(DUPLICATES, len(batch.key_of_row) - len(emitted))
        return batch.take(emitted)

    def _once(self, batch: Batch) -> np.ndarray:
        seen = np.asarray(batch.exists("seen"))
        emitted = self._leaders(batch, np.flatnonzero(~seen[batch.key_of_row]))
        batch.set("seen", np.ones(len(emitted), bool), batch.key_of_row[emitted])
        return emitted

    def _emitted_within(self, batch: Batch, within_ms: int, watermark_ms: int) -> np.ndarray:
        """Each round emits one row per key, and keeps the candidates that are far enough from it."""
        assert self.event_time is not None
        owner = batch.key_of_row
        times = as_us(pa.chunked_array([batch.column(self.event_time)])).fill_null(_NONE).to_numpy()
        at, within = self._last_emitted(batch), within_ms * 1000
        rounds = [np.empty(0, np.int64)]
        alive = np.flatnonzero((times >= at[owner] + within) | (at[owner] == _NEVER))
        while len(alive):
            best = self._leaders(batch, alive)
            rounds.append(best)
            at[owner[best]] = times[best]
            alive = alive[times[alive] >= at[owner[alive]] + within]
        emitted = np.sort(np.concatenate(rounds))
        changed = np.unique(owner[emitted])
        timeless, at = at[changed] == _NONE, at[changed]
        at_ms = np.where(timeless, NONE_MS, at // 1000)
        batch.set("at_ms", at_ms, changed)
        batch.set("at_us", np.where(timeless, 0, at % 1000), changed)
        # Before there is a watermark, nothing says when a row without a time was there.
        known = ~timeless | (watermark_ms > NONE_MS)
        until_ms = np.where(timeless, watermark_ms, at_ms) + within_ms
        batch.timer(until_ms[known], changed[known])
        return emitted

    def _last_emitted(self, batch: Batch) -> np.ndarray:
        """Per key, the time of the last emitted row, in microseconds. An older state has whole milliseconds."""
        at_ms, rest = (batch.state(name).fill_null(0).to_numpy() for name in ("at_ms", "at_us"))
        at = np.where(at_ms == NONE_MS, _NONE, np.where(at_ms == NONE_MS, 0, at_ms) * 1000 + rest)
        return np.where(batch.exists("at_ms"), at, _NEVER)

    def _leaders(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        return rows[leaders(batch.key_of_row[rows], self.order, lambda name, at: batch.take(rows[at], [name]).column(0))]

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> None:  # noqa: ARG002
        """Expires the state of keys that no future row can duplicate."""
        numbers, times = due["key_of"].to_numpy(), due["time"].to_numpy()
        at_ms = batch.state("at_ms").fill_null(NONE_MS).to_numpy()
        assert self.within_ms is not None
        over = numbers[at_ms[numbers] + self.within_ms <= times]
        batch.clear("at_ms", over)
        batch.clear("at_us", over)
