"""Aggregates of keys that have an end, as Spark has them: the state of a key expires once the watermark reaches its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS, ceil_ms
from floodplain.operators.aggregates.aggregation import Aggregation
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.combiner import AggregateCombiner
from floodplain.operators.aggregates.running import SEEN, RunningProcess
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, free
from floodplain.operators.kernel.process import KeyedBatchProcess, Process
from floodplain.operators.kernel.traits import REMOVED, OperatorTraits, Partial, after_watermark_as_spark
from floodplain.store.rows.layout import at_rows

Emits: TypeAlias = Literal["append", "update"]


@dataclass(frozen=True)
class ExpiringAggregate(KeyedBatchProcess, OperatorTraits):
    """Aggregates by keys one of which, ``until``, is the end of the key, before they are bound to a schema.

    ``append`` emits the result of a key once, at its end; ``update`` after each epoch in which it has rows.
    """

    aggregates: Mapping[str, Aggregate]
    until: str
    mode: Emits = "append"
    partial: Partial = "auto"

    combines_when_bound = True

    def described(self, written: Written) -> OperatorSpec:
        aggregates = tuple(aggregate.described(name, written) for name, aggregate in self.aggregates.items())
        until = ParameterSpec("until", self.until, f"until {self.until}")
        return OperatorSpec(
            "expiring aggregate", (until, ParameterSpec("mode", self.mode, f"mode {self.mode}", free)), aggregates
        )

    def goes_by_time(self) -> bool:
        return True

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:
        if self.until not in keys or event_time != self.until:
            raise BadInput(f"until={self.until!r} must be a key, and the event time of the rows")
        aggregation = Aggregation(self.aggregates).bind(rows, event_time)
        process = ExpiringProcess(aggregation, rows, keys, self.until, self.mode)
        if self.partial:
            process.combiner = AggregateCombiner(aggregation, keys, rows.field(self.until), None, self.partial)
        return process


class ExpiringProcess(RunningProcess):
    """Expiring aggregates bound to a schema."""

    drops_late = True
    follows_watermark = True

    def __init__(self, aggregation: Aggregation, rows: pa.Schema, keys: tuple[str, ...], until: str, emits: Emits) -> None:
        super().__init__(aggregation, rows, keys, "update")
        self.until, self._emits = until, emits

    def goes_by_time(self) -> bool:
        return True

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        return after_watermark_as_spark(event_time, late_ms)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:
        updated = super().process(batch, ctx)
        with_rows = np.arange(len(batch.starts) - 1)
        ends_ms = ceil_ms(batch.keys.column(self.keys.index(self.until)).take(pa.array(with_rows)).combine_chunks())
        timed = np.flatnonzero(ends_ms > NONE_MS)
        batch.timer(ends_ms[timed], with_rows[timed])
        return updated if self._emits == "update" else None

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> pa.Table | None:
        """The keys that are over: their last results, if nothing was emitted before, and no state."""
        over = np.unique(due["key_of"].to_numpy())
        ctx.measure(REMOVED, len(over))
        names = [name for name, _ in self._values]
        made = None
        if self._emits == "append":
            made = self._rows(batch, over, self._results([at_rows(batch.state(name), over) for name in names]))
        for name in (*names, SEEN):
            batch.clear(name, over)
        return made
