"""Running aggregates over a changelog: rows may be retracted.

Counts, sums and averages subtract retracted rows. All other aggregates are recomputed from a multiset of values, for keys that
have changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.operators.aggregates.aggregation import Aggregation, Partials
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.combiner import AggregateCombiner, partials_of
from floodplain.operators.aggregates.retractable_scalar import RetractableRowCount, retractable
from floodplain.operators.aggregates.running import RunningProcess
from floodplain.operators.changelog.changelog import WEIGHT, Mode, check_mode, same, weights_of, without_weight
from floodplain.operators.changelog.multiset import Multiset, multiset_state
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, free
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.segments import Groups, filled, groups_of
from floodplain.operators.kernel.traits import OperatorTraits, Partial
from floodplain.state.descriptors import State, Value
from floodplain.state.row_structs import field_of

ROWS_NOW, VALUES_NOW = "rows_now", "values_now"
"""States: the row count of a key, and the multiset of values for aggregates that are recomputed."""


@dataclass(frozen=True)
class RetractableAggregate(KeyedBatchProcess, OperatorTraits):
    """Running aggregates over a changelog, before they are bound to a schema."""

    aggregates: Mapping[str, Aggregate]
    mode: Mode = "update"
    partial: Partial = "auto"

    @property
    def gives_changes(self) -> bool:  # type: ignore[override]
        return self.mode == "retract"

    def described(self, written: Written) -> OperatorSpec:
        aggregates = tuple(aggregate.described(name, written) for name, aggregate in self.aggregates.items())
        mode = ParameterSpec("mode", self.mode, f"mode {self.mode}", free)
        return OperatorSpec("retractable aggregate", (ParameterSpec("rows", "all", "of all rows that hold"), mode), aggregates)

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "RetractableRunningProcess":
        check_mode("agg", self.mode, "update", "retract")
        for name in self.aggregates:
            if name in (*keys, ROWS_NOW, VALUES_NOW, WEIGHT):
                raise BadInput(f"an aggregate cannot be called {name}: a key or a column of the operator has this name")
        requested = Aggregation(self.aggregates).bind(without_weight(rows), event_time)
        adding = {name: scalar for name, each in requested.named.items() if (scalar := retractable(each)) is not None}
        sums = Aggregation({**adding, ROWS_NOW: RetractableRowCount((WEIGHT,))}).bind(rows, event_time)
        others = {name: each for name, each in requested.named.items() if name not in adding}
        for name, each in others.items():
            if not each.arguments:
                raise BadInput(f"aggregate {name} has no arguments, so a retraction cannot be applied to it")
        process = RetractableRunningProcess(
            requested, sums, Aggregation(others).bind(rows, event_time) if others else None, rows, keys, self.mode
        )
        if self.partial and not others:
            process.combiner = AggregateCombiner(sums, keys, event_time and rows.field(event_time), None, self.partial)
        return process


class RetractableRunningProcess(RunningProcess):
    """Running aggregates over a changelog, bound to a schema."""

    needs_all_changes = True

    def __init__(
        self,
        requested: Aggregation,
        sums: Aggregation,
        others: Aggregation | None,
        rows: pa.Schema,
        keys: tuple[str, ...],
        mode: Mode,
    ) -> None:
        super().__init__(sums, rows, keys, mode)
        self._requested, self._others = requested, others
        weight = [pa.field(WEIGHT, pa.int64())] if mode == "retract" else []
        self.output = pa.schema([*(rows.field(key) for key in self.keys), *requested.output, *weight])
        named = [] if others is None else others.named.values()
        wanted = dict.fromkeys(name for each in named for name in (*each.arguments, *filter(None, [each.where])))
        self._kept = pa.struct([rows.field(name) for name in wanted])

    def states(self) -> dict[str, State]:
        sums: dict[str, State] = {
            name: Value(type_, nullable=False, companion=self._companions[name], whole=True) for name, type_ in self._values
        }
        return sums if self._others is None else {**sums, VALUES_NOW: multiset_state("agg", self._kept, whole=True)}

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.keys):
            return None
        before = [batch.state(name) for name, _ in self._values]
        now = self._added(batch, before)
        values = None if self._others is None else self._changed(batch)
        new = self._results_of(now, values, now=True)
        has = filled(now[-1], 0) > 0
        for (name, type_), column in zip(self._values, now, strict=True):
            batch.set(name, pc.if_else(pa.array(has), column, pa.scalar(None, type_)))
        if self.mode == "update":
            return self._rows(batch, np.arange(len(has)), new)
        old, had = self._results_of(before, values, now=False), filled(before[-1], 0) > 0
        changed = ~(had & has & same(old, new))
        retracted, inserted = np.flatnonzero(had & changed), np.flatnonzero(has & changed)
        retractions = self._rows(batch, retracted, old.take(pa.array(retracted)), -1)
        return pa.concat_tables([retractions, self._rows(batch, inserted, new.take(pa.array(inserted)), 1)])

    def _added(self, batch: Batch, before: Partials) -> Partials:
        groups = Groups(batch.starts[:-1], int(batch.starts[-1]))
        fresh, _ = partials_of(self.aggregation, batch, groups, None)
        number = np.arange(len(groups))
        now = self.aggregation.merged([(number, before), (number, fresh)], len(groups))
        wrong = np.flatnonzero(filled(now[-1], 0) < 0)
        if len(wrong):
            key = batch.keys.slice(wrong[0], 1).to_pylist()[0]
            raise BadInput(f"key {key}: more rows are retracted than were inserted")
        return now

    def _changed(self, batch: Batch) -> Multiset:
        fields = list(self._kept)
        values = pa.StructArray.from_arrays([batch.column(field.name) for field in fields], fields=fields)
        return Multiset.apply(batch, VALUES_NOW, batch.key_of_row, values, weights_of(batch.column(WEIGHT)))

    def _results_of(self, sums: Partials, values: Multiset | None, *, now: bool) -> pa.StructArray:
        """The results of all keys; for keys without rows, the aggregates of no rows."""
        results = self.aggregation.results(sums)
        if values is not None:
            results |= self._recomputed(values, values.now if now else values.before, len(sums[0]))
        fields = self._requested.output
        return pa.StructArray.from_arrays([results[field.name].cast(field.type) for field in fields], fields=fields)

    def _recomputed(self, values: Multiset, counts: np.ndarray, keys: int) -> dict[str, pa.Array]:
        """Results recomputed from the values with these multiplicities. A key without values has one row of nulls, which
        aggregates ignore."""
        assert self._others is not None
        some = np.repeat(np.arange(len(counts)), counts)
        none = np.setdiff1d(np.arange(keys), values.owner[some])
        owner = np.concatenate([values.owner[some], none])
        order = np.argsort(owner, kind="stable")
        at = np.concatenate([some, np.full(len(none), -1)])[order]
        place = pa.array(at, mask=at < 0)
        partials = self._others.of(lambda name: field_of(values.values, name).take(place), groups_of(owner[order]))
        return self._others.results(partials)
