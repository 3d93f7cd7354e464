"""As-of join (temporal join): each left row with the version of the right side that was valid at its time.

A left row is buffered until the watermark reaches its time, so the result does not depend on the arrival order. Of the versions
that the watermark has passed only the newest is stored: all rows still to come are later.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.operators.joins.bounds import Interval, Unbounded
from floodplain.operators.joins.buffer import ArrivedRows, SideRows, SideState, distinct, micros, wake
from floodplain.operators.joins.columns import JoinColumns, join_columns, time_name
from floodplain.operators.joins.match import newest_before
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, free
from floodplain.operators.kernel.late_rows import LATE
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.state.descriptors import State
from floodplain.store.rows.row_classes import starts_of

AsOfHow: TypeAlias = Literal["inner", "left"]


@dataclass(frozen=True)
class AsOfJoin(KeyedBatchProcess, OperatorTraits):
    """An as-of join, before it is bound to a schema."""

    how: AsOfHow
    times: tuple[str, str]
    suffixes: tuple[str, str] | None = None
    output_time: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_time", time_name(self.times, self.suffixes, 0))

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        how = ParameterSpec("how", self.how, f"{self.how} join", free)
        bound = ParameterSpec("bound", {"kind": "as of"}, "with the newest right row that is not later")
        return OperatorSpec(
            "as-of join", (how, bound, ParameterSpec("times", self.times), ParameterSpec("suffixes", self.suffixes, rule=free))
        )

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "AsOfJoinProcess":  # noqa: ARG002
        return AsOfJoinProcess(self.how, join_columns(rows, keys, self.times, self.suffixes))


class AsOfJoinProcess(KeyedBatchProcess, OperatorTraits):
    """An as-of join bound to the schemas of its sides."""

    drops_late = True

    def __init__(self, how: AsOfHow, columns: JoinColumns) -> None:
        self._padded, self._columns = how == "left", columns
        self.output = columns.output()
        self.output_time = columns.left.names[0]
        self.side_outputs = {LATE: columns.late()}
        self._left = SideState(columns.left, Interval(0, 0), False)
        self._right = SideState(columns.right, Unbounded(), False)

    def states(self) -> dict[str, State]:
        return {side.name: side.declared() for side in (self._left, self._right)}

    def late_rows(self, rows: pa.Table) -> pa.Table:
        return self._columns.late_rows(rows)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:
        arrived = ArrivedRows.of(batch, timed=True)
        left = self._left.rows(batch, arrived.left, arrived.at[arrived.left], batch.keys_due(), ctx.late_ms)
        ready = left.ends <= ctx.watermark_ms
        self._left.keep(batch, left, np.flatnonzero(~ready[: left.new]), ready)
        wake(batch, left.of[~ready], left.ends[~ready])
        output = self._matched(batch, left, np.flatnonzero(ready), arrived, ctx.watermark_ms)
        unmatchable = arrived.unmatchable[~arrived.of_right[arrived.unmatchable]]
        if self._padded and len(unmatchable):
            rows = self._left.timeless(batch, unmatchable)
            output = pa.concat_tables(
                [output, self._output(batch, rows, np.arange(len(rows)), self._columns.right.nulls(len(rows)))]
            )
        return output

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> None:
        """``process`` has handled them."""

    def _matched(self, batch: Batch, left: SideRows, ready: np.ndarray, arrived: ArrivedRows, watermark_ms: int) -> pa.Table:
        numbers = distinct(len(batch.keys), left.of[ready], batch.key_of_row[arrived.right], batch.keys_due())
        right = self._right.rows(batch, arrived.right, arrived.at[arrived.right], numbers, watermark_ms)
        times = micros(right.columns[0])
        order = in_order(right.of, times, right.columns)
        version = newest_before(left.of[ready], left.on[ready], right.of[order], times[order])
        self._prune(batch, right, order, times // 1000, watermark_ms)
        if not self._padded:
            ready, version = ready[version >= 0], version[version >= 0]
        at = pa.array(np.where(version >= 0, order[np.maximum(version, 0)], 0) if len(order) else version, mask=version < 0)
        return self._output(batch, left, ready, [column.take(at) for column in right.columns])

    def _prune(self, batch: Batch, right: SideRows, order: np.ndarray, times_ms: np.ndarray, watermark_ms: int) -> None:
        """Drops versions that are superseded at the watermark: those with a newer one that it has passed.

        A key with several versions gets a timer at its newest, when the others are superseded.
        """
        of, at, new = right.of[order], times_ms[order], order < right.new
        followed = np.append(of[1:] == of[:-1], False)[: len(of)]
        superseded = np.append(followed[:-1] & (at[1:] <= watermark_ms), False)[: len(of)]
        dropped, kept = order[superseded & ~new], order[~superseded & new]
        self._right.forget(batch, right, dropped)
        self._right.keep(batch, right, np.sort(kept), np.zeros(len(right), bool))
        newest = ~followed & (at > watermark_ms)
        several = newest & np.append(False, followed[:-1])[: len(of)]
        batch.timer(at[several], of[several])

    def _output(self, batch: Batch, left: SideRows, which: np.ndarray, right: list[pa.Array]) -> pa.Table:
        keys = [column.take(pa.array(left.of[which])) for column in batch.keys.columns]
        return pa.Table.from_arrays([*keys, *left.take(which), *right], schema=self.output)


def in_order(of: np.ndarray, times: np.ndarray, columns: list[pa.Array]) -> np.ndarray:
    """Rows sorted by key and time, then by their other columns, so that the last one does not depend on the arrival order."""
    order = np.lexsort((times, of))
    later = ~starts_of(of[order], times[order])
    if not later.any():
        return order
    tied = order[later | np.append(later[1:], False)]
    plain = [column for column in columns if not pa.types.is_nested(column.type)]
    named = {"of": pa.array(of[tied]), **{str(number): column.take(pa.array(tied)) for number, column in enumerate(plain)}}
    ranked = pc.sort_indices(pa.table(named), sort_keys=[(name, "ascending") for name in named])
    # Rows of one key and time are adjacent in both orders, and the first plain column is the time.
    order[later | np.append(later[1:], False)] = tied[ranked.to_numpy()]
    return order
