"""Stream-stream joins: rows of a key are joined with those of the other side within a time bound.

Both sides come as one table (``join_columns``). A row is matched with the other side's rows of this epoch and of its buffer, and
is then buffered itself until no partner can come: then it expires, which needs no read. In outer joins a key with buffered rows
has a timer at the first of their ends.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.operators.changelog.changelog import WEIGHT
from floodplain.operators.joins.bounds import Bound
from floodplain.operators.joins.buffer import ArrivedRows, SideRows, SideState, distinct, wake
from floodplain.operators.joins.columns import JoinColumns, join_columns, time_name
from floodplain.operators.joins.match import partners
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, free
from floodplain.operators.kernel.late_rows import LATE
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.state.descriptors import State

How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
PADDED: dict[str, tuple[str, ...]] = {"left": ("left",), "right": ("right",), "full": ("left", "right"), "anti": ("left",)}
"""Outer joins: the sides whose unmatched rows are emitted, padded with nulls."""


@dataclass(frozen=True)
class Join(KeyedBatchProcess, OperatorTraits):
    """A stream-stream join, before it is bound to a schema."""

    how: How
    bound: Bound
    times: tuple[str | None, str | None]
    """The event-time column of each side in the output."""
    suffixes: tuple[str, str] | None = None
    output_time: str | None = field(init=False, default=None)
    """Set where a column is never older than the watermark when its row is emitted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_time", self._output_time())

    def _output_time(self) -> str | None:
        if self.bound.fields:
            return self.bound.fields[-1].name
        left, right = self.times
        if self.how != "inner" or left is None or right is None or self.bound.low < 0 < self.bound.high or not self.bound.ends:
            return None
        return time_name((left, right), self.suffixes, 0 if self.bound.low < 0 else 1)

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        how = ParameterSpec("how", self.how, f"{self.how} join")
        times = ParameterSpec("times", self.times)
        return OperatorSpec("join", (how, self.bound.described(), times, ParameterSpec("suffixes", self.suffixes, rule=free)))

    @property
    def gives_changes(self) -> bool:  # type: ignore[override]
        return self.how in PADDED and not self.bound.ends

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "StreamJoinProcess":  # noqa: ARG002
        return StreamJoinProcess(self, join_columns(rows, keys, self.times, self.suffixes))


