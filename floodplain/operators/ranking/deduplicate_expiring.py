"""Deduplication as Spark has it: a row is a duplicate as long as the state has its key, which expires by the watermark."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.eventtime.times import NONE_MS, ceil_ms
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, fixed
from floodplain.operators.kernel.traits import DUPLICATES, REMOVED, UPDATED, after_watermark_as_spark
from floodplain.operators.ranking.deduplicate import Dedup
from floodplain.state.descriptors import State, Value


@dataclass(frozen=True)
class ExpiringDedup(Dedup):
    """Emits the first row of each key, and again the first after the state of the key has expired.

    ``until``: the column with the time at which it does; without one it never does. Rows at or before the watermark are late.
    """

    until: str | None = None

    follows_watermark = True

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        text = "" if self.until is None else f"until {self.until}"
        return OperatorSpec("expiring deduplicate", (ParameterSpec("until", self.until, text, fixed),))

    def goes_by_time(self) -> bool:
        return True

    def states(self) -> dict[str, State]:
        return {"seen": Value("boolean", nullable=False)}

    @property
    def drops_late(self) -> bool:  # type: ignore[override]
        return True

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        return after_watermark_as_spark(event_time, late_ms)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:
        if not len(batch.key_of_row):
            return None
        emitted = self._once(batch)
        ctx.measure(UPDATED, len(emitted))
        ctx.measure(DUPLICATES, len(batch.key_of_row) - len(emitted))
        if self.until is not None:
            until_ms = ceil_ms(batch.column(self.until, emitted))
            timed = np.flatnonzero(until_ms > NONE_MS)
            batch.timer(until_ms[timed], batch.key_of_row[emitted[timed]])
        return batch.take(emitted)

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> None:
        over = np.unique(due["key_of"].to_numpy())
        ctx.measure(REMOVED, len(over))
        batch.clear("seen", over)
