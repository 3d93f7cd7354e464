"""Running aggregates: per key over all rows so far, emitted when they change."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.aggregates.aggregation import Aggregation, Partials, merged
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.combiner import AggregateCombiner, partials_of
from floodplain.operators.changelog.changelog import WEIGHT, Mode, check_mode, same
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, free
from floodplain.operators.kernel.process import KeyedBatchProcess, Process
from floodplain.operators.kernel.reserved_columns import ALL, check_keys
from floodplain.operators.kernel.segments import Groups, filled
from floodplain.operators.kernel.traits import UPDATED, OperatorTraits, Partial
from floodplain.state.descriptors import State, Value
from floodplain.state.tables import safe_names
from floodplain.store.rows.layout import at_rows

SEEN = "rows_seen"
"""The state with the row count of a key."""


@dataclass(frozen=True)
class RunningAggregate(KeyedBatchProcess, OperatorTraits):
    """Running aggregates by key, before they are bound to a schema."""

    aggregates: Mapping[str, Aggregate]
    mode: Mode = "update"
    partial: Partial = "auto"

    combines_when_bound = True

    @property
    def gives_changes(self) -> bool:  # type: ignore[override]
        return self.mode == "retract"

    def described(self, written: Written) -> OperatorSpec:
        aggregates = tuple(aggregate.described(name, written) for name, aggregate in self.aggregates.items())
        mode = ParameterSpec("mode", self.mode, f"mode {self.mode}", free)
        return OperatorSpec("running aggregate", (ParameterSpec("rows", "all", "of all rows so far"), mode), aggregates)

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:
        check_mode("agg", self.mode, "update", "retract")
        check_keys("agg", keys, SEEN, *([WEIGHT] if self.mode == "retract" else []))
        for name in self.aggregates:
            if name in (*keys, SEEN, WEIGHT):
                raise BadInput(f"an aggregate cannot be called {name}: a key or a column of the operator has this name")
        aggregation = Aggregation(self.aggregates).bind(rows, event_time)
        process = RunningProcess(aggregation, rows, keys, self.mode)
        if self.partial:
            process.combiner = AggregateCombiner(aggregation, keys, event_time and rows.field(event_time), None, self.partial)
        return process


class RunningProcess(KeyedBatchProcess, OperatorTraits):
    """Running aggregates bound to a schema. The partials of a key are columns of one state row."""

    def __init__(self, aggregation: Aggregation, rows: pa.Schema, keys: tuple[str, ...], mode: Mode) -> None:
        self.aggregation, self.mode = aggregation, mode
        self.keys = () if keys == (ALL,) else keys
        weight = [pa.field(WEIGHT, pa.int64())] if mode == "retract" else []
        self.output = pa.schema([*(rows.field(key) for key in self.keys), *aggregation.output, *weight])
        names = safe_names(dict.fromkeys(keys) | {field.name: None for field in aggregation.partial})
        parts = [fields for _, fields in aggregation.split(aggregation.partial)]
        self._values = [(names[field.name], field.type) for fields in parts for field in fields]
        self._companions = {names[field.name]: names[fields[-1].name] for fields in parts for field in fields}

    def states_by_aggregate(self) -> dict[str, list[str]]:
        names = dict(zip((field.name for field in self.aggregation.partial), (name for name, _ in self._values), strict=True))
        return {name: [names[column] for column in columns] for name, columns in self.aggregation.kept.items()}

    def states(self) -> dict[str, State]:
        partials: dict[str, State] = {
            name: Value(type_, nullable=False, companion=self._companions[name], whole=True) for name, type_ in self._values
        }
        return {**partials, SEEN: Value("long", 0, nullable=False)}

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:  # noqa: ARG002
        """No row is late."""
        return pa.repeat(True, len(event_time))

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:
        if not len(batch.keys):
            return None
        groups = Groups(batch.starts[:-1], int(batch.starts[-1]))
        ctx.measure(UPDATED, len(groups))
        fresh, rows = partials_of(self.aggregation, batch, groups, None)
        seen = filled(batch.state(SEEN), 0)[: len(groups)]
        known = np.flatnonzero(seen > 0)
        # Keys without rows, which only a timer has called, come last.
        numbers = None if len(groups) == len(batch.keys) else np.arange(len(groups))
        before = [at_rows(batch.state(name), known) for name, _ in self._values]
        now = merged(self.aggregation, np.arange(len(groups)), [(known, before), (np.arange(len(groups)), fresh)])
        for (name, _), column in zip(self._values, now, strict=True):
            batch.set(name, column, numbers)
        batch.set(SEEN, pa.array(seen + rows), numbers)
        if self.mode == "update":
            return self._rows(batch, np.arange(len(groups)), self._results(now))
        return self._changes(batch, known, before, now)

    def _changes(self, batch: Batch, known: np.ndarray, before: Partials, now: Partials) -> pa.Table:
        """The changelog: where the result changed, a retraction of the old one and an insertion of the new one."""
        old, new = self._results(before), self._results(now)
        changed = np.ones(len(batch.keys), bool)
        changed[known] = ~same(old, new.take(pa.array(known)))
        retracted, inserted = changed[known], np.flatnonzero(changed)
        retractions = self._rows(batch, known[retracted], old.filter(pa.array(retracted)), -1)
        return pa.concat_tables([retractions, self._rows(batch, inserted, new.take(pa.array(inserted)), 1)])

    def _results(self, partials: Partials) -> pa.StructArray:
        results = self.aggregation.results(partials)
        fields = self.aggregation.output
        columns = [column.cast(field.type) for column, field in zip(results.values(), fields, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields)

    def _rows(self, batch: Batch, numbers: np.ndarray, results: pa.StructArray, weight: int = 0) -> pa.Table:
        keys = batch.keys.take(pa.array(numbers)).columns[: len(self.keys)]
        weights = [pa.repeat(pa.scalar(weight, pa.int64()), len(numbers))] if weight else []
        return pa.Table.from_arrays([*keys, *results.flatten(), *weights], schema=self.output)
