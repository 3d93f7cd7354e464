"""What the processes of all kinds of windows have in common."""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from floodplain.eventtime.times import as_us
from floodplain.operators.aggregates.aggregation import Aggregation, Partials
from floodplain.operators.aggregates.combiner import pane_ms, partials_of
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.pane_index import order_of
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.reserved_columns import ALL
from floodplain.operators.kernel.segments import filled, groups_of
from floodplain.operators.kernel.traits import Combiner, OperatorTraits
from floodplain.operators.windows.open_windows import UNFIRED, WindowLayout
from floodplain.operators.windows.storage import ListStorage, MapStorage
from floodplain.operators.windows.triggers import END, Rules, WindowResults
from floodplain.state.descriptors import State


@dataclass(frozen=True)
class EpochPartials:
    """What the rows of an epoch add: per key and number (of a pane, by its start), in order."""

    key_of: np.ndarray
    number: np.ndarray
    partials: Partials
    rows: np.ndarray
    """How many rows each has."""

    def at(self, chosen: np.ndarray) -> "EpochPartials":
        taken = pa.array(chosen)
        return EpochPartials(
            self.key_of[chosen], self.number[chosen], [column.take(taken) for column in self.partials], self.rows[chosen]
        )


class WindowProcess(KeyedBatchProcess, OperatorTraits):
    """Fitted to its input: its columns are known."""

    output_time = END
    drops_late = True
    inclusive = False
    """Where the times of rows are ends of windows: such a row belongs to the window that ends there, not to the next."""
    numbers: tuple[str, ...] = ()
    """What is kept of a window besides its partials, and how many rows it has without a result."""

    def __init__(
        self, windows: Any, aggregation: Aggregation, rules: Rules, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None
    ) -> None:
        self.windows, self.aggregation, self.rules, self.event_time = windows, aggregation, rules, event_time
        time = pa.timestamp("us", "UTC") if event_time is None else rows.field(event_time).type
        shown = {} if keys == (ALL,) else {key: rows.field(key).type for key in keys}
        self.results = WindowResults(
            aggregation, shown, time if pa.types.is_timestamp(time) else pa.timestamp("us", "UTC"), rules.firing
        )
        self.output = self.results.schema
        self.layout = WindowLayout(
            aggregation, numbers=(*self.numbers, *([UNFIRED] if rules.counted else [])), shown=self.results.shown
        )

        self.combiner: Combiner | None = None
        self.kept: ListStorage | MapStorage = ListStorage(self.layout)

    def states(self) -> dict[str, State]:
        return self.kept.states()

    def continued(self, apart: Collection[str], before: Sequence[tuple[int, int]]) -> Self:  # noqa: ARG002
        found = copy(self)
        found.rules = replace(self.rules, before=tuple(before))
        return found

    def kept_by(self) -> dict[str, list[str]]:
        return self.aggregation.kept

    def fresh(self, batch: Batch, number: np.ndarray) -> EpochPartials:
        """The partials of the epoch's rows by key and number."""
        key_of = batch.key_of_row
        order = order_of((key_of, number))
        if order is not None:
            key_of, number = key_of[order], number[order]
        groups = groups_of(key_of, number)
        return EpochPartials(key_of[groups.starts], number[groups.starts], *partials_of(self.aggregation, batch, groups, order))

    def times_ms(self, batch: Batch) -> np.ndarray:
        """The event time of each row; 0 where it has none, which only windows that do not go by time are given."""
        if self.event_time is None:
            return np.zeros(int(batch.starts[-1]), np.int64)
        return pane_ms(pa.chunked_array([batch.column(self.event_time)]), inclusive=self.inclusive)

    def times_us(self, batch: Batch) -> np.ndarray:
        """As ``times_ms``, in microseconds: for windows that go by how far rows are apart."""
        assert self.event_time is not None
        return filled(as_us(pa.chunked_array([batch.column(self.event_time)])), 0)
