"""Rows left out before they are exchanged: those of which it shows where they are read that an operator would not keep them."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import NONE_MS, as_ms
from floodplain.operators.kernel.key_grouping import Grouped, group
from floodplain.operators.kernel.reserved_columns import ROWS
from floodplain.operators.kernel.traits import Combiner, Partial
from floodplain.operators.ranking.sort_order import Order, leaders, ranked, ranks_of
from floodplain.store.rows.row_classes import starts_of

PAYS_FROM = 8
"""How many rows there must be for each that stays: all of them go to Python once more, and those that stay come back."""


@dataclass(frozen=True)
class RankingCombiner(Combiner):
    """Leaves the first ``count`` rows of each key, whole and in the order in which they stand; one of each key stands for
    those left out, too. With ``ties``, all that have a rank up to ``count`` stay.

    A row that has so many of its key before it here has no fewer before it among all rows: it is not one of the first.
    """

    keys: tuple[str, ...]
    order: Order
    time: str | None
    """The column with the event time. The newest row stays, so that it is known how far time has come."""
    when: Partial = "auto"
    rows_per_group: float = 4
    count: int = 1
    rest: Order = ()
    """What decides between rows alike in the order."""
    ties: bool = False

    def schema(self, rows: pa.Schema) -> pa.Schema:
        return rows.append(pa.field(ROWS, pa.int64()))

    def __call__(self, rows: pa.Table) -> pa.Table:
        if not len(rows):
            return self.schema(rows.schema).empty_table()
        grouped = group(rows, {key: key for key in self.keys})
        sizes = np.diff(grouped.starts)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        stays = self._stays(grouped, owner, sizes)
        if self.time is not None:
            newest = pc.fill_null(as_ms(rows.column(self.time)), NONE_MS).to_numpy().argmax()
            stays[grouped.order == newest] = True
        stands_for, places = stays.astype(np.int64), np.flatnonzero(stays)
        kept = owner[places]
        stands_for[places[starts_of(kept)]] += sizes - np.bincount(kept)
        found = np.empty(len(rows), np.int64)
        found[grouped.order] = stands_for
        return rows.filter(pa.array(found > 0)).append_column(ROWS, pa.array(found[found > 0]))

    def _stays(self, grouped: Grouped, owner: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """For each row, by key, whether it is one of the first."""
        if self.count == 1 and not self.ties:
            stays = np.zeros(len(owner), bool)
            stays[leaders(owner, self.order + self.rest, grouped.column)] = True
            return stays
        stays = np.ones(len(owner), bool)
        many = np.flatnonzero((sizes > self.count)[owner])
        if len(many):
            place, first = ranked(owner[many], self.order, self.rest, lambda name, at: grouped.column(name, many[at]))
            begin, lead = ranks_of(owner[many][place], first, self.ties)
            stays[many[place]] = lead - begin < self.count
        return stays
