"""Aggregates with a scalar accumulator: count, sum, avg, min, max, min_by, max_by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.operators.aggregates.base import Aggregate, Columns, Types
from floodplain.operators.aggregates.decimals import quotients
from floodplain.operators.kernel.segments import Groups, TooLarge, at, codes, filled, valid

_MOST_DECIMAL = 1e38 * (1 - 1e-9)
"""The largest unscaled sum of decimals, 38 nines, within the precision of a double."""


@dataclass(frozen=True)
class Count(Aggregate):
    def output(self, types: Types) -> pa.DataType:  # noqa: ARG002
        return pa.int64()

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:  # noqa: ARG002
        return (pa.int64(),)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        if not any(column.null_count for column in columns):
            return [pa.array(groups.sizes)]
        there = np.logical_and.reduce([valid(column) for column in columns])
        return [pa.array(groups.reduced(np.add, there.astype(np.int64)))]

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        return [pa.array(groups.reduced(np.add, filled(partials[0], 0)))]

    def sql(self, arguments: Sequence[str], where: str, types: Types) -> list[str] | None:  # noqa: ARG002
        counted = " and ".join(f"{each} is not null" for each in arguments)
        return [f"count({f'case when {counted} then 1 end' if counted else '1'}){where}"]


@dataclass(frozen=True)
class Sum(Aggregate):
    def output(self, types: Types) -> pa.DataType:
        (type_,) = types
        if pa.types.is_integer(type_):
            return pa.int64()
        if pa.types.is_floating(type_):
            return pa.float64()
        if pa.types.is_decimal128(type_):
            return pa.decimal128(min(type_.precision + 10, 38), type_.scale)
        raise SchemaMismatch(f"a sum needs a number, not {type_}")

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        return (self.output(types),)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        return [summed(columns[0].cast(self.output([columns[0].type])), groups)]

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        return [summed(partials[0], groups)]

    def sql(self, arguments: Sequence[str], where: str, types: Types) -> list[str] | None:
        return None if pa.types.is_decimal(types[0]) else [f"sum({arguments[0]}){where}"]


def summed(column: pa.Array, groups: Groups) -> pa.Array:
    """One sum per group, null where it has no value. Raises ``TooLarge`` if a sum overflows the type of the column."""
    if pa.types.is_decimal(column.type):
        return _decimal_sum(column, groups)
    values = filled(column, 0)
    if values.dtype == np.int64 and len(values) and max(int(values.max()), -int(values.min())) * len(values) >= 1 << 63:
        _check_longs(values, groups)
    empty = ~groups.any(valid(column)) if column.null_count else None
    return pa.array(groups.reduced(np.add, values), mask=empty)


def _check_longs(values: np.ndarray, groups: Groups) -> None:
    """Raises if a sum overflows. High and low words are summed separately: sums of words cannot overflow a long."""
    upper = groups.reduced(np.add, values >> 32) + (groups.reduced(np.add, values & 0xFFFFFFFF) >> 32)
    beyond = np.flatnonzero((upper >= 1 << 31) | (upper < -(1 << 31)))
    if len(beyond):
        raise TooLarge("a sum overflows a long: sum a double or a decimal", int(beyond[0]))


def _decimal_sum(column: pa.Array, groups: Groups) -> pa.Array:
    """Raises on overflow: Arrow wraps around beyond 38 digits without an error."""
    near = np.abs(groups.reduced(np.add, filled(column.cast(pa.float64()), 0.0)))
    worst = int(near.argmax()) if len(near) else 0
    error = TooLarge(f"a sum does not fit {column.type}: sum a wider decimal, or a double", worst)
    if len(near) and near[worst] * 10.0**column.type.scale >= _MOST_DECIMAL:
        raise error
    try:
        return _by_arrow(column, groups, "sum").cast(column.type)
    except pa.ArrowInvalid:
        raise error from None


def _by_arrow(column: pa.Array, groups: Groups, function: str) -> pa.Array:
    """By Arrow's own kernels, which support every type; slower than reducing in place."""
    table = pa.table({"group": groups.of_row, "value": column})
    column = table.group_by("group", use_threads=False).aggregate([("value", function)]).column(f"value_{function}")
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