class StreamJoinProcess(KeyedBatchProcess, OperatorTraits):
    """A stream-stream join bound to the schemas of its sides."""

    def __init__(self, join: Join, columns: JoinColumns) -> None:
        self._columns, self._bound, self.output_time = columns, join.bound, join.output_time
        self._padded = PADDED.get(join.how, ())
        self._left_only = join.how in ("semi", "anti")
        """Whether the output has only the left side."""
        self._emits_pairs = join.how != "anti"
        self._weighted = join.gives_changes
        weight = [pa.field(WEIGHT, pa.int64())] if self._weighted else []
        self.output = columns.output(join.bound.fields, weight, with_right=not self._left_only)
        self.side_outputs = {LATE: columns.late()}
        self.drops_late = join.bound.ends
        self._left = SideState(columns.left, join.bound, "left" in self._padded and not self._left_only)
        self._right = SideState(columns.right, join.bound, "right" in self._padded)

    def states(self) -> dict[str, State]:
        return {side.name: side.declared() for side in (self._left, self._right)}

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        return self._bound.on_time(event_time, late_ms)

    def late_rows(self, rows: pa.Table) -> pa.Table:
        return self._columns.late_rows(rows)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:
        arrived = ArrivedRows.of(batch, timed=self._bound.dated)
        left, right = self._sides(batch, arrived, ctx.late_ms)
        hits = np.zeros(len(left), bool), np.zeros(len(right), bool)
        output = [self._pairs(batch, left, right, *hits)]
        for state, rows, hit in ((self._left, left, hits[0]), (self._right, right, hits[1])):
            output += self._settled(batch, state, rows, hit, ctx.watermark_ms)
            if state.name in self._padded:
                output += self._unmatchable(batch, state, arrived, ctx.late_ms)
        return pa.concat_tables(output)

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> None:
        """``process`` has handled them: it knows which rows are matched."""

    def _sides(self, batch: Batch, arrived: ArrivedRows, late_ms: int) -> tuple[SideRows, SideRows]:
        """The new rows of each side, and its buffered rows for keys of the other side's new rows or with a due timer."""
        due = batch.keys_due() if self._padded and self._bound.ends else np.empty(0, np.int64)
        sides = []
        for state, mine, others in ((self._left, arrived.left, arrived.right), (self._right, arrived.right, arrived.left)):
            wanted = batch.key_of_row[others], due if state.name in self._padded else due[:0]
            sides.append(state.rows(batch, mine, arrived.at[mine], distinct(len(batch.keys), *wanted), late_ms))
        return sides[0], sides[1]

    def _pairs(self, batch: Batch, left: SideRows, right: SideRows, left_hit: np.ndarray, right_hit: np.ndarray) -> pa.Table:
        """The output of matched pairs, each once: at least one of the two rows is new. Marks the rows that have a partner."""
        low, high, new = self._bound.low, self._bound.high, left.new
        new_matches = partners(left.of[:new], left.on[:new], right.of, right.on, low, high)
        buffered_matches = partners(left.of[new:], left.on[new:], right.of[: right.new], right.on[: right.new], low, high)
        left_hit[:new], left_hit[new:] = new_matches.matched, buffered_matches.matched
        if self._left_only:
            rows = np.flatnonzero(left_hit) if self._emits_pairs else np.empty(0, np.int64)
            return self._output(batch, left, rows, left.take(rows), [])
        pairs, others = new_matches.pairs(), buffered_matches.pairs()
        one, other = np.concatenate([pairs[0], others[0] + new]), np.concatenate([pairs[1], others[1]])
        right_hit[other] = True
        return self._output(batch, left, one, left.take(one), right.take(other))

    def _settled(self, batch: Batch, state: SideState, rows: SideRows, hit: np.ndarray, watermark_ms: int) -> list[pa.Table]:
        """Buffers or expires the rows of a side. Returns its unmatched rows that are emitted, or retracted."""
        new = np.arange(len(rows)) < rows.new
        done = rows.ends <= watermark_ms if self._bound.ends else np.zeros(len(rows), bool)
        newly = hit & ~rows.matched
        if self._left_only and state is self._left:
            keep = new & ~hit & ~done
            state.forget(batch, rows, np.flatnonzero(~new & hit & ~done))
        else:
            keep = new & ~done
            if state.tracked:
                state.mark(batch, rows, np.flatnonzero(~new & newly & ~done))
        state.keep(batch, rows, np.flatnonzero(keep), hit)
        if state.name not in self._padded:
            return []
        if self._weighted:
            return [
                self._unmatched(batch, state, rows, np.flatnonzero(new & ~hit), 1),
                self._unmatched(batch, state, rows, np.flatnonzero(~new & newly), -1),
            ]
        woken = np.zeros(len(batch.keys), bool)
        woken[batch.keys_due()] = True
        waiting = ~done & ~hit & ~rows.matched & (new | woken[rows.of])
        wake(batch, rows.of[waiting], rows.ends[waiting])
        return [self._unmatched(batch, state, rows, np.flatnonzero(done & ~hit & ~rows.matched), 1)]

    def _unmatchable(self, batch: Batch, state: SideState, arrived: ArrivedRows, late_ms: int) -> list[pa.Table]:
        """Emits new rows that cannot match: without a time, or with null in their key."""
        which = arrived.unmatchable[arrived.of_right[arrived.unmatchable] == (state is self._right)]
        if not len(which):
            return []
        timeless = arrived.timeless[which]
        sides = [
            state.timeless(batch, which[timeless]),
            state.rows(batch, which[~timeless], arrived.at[which[~timeless]], np.empty(0, np.int64), late_ms),
        ]
        return [self._unmatched(batch, state, rows, np.arange(len(rows)), 1) for rows in sides]

    def _unmatched(self, batch: Batch, state: SideState, rows: SideRows, which: np.ndarray, weight: int) -> pa.Table:
        columns, count = rows.take(which), len(which)
        left, right = (
            (columns, self._columns.right.nulls(count)) if state is self._left else (self._columns.left.nulls(count), columns)
        )
        return self._output(batch, rows, which, left, [] if self._left_only else right, weight)

    def _output(
        self, batch: Batch, rows: SideRows, which: np.ndarray, left: list[pa.Array], right: list[pa.Array], weight: int = 1
    ) -> pa.Table:
        keys = [column.take(pa.array(rows.of[which])) for column in batch.keys.columns]
        more = self._bound.columns(rows.ends[which] if self._bound.ends else rows.ends)
        weights = [pa.repeat(pa.scalar(weight, pa.int64()), len(which))] if self._weighted else []
        return pa.Table.from_arrays([*keys, *more, *left, *right, *weights], schema=self.output)
