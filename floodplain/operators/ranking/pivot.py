"""Pivot: the rows of a key become columns of one row."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.keys import columns_equal
from floodplain.lossless import UNFIT
from floodplain.operators.aggregates.scalar import summed
from floodplain.operators.changelog.changelog import (
    NO_COLUMNS,
    WEIGHT,
    Mode,
    changelog_of,
    changelog_refused,
    check_mode,
    with_columns,
)
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, canonical, free
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.segments import Groups, groups_are
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.operators.ranking.sort_order import By, Order, backwards, check_order, leaders, parse_order, precedes
from floodplain.state.descriptors import State, Value
from floodplain.state.row_structs import as_struct, field_of
from floodplain.store.rows import merge_functions
from floodplain.store.rows.layout import one_array
from floodplain.store.rows.row_classes import starts_of

NO_TYPE = pa.null()
Repeats: TypeAlias = Literal["last", "sum", "min", "max"]


@dataclass(frozen=True)
class Pivot(KeyedBatchProcess, OperatorTraits):
    """One row per key, emitted when it changes: a column for each listed value of ``kind``, with the ``value`` of its rows.

    ``repeats`` aggregates several rows: the last by ``by`` (event time by default; among equals the largest value), their sum,
    min or max. Rows of another kind are ignored and counted; null values are ignored.
    """

    kind: str
    kinds: tuple[tuple[Any, str], ...]
    """Value of ``kind`` → name of the column."""
    value: str
    repeats: Repeats = "last"
    by: str | None = None
    mode: Mode = "update"
    output: pa.Schema = NO_COLUMNS
    order: Order = ()
    keys: tuple[str, ...] = ()
    cell: pa.DataType = NO_TYPE
    bys: pa.DataType = NO_TYPE
    """The sort columns of the last value."""
    kind_type: pa.DataType = NO_TYPE

    def __post_init__(self) -> None:
        check_mode("pivot", self.mode, "update", "retract")
        if self.repeats not in get_args(Repeats):
            raise BadInput(f"pivot: repeats={self.repeats!r} is not known: use one of {', '.join(get_args(Repeats))}")
        if not self.kinds:
            raise BadInput("pivot: values has the columns of the output: list at least one")

    @property
    def gives_changes(self) -> bool:  # type: ignore[override]
        return self.mode == "retract"

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        by = f" by {self.by or 'event time'}" if self.repeats == "last" else ""
        names = ", ".join(name for _, name in self.kinds)
        return OperatorSpec(
            "pivot",
            (
                ParameterSpec("value", self.value, f"{self.value} by {self.kind} as {names}"),
                ParameterSpec("column", self.kind),
                ParameterSpec("values", [kind for kind, _ in self.kinds]),
                ParameterSpec("repeats", self.repeats, f"{self.repeats}{by}"),
                ParameterSpec("by", self.by and canonical(self.by)),
                ParameterSpec("mode", self.mode, f"mode {self.mode}", free),
            ),
        )

    def goes_by_time(self) -> bool:
        return self.repeats == "last" and self.by is None

    def for_changes(self, name: str) -> NoReturn:
        raise changelog_refused(
            name,
            "no value replaces one that is retracted",
            "aggregate with conditions instead, as in agg(web=fp.max('price', where=\"channel = 'web'\"))",
        )

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "Pivot":
        for name in (self.kind, self.value):
            if not rows.get_all_field_indices(name):
                raise BadInput(f"pivot: there is no column {name}; there are: {', '.join(rows.names)}")
        try:
            pa.array([kind for kind, _ in self.kinds], rows.field(self.kind).type)
        except UNFIT as error:
            raise BadInput(
                f"pivot: values do not fit column {self.kind} of type {rows.field(self.kind).type}: {error}"
            ) from error
        cell = self._cell_type(rows.field(self.value).type)
        known = pa.schema([rows.field(key) for key in keys])
        more = [(name, cell) for _, name in self.kinds]
        for number, (name, _) in enumerate(more):
            if name in [other for other, _ in more[:number]]:
                raise BadInput(f"pivot: two columns would be called {name}: name them, as in values={{'a': 'first'}}")
        more += [(WEIGHT, pa.int64())] if self.mode == "retract" else []
        bound = replace(
            self, output=with_columns("pivot", known, *more), keys=keys, cell=cell, kind_type=rows.field(self.kind).type
        )
        return bound if self.repeats != "last" else replace(bound, **self._ordered(rows, event_time))

    def _cell_type(self, type_: pa.DataType) -> pa.DataType:
        if self.repeats == "last":
            return type_
        problem = merge_functions.check_type(self.repeats, type_)
        if problem:
            raise BadInput(f"pivot: column {self.value}: {problem}")
        if self.repeats == "sum" and not pa.types.is_decimal(type_):
            return pa.int64() if pa.types.is_integer(type_) else pa.float64()
        return type_

    def _ordered(self, rows: pa.Schema, event_time: str | None) -> dict[str, Any]:
        by = self.by or (event_time and f"`{event_time}`")
        if not by:
            raise BadInput("pivot: the rows have no event time: say by which column a value is the last, as in by='ts'")
        order = backwards(parse_order(by))
        check_order(order, rows, "pivot")
        bys = pa.struct([pa.field(name, rows.field(name).type) for name in dict.fromkeys(by.column for by in order)])
        if not pa.types.is_nested(self.cell) and self.value not in [by.column for by in order]:
            order += (By(self.value, True, False),)
        return {"order": order, "bys": bys}

    def states(self) -> dict[str, State]:
        cells: dict[str, State] = {f"cell_{number}": Value(self.cell, nullable=False) for number in range(len(self.kinds))}
        times: dict[str, State] = {
            f"by_{number}": Value(self.bys, nullable=False, whole=True) for number in range(len(self.kinds))
        }
        return cells | times if self.repeats == "last" else cells

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:  # noqa: ARG002
        """No row is late."""
        return pa.repeat(True, len(event_time))

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:
        if not len(batch.key_of_row):
            return None
        wanted = pa.array([kind for kind, _ in self.kinds], self.kind_type)
        kind_of_row = pc.index_in(batch.column(self.kind), wanted).fill_null(-1).to_numpy()
        ctx.ignore(int((kind_of_row < 0).sum()))
        there = np.asarray(batch.column(self.value).is_valid())
        before = [batch.state(f"cell_{number}") for number in range(len(self.kinds))]
        known = np.any([column.is_valid().to_numpy(zero_copy_only=False) for column in before], axis=0)
        changed = np.zeros(len(batch.keys), bool)
        for number in range(len(self.kinds)):
            places = np.flatnonzero((kind_of_row == number) & there)
            if len(places):
                settle = self._last if self.repeats == "last" else self._folded
                settle(batch, number, places)
                changed |= ~columns_equal([before[number]], [batch.state(f"cell_{number}")])
        numbers = np.flatnonzero(changed)
        new = self._rows(batch, numbers, [batch.state(f"cell_{number}") for number in range(len(self.kinds))])
        return new if self.mode == "update" else changelog_of(self._rows(batch, numbers[known[numbers]], before), new)

    def _last(self, batch: Batch, number: int, places: np.ndarray) -> None:
        owner = batch.key_of_row[places]
        best = places[leaders(owner, self.order, lambda name, at: batch.take(places[at], [name]).column(0))]
        numbers = owner[starts_of(owner)]
        cells, bys = batch.state(f"cell_{number}"), batch.state(f"by_{number}")

        def stored(name: str, at: np.ndarray) -> pa.Array:
            rows = pa.array(numbers[at])
            return cells.take(rows) if name == self.value else field_of(bys, name).take(rows)

        wins = ~np.asarray(cells.is_valid())[numbers]
        old = np.flatnonzero(~wins)
        wins[old] = precedes(lambda name, at: batch.take(best[at], [name]).column(0), stored, old, self.order)
        rows = batch.take(best[wins])
        batch.set(f"cell_{number}", rows.column(self.value), numbers[wins])
        batch.set(f"by_{number}", as_struct(rows, self.bys), numbers[wins])

    def _folded(self, batch: Batch, number: int, places: np.ndarray) -> None:
        """Folds the stored value of each key with its new ones."""
        values = one_array(batch.take(places, [self.value]).column(0)).cast(self.cell)
        owner = batch.key_of_row[places]
        numbers = owner[starts_of(owner)]
        stored = batch.state(f"cell_{number}").take(pa.array(numbers))
        owner = np.concatenate([numbers[np.asarray(stored.is_valid())], owner])
        order = np.argsort(owner, kind="stable")
        operands = pa.concat_arrays([stored.drop_null(), values]).take(pa.array(order))
        starts = np.flatnonzero(starts_of(owner[order]))
        if self.repeats != "sum":
            batch.set(f"cell_{number}", merge_functions.required(self.repeats, "pivot")(operands, starts), numbers)
            return
        with groups_are(numbers, f"column {self.kinds[number][1]}: "):
            batch.set(f"cell_{number}", summed(operands, Groups(starts, len(operands))), numbers)

    def _rows(self, batch: Batch, numbers: np.ndarray, cells: list[pa.Array]) -> pa.Table:
        at = pa.array(numbers)
        columns = [batch.keys.column(number).take(at) for number in range(len(self.keys))]
        names = [*self.keys, *(name for _, name in self.kinds)]
        return pa.Table.from_arrays([*columns, *(cell.take(at) for cell in cells)], names=names)