@dataclass(frozen=True)
class Avg(Aggregate):
    """Exact for decimals, with four more digits, as in Spark; a double for other numbers."""

    def output(self, types: Types) -> pa.DataType:
        (type_,) = types
        if pa.types.is_decimal128(type_):
            return pa.decimal128(min(type_.precision + 4, 38), min(type_.scale + 4, 38))
        if not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
            raise SchemaMismatch(f"an average needs a number, not {type_}")
        return pa.float64()

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        return Sum().output(types) if pa.types.is_decimal(types[0]) else pa.float64(), pa.int64()

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        counted = Count().of(columns, groups)
        if pa.types.is_decimal(columns[0].type):
            return [*Sum().of(columns, groups), *counted]
        return [pa.array(groups.reduced(np.add, filled(columns[0].cast(pa.float64()), 0.0))), *counted]

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        if pa.types.is_decimal(partials[0].type):
            return [summed(partials[0], groups), *Count().combine(partials[1:], groups)]
        return [pa.array(groups.reduced(np.add, filled(part, 0))) for part in partials]

    def sql(self, arguments: Sequence[str], where: str, types: Types) -> list[str] | None:
        if pa.types.is_decimal(types[0]):
            return None
        return [f"coalesce(sum(cast({arguments[0]} as double)){where}, 0D)", f"count({arguments[0]}){where}"]

    def result(self, partials: Columns) -> pa.Array:
        if pa.types.is_decimal(partials[0].type):
            return quotients(partials[0], filled(partials[1], 0))
        total, count = (part.to_numpy(zero_copy_only=False) for part in partials)
        return pa.array(total / np.maximum(count, 1), mask=count == 0)


@dataclass(frozen=True)
class Extreme(Aggregate):
    """The least or greatest value. NaN is greater than all numbers, as in Spark."""

    greatest: bool = False

    @property
    def function(self) -> str:
        return "max" if self.greatest else "min"

    def output(self, types: Types) -> pa.DataType:
        (type_,) = types
        if pa.types.is_nested(type_) or pa.types.is_null(type_):
            raise SchemaMismatch(f"min and max need a type with an order, not {type_}")
        return type_

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        return (self.output(types),)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        (column,) = columns
        if column.null_count or not _is_plain_number(column.type):
            return [at(column, groups.extreme([codes(column)], valid(column), self.greatest))]
        better = np.maximum if self.greatest else np.fmin
        return [pa.array(groups.reduced(better, column.to_numpy(zero_copy_only=False)), column.type)]

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        return self.of(partials, groups)

    def sql(self, arguments: Sequence[str], where: str, types: Types) -> list[str] | None:  # noqa: ARG002
        return [f"{'max' if self.greatest else 'min'}({arguments[0]}){where}"]


def _is_plain_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_)


@dataclass(frozen=True)
class ExtremeBy(Aggregate):
    """The value in the row whose ``by`` is the least (or greatest); of several such rows the least (or greatest) value.

    The arguments are one or several values and ``by``. All values are of one row: of rows with equal ``by`` the one with the
    least (or greatest) values, compared in their order. A null is less than any value. The partials have the types of the
    arguments.
    """

    greatest: bool = False

    @property
    def function(self) -> str:
        return "max_by" if self.greatest else "min_by"

    def output(self, types: Types) -> pa.DataType:
        *values, by = types
        if pa.types.is_nested(by) or pa.types.is_null(by):
            raise SchemaMismatch(f"rows can be ordered by a type with an order, not {by}")
        for value in values:
            check_comparable(value)
        return values[0]

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        self.output(types)
        return tuple(types)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        *values, by = columns
        rows = groups.extreme_by(codes(by), valid(by), values, self.greatest)
        return [at(column, rows) for column in columns]

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        return self.of(partials, groups)

    def sql(self, arguments: Sequence[str], where: str, types: Types) -> list[str] | None:
        """The min (or max) of a struct, which Spark compares field by field; None for types with another order in Spark."""
        *values, by = arguments
        if any(map(pa.types.is_nested, types)):
            return None
        fields = [f"{by} as p{len(values)}", *(f"{value} as p{i}" for i, value in enumerate(values))]
        row = f"case when {by} is not null then struct({', '.join(fields)}) end"
        return [f"{'max' if self.greatest else 'min'}({row}){where}"]


def check_comparable(type_: pa.DataType) -> None:
    if pa.types.is_map(type_) or any(pa.types.is_map(type_.field(i).type) for i in range(type_.num_fields)):
        raise SchemaMismatch(f"{type_} contains a map, which cannot be compared: aggregate its fields")
