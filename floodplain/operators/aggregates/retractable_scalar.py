"""Counts, sums and averages that support retraction: the last argument is the weight, 1 or -1.

The accumulators are additive, so a retraction needs none of the earlier rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.operators.aggregates.base import Aggregate, Columns, Types
from floodplain.operators.aggregates.decimals import quotients
from floodplain.operators.aggregates.scalar import Avg, Count, Sum
from floodplain.operators.changelog.changelog import WEIGHT, weights_of
from floodplain.operators.kernel.segments import Groups, filled, valid


def retractable(aggregate: Aggregate) -> "RetractableScalar | None":
    """The retractable version of an aggregate; None if its accumulator cannot be subtracted from."""
    kinds: dict[type, type[RetractableScalar]] = {Count: RetractableCount, Sum: RetractableSum, Avg: RetractableAvg}
    kind = kinds.get(type(aggregate))
    return None if kind is None else kind((*aggregate.arguments, WEIGHT), aggregate.where)


@dataclass(frozen=True)
class RetractableScalar(Aggregate):
    """Partials are additive numbers; null is 0."""

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        return [Sum().combine([part], groups)[0] for part in partials]


@dataclass(frozen=True)
class RetractableCount(RetractableScalar):
    def output(self, types: Types) -> pa.DataType:  # noqa: ARG002
        return pa.int64()

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:  # noqa: ARG002
        return (pa.int64(),)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        return [_counted(columns, np.logical_and.reduce([valid(column) for column in columns]), groups)]

    def result(self, partials: Columns) -> pa.Array:
        return pa.array(filled(partials[0], 0))


@dataclass(frozen=True)
class RetractableRowCount(RetractableCount):
    """The number of rows: the sum of all weights. Raises unless each is 1 or -1."""

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        return [pa.array(groups.reduced(np.add, weights_of(columns[0])))]


@dataclass(frozen=True)
class RetractableSum(RetractableScalar):
    """The sum and the count of values that are not null. For doubles, the sum of finite values; NaN and infinities are counted
    separately, because they cannot be subtracted from a sum."""

    def output(self, types: Types) -> pa.DataType:
        return Sum().output(types[:1])

    def _total(self, type_: pa.DataType) -> pa.DataType:
        """The type of the sum in the state."""
        return Sum().output([type_])

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        kind = self._total(types[0])
        return (kind, *[pa.int64()] * (4 if pa.types.is_floating(kind) else 1))

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        value, weight = columns
        kind = self._total(value.type)
        counted = _counted(columns, valid(value) & valid(weight), groups)
        if not pa.types.is_floating(kind):
            value = value.cast(pa.int64()) if pa.types.is_integer(kind) else value
            return [*Sum().of([pc.if_else(pc.less(weight, 0), pc.negate(value), value)], groups), counted]
        number = filled(value.cast(kind), 0.0)
        odd = [np.isnan(number), np.isposinf(number), np.isneginf(number)]
        finite = np.where(np.isfinite(number), number, 0.0) * filled(weight, 0)
        return [pa.array(groups.reduced(np.add, finite)), counted, *(_counted(columns, each, groups) for each in odd)]

    def result(self, partials: Columns) -> pa.Array:
        total, count, *odd = partials
        there = pa.array(filled(count, 0) > 0)
        if odd:
            total = pa.array(_with_odd(filled(total, 0.0), *(filled(each, 0) > 0 for each in odd)))
        return pc.if_else(there, total, pa.scalar(None, total.type))


@dataclass(frozen=True)
class RetractableAvg(RetractableSum):
    def output(self, types: Types) -> pa.DataType:
        return Avg().output(types[:1])

    def _total(self, type_: pa.DataType) -> pa.DataType:
        return Sum().output([type_]) if pa.types.is_decimal(type_) else pa.float64()

    def result(self, partials: Columns) -> pa.Array:
        total, count = super().result(partials), filled(partials[1], 0)
        if pa.types.is_decimal(total.type):
            return quotients(total, count)
        return pc.divide(total, pa.array(np.maximum(count, 1).astype(np.float64)))


def _counted(columns: Sequence[pa.Array], which: np.ndarray, groups: Groups) -> pa.Array:
    """The sum of the weights of these rows."""
    return pa.array(groups.reduced(np.add, np.where(which, filled(columns[-1], 0), 0)))


def _with_odd(total: np.ndarray, nan: np.ndarray, above: np.ndarray, below: np.ndarray) -> np.ndarray:
    infinite = np.where(above, np.inf, np.where(below, -np.inf, total))
    return np.where(nan | (above & below), np.nan, infinite)
