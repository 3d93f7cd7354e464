"""The base of all window processes."""

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
    """Partials of an epoch's rows, sorted by key and pane (session, window), which ``number`` identifies."""

    key_of: np.ndarray
    number: np.ndarray
    partials: Partials
    rows: np.ndarray
    """The number of rows in each."""

    def at(self, chosen: np.ndarray) -> "EpochPartials":
        taken = pa.array(chosen)
        return EpochPartials(
            self.key_of[chosen], self.number[chosen], [column.take(taken) for column in self.partials], self.rows[chosen]
        )


class WindowProcess(KeyedBatchProcess, OperatorTraits):
    """A window operator bound to the schema of its input."""

    output_time = END
    drops_late = True
    inclusive = False
    """Where event times are ends of windows: such a row is in the window that ends there, not in the next."""
    numbers: tuple[str, ...] = ()
    """Integer columns of a stored window besides its partials and ``UNFIRED``."""

    def __init__(
        self, windows: Any, aggregation: Aggregation, rules: Rules, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None
    ) -> None:
        self.windows, self.aggregation, self.rules, self.event_time = windows, aggregation, rules, event_time
        time = pa.timestamp("us", "UTC") if event_time is None else rows.field(event_time).type
        key_types = {} if keys == (ALL,) else {key: rows.field(key).type for key in keys}
        self.results = WindowResults(
            aggregation, key_types, time if pa.types.is_timestamp(time) else pa.timestamp("us", "UTC"), rules.firing
        )
        self.output = self.results.schema
        self.layout = WindowLayout(
            aggregation, numbers=(*self.numbers, *([UNFIRED] if rules.counted else [])), emitted=self.results.emitted
        )

        self.combiner: Combiner | None = None
        self.storage: ListStorage | MapStorage = ListStorage(self.layout)

    def states(self) -> dict[str, State]:
        return self.storage.states()

    def resumed(self, apart: Collection[str], before: Sequence[tuple[int, int]]) -> Self:  # noqa: ARG002
        process = copy(self)
        process.rules = replace(self.rules, before=tuple(before))
        return process

    def states_by_aggregate(self) -> dict[str, list[str]]:
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
        """The event time of each row; 0 for null, which only windows that do not go by time have."""
        if self.event_time is None:
            return np.zeros(int(batch.starts[-1]), np.int64)
        return pane_ms(pa.chunked_array([batch.column(self.event_time)]), inclusive=self.inclusive)

    def times_us(self, batch: Batch) -> np.ndarray:
        """As ``times_ms``, in microseconds: for sessions, which compare the times of rows."""
        assert self.event_time is not None
        return filled(as_us(pa.chunked_array([batch.column(self.event_time)])), 0)
