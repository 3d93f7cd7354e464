"""The temporal join: each row of the left side with the version of the right side that was valid at its time.

A left row waits until the watermark reaches its time, so that the answer does not depend on what came first. Of the versions that
the watermark has passed only the newest is kept: rows yet to come are later than it.
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
from floodplain.operators.kernel.definition import Described, Given, Written, free
from floodplain.operators.kernel.late_rows import LATE
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.state.descriptors import State
from floodplain.store.rows.row_classes import starts_of

AsOfHow: TypeAlias = Literal["inner", "left"]


@dataclass(frozen=True)
class AsOfJoin(KeyedBatchProcess, OperatorTraits):
    """What was asked for."""

    how: AsOfHow
    times: tuple[str, str]
    suffixes: tuple[str, str] | None = None
    output_time: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_time", time_name(self.times, self.suffixes, 0))

    def described(self, written: Written) -> Described:  # noqa: ARG002
        how = Given("how", self.how, f"{self.how} join", free)
        bound = Given("bound", {"kind": "as of"}, "with the newest right row that is not later")
        return Described("as-of join", (how, bound, Given("times", self.times), Given("suffixes", self.suffixes, rule=free)))

    def fitted(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "AsOfJoinProcess":  # noqa: ARG002
        return AsOfJoinProcess(self.how, join_columns(rows, keys, self.times, self.suffixes))


class AsOfJoinProcess(KeyedBatchProcess, OperatorTraits):
    """A temporal join of sides whose columns are known."""

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
        came = ArrivedRows.of(batch, timed=True)
        left = self._left.rows(batch, came.left, came.at[came.left], batch.keys_due(), ctx.late_ms)
        ready = left.ends <= ctx.watermark_ms
        self._left.keep(batch, left, np.flatnonzero(~ready[: left.new]), ready)
        wake(batch, left.of[~ready], left.ends[~ready])
        made = self._answered(batch, left, np.flatnonzero(ready), came, ctx.watermark_ms)
        hopeless = came.hopeless[~came.of_right[came.hopeless]]
        if self._padded and len(hopeless):
            rows = self._left.timeless(batch, hopeless)
            made = pa.concat_tables([made, self._made(batch, rows, np.arange(len(rows)), self._columns.right.nulls(len(rows)))])
        return made

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> None:
        """What they are due for was done with the rows."""

    def _answered(self, batch: Batch, left: SideRows, ready: np.ndarray, came: ArrivedRows, watermark_ms: int) -> pa.Table:
        numbers = distinct(len(batch.keys), left.of[ready], batch.key_of_row[came.right], batch.keys_due())
        right = self._right.rows(batch, came.right, came.at[came.right], numbers, watermark_ms)
        times = micros(right.columns[0])
        order = in_order(right.of, times, right.columns)
        found = newest_before(left.of[ready], left.on[ready], right.of[order], times[order])
        self._prune(batch, right, order, times // 1000, watermark_ms)
        if not self._padded:
            ready, found = ready[found >= 0], found[found >= 0]
        at = pa.array(np.where(found >= 0, order[np.maximum(found, 0)], 0) if len(order) else found, mask=found < 0)
        return self._made(batch, left, ready, [column.take(at) for column in right.columns])

    def _prune(self, batch: Batch, right: SideRows, order: np.ndarray, times_ms: np.ndarray, watermark_ms: int) -> None:
        """Keep of the versions that the watermark has passed the newest of each key, and all others.

        A timer at the newest of a key that keeps several: the others will have had their time.
        """
        of, at, new = right.of[order], times_ms[order], order < right.new
        followed = np.append(of[1:] == of[:-1], False)[: len(of)]
        superseded = np.append(followed[:-1] & (at[1:] <= watermark_ms), False)[: len(of)]
        gone, kept = order[superseded & ~new], order[~superseded & new]
        self._right.forget(batch, right, gone)
        self._right.keep(batch, right, np.sort(kept), np.zeros(len(right), bool))
        newest = ~followed & (at > watermark_ms)
        several = newest & np.append(False, followed[:-1])[: len(of)]
        batch.timer(at[several], of[several])

    def _made(self, batch: Batch, left: SideRows, which: np.ndarray, right: list[pa.Array]) -> pa.Table:
        keys = [column.take(pa.array(left.of[which])) for column in batch.keys.columns]
        return pa.Table.from_arrays([*keys, *left.take(which), *right], schema=self.output)


def in_order(of: np.ndarray, times: np.ndarray, columns: list[pa.Array]) -> np.ndarray:
    """Rows by key and time; of one time by what is in them, so that the last does not depend on what came first."""
    order = np.lexsort((times, of))
    later = ~starts_of(of[order], times[order])
    if not later.any():
        return order
    tied = order[later | np.append(later[1:], False)]
    plain = [column for column in columns if not pa.types.is_nested(column.type)]
    named = {"of": pa.array(of[tied]), **{str(number): column.take(pa.array(tied)) for number, column in enumerate(plain)}}
    ranked = pc.sort_indices(pa.table(named), sort_keys=[(name, "ascending") for name in named])
    # Those of one key and time stand side by side in both orders, and the first plain column is the time.
    order[later | np.append(later[1:], False)] = tied[ranked.to_numpy()]
    return order
