"""The first rows of each key where rows may be taken back: what stood behind one that goes comes up."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.changelog.changelog import WEIGHT, retracted, weights_of
from floodplain.operators.changelog.multiset import Multiset, multiset_state
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.operators.ranking.sort_order import Order, ranked, ranks_of
from floodplain.state.descriptors import State
from floodplain.state.row_structs import as_rows, as_struct, field_of, struct_type

ROWS_NOW = "rows_now"


@dataclass(frozen=True)
class RetractableTop(KeyedBatchProcess, OperatorTraits):
    """Takes changes and gives changes. All rows that hold are kept, since any may become one of the first; an epoch reads those
    of the keys that have changes."""

    what: str
    rows: pa.Schema
    """Without the weight."""
    keys: tuple[str, ...]
    order: Order
    rest: Order
    output: pa.Schema
    output_time: str | None = None
    count: int = 1
    ties: bool = False
    rank: str | None = None
    """What the column with the rank is called, if there is one."""

    gives_changes = True
    needs_all_changes = True

    def __post_init__(self) -> None:
        if not self.order:
            raise BadInput(f"{self.what}: all rows of a key are alike in its keys: order them by another column")

    def states(self) -> dict[str, State]:
        return {ROWS_NOW: multiset_state(self.what, struct_type(self.rows, self.keys, self.what))}

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.key_of_row):
            return None
        rows = as_struct(batch.rows, struct_type(self.rows, self.keys, self.what))
        copies = Multiset.apply(batch, ROWS_NOW, batch.key_of_row, rows, weights_of(batch.column(WEIGHT)))
        before, now = self._first(copies, copies.before), self._first(copies, copies.now)
        code, at = np.unique(np.concatenate([before, now]), return_inverse=True)
        net = np.bincount(at[len(before) :], minlength=len(code)) - np.bincount(at[: len(before)], minlength=len(code))
        return retracted(self._output(batch, copies, code, -net), self._output(batch, copies, code, net))

    def _first(self, copies: Multiset, counts: np.ndarray) -> np.ndarray:
        """Those that come out if there are so many of each: its place among the copies and its rank in one number."""
        at = np.repeat(np.arange(len(counts)), counts)
        if not len(at):
            return at
        owner = copies.owner[at]
        place, first = ranked(
            owner, self.order, self.rest, lambda name, places: field_of(copies.values, name).take(pa.array(at[places]))
        )
        begin, lead = ranks_of(owner[place], first, self.ties)
        rank = lead - begin
        kept = rank < self.count
        return at[place[kept]] * self.count + (rank[kept] if self.rank else 0)

    def _output(self, batch: Batch, copies: Multiset, code: np.ndarray, times: np.ndarray) -> pa.Table:
        """The rows that these numbers mean, each so many times, if that is more than none."""
        code = np.repeat(code, np.maximum(times, 0))
        at, rank = code // self.count, code % self.count
        found = as_rows(batch, copies.owner[at], copies.values.take(pa.array(at)), self.keys, self.rows)
        return found.append_column(self.rank, pa.array(rank + 1, pa.int64())) if self.rank else found
