"""Top-N per key over a changelog: when a row is retracted, the next in rank moves up."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.changelog.changelog import WEIGHT, changelog_of, weights_of
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
    """Consumes and emits a changelog. The state keeps all current rows, because any may move into the top N; an epoch reads those
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
    """The name of the rank column, if there is one."""

    gives_changes = True
    needs_all_changes = True

    def __post_init__(self) -> None:
        if not self.order:
            raise BadInput(f"{self.what}: all rows of a key are equal in its keys: order them by another column")

    def states(self) -> dict[str, State]:
        return {ROWS_NOW: multiset_state(self.what, struct_type(self.rows, self.keys, self.what))}

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.key_of_row):
            return None
        rows = as_struct(batch.rows, struct_type(self.rows, self.keys, self.what))
        multiset = Multiset.apply(batch, ROWS_NOW, batch.key_of_row, rows, weights_of(batch.column(WEIGHT)))
        before, now = self._first(multiset, multiset.before), self._first(multiset, multiset.now)
        code, at = np.unique(np.concatenate([before, now]), return_inverse=True)
        net = np.bincount(at[len(before) :], minlength=len(code)) - np.bincount(at[: len(before)], minlength=len(code))
        return changelog_of(self._output(batch, multiset, code, -net), self._output(batch, multiset, code, net))

    def _first(self, multiset: Multiset, counts: np.ndarray) -> np.ndarray:
        """The top N at these multiplicities: position in the multiset and rank, encoded in one number."""
        at = np.repeat(np.arange(len(counts)), counts)
        if not len(at):
            return at
        owner = multiset.owner[at]
        place, first = ranked(
            owner, self.order, self.rest, lambda name, places: field_of(multiset.values, name).take(pa.array(at[places]))
        )
        begin, lead = ranks_of(owner[place], first, self.ties)
        rank = lead - begin
        kept = rank < self.count
        return at[place[kept]] * self.count + (rank[kept] if self.rank else 0)

    def _output(self, batch: Batch, multiset: Multiset, code: np.ndarray, times: np.ndarray) -> pa.Table:
        """The rows that these codes stand for, each repeated ``times`` times if that is positive."""
        code = np.repeat(code, np.maximum(times, 0))
        at, rank = code // self.count, code % self.count
        rows = as_rows(batch, multiset.owner[at], multiset.values.take(pa.array(at)), self.keys, self.rows)
        return rows.append_column(self.rank, pa.array(rank + 1, pa.int64())) if self.rank else rows
