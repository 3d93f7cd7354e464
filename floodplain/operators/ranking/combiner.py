"""Ranking combiner: drops, before the shuffle, rows that cannot be in the per-key top N."""

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
"""Rows per row that stays from which combining pays: all rows make an extra trip to Python, and those that stay return."""


@dataclass(frozen=True)
class RankingCombiner(Combiner):
    """Keeps the top ``count`` rows of each key, in their input order; ``ROWS`` of the first one of a key also counts the dropped
    rows. With ``ties``, all rows of a rank up to ``count`` stay.

    A row that ranks below ``count`` within its partition ranks no higher among all rows, so it is not in the top N.
    """

    keys: tuple[str, ...]
    order: Order
    time: str | None
    """The event-time column. The newest row stays, because the watermark is computed from it."""
    when: Partial = "auto"
    rows_per_group: float = 4
    count: int = 1
    rest: Order = ()
    """Tie breakers: columns that order rows equal in ``order``."""
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
        counted, places = stays.astype(np.int64), np.flatnonzero(stays)
        kept = owner[places]
        counted[places[starts_of(kept)]] += sizes - np.bincount(kept)
        multiplicity = np.empty(len(rows), np.int64)
        multiplicity[grouped.order] = counted
        return rows.filter(pa.array(multiplicity > 0)).append_column(ROWS, pa.array(multiplicity[multiplicity > 0]))

    def _stays(self, grouped: Grouped, owner: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """For each row, by key, whether it is in the top N of its partition."""
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
