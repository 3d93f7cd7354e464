"""Evaluates expressions on columns, exactly as Spark does.

Spark evaluates row by row and skips what a row does not need: the right side of a false ``and``, the branches of a ``case``
that are not taken. That shows where an evaluation fails. So expressions that may fail are evaluated on those rows only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import UserError
from floodplain.keys import hash_columns
from floodplain.sources.scan import (
    And,
    Arithmetic,
    Case,
    Column,
    Compare,
    Const,
    Expression,
    Hash,
    In,
    IsNan,
    IsNull,
    MakeStruct,
    Member,
    Negate,
    Not,
    Or,
    Widen,
    children,
    decoded_type,
)
from floodplain.structs import field_at

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Columns of one length, which counts even if there is no column."""

    columns: Mapping[str, pa.Array]
    count: int

    def where(self, mask: Mask) -> "Rows":
        kept = pa.array(mask)
        return Rows({name: column.filter(kept) for name, column in self.columns.items()}, int(mask.sum()))


def evaluate(expression: Expression, rows: Rows) -> pa.Array:
    """One value for each row. Raises ``UserError`` if a value is out of range where Spark fails, too."""
    return _EVALUATE[type(expression)](expression, rows)


def matching(condition: Expression, rows: Rows) -> Rows:
    """The rows for which the condition is true. A part of a conjunction sees only the rows that its predecessors keep."""
    if isinstance(condition, And) and may_fail(condition):
        return matching(condition.right, matching(condition.left, rows))
    return rows.where(_is_true(evaluate(condition, rows)))


@cache
def may_fail(expression: Expression) -> bool:
    """Whether the evaluation may raise ``UserError``."""
    checked = isinstance(expression, Arithmetic | Negate) and expression.checked
    return checked or any(map(may_fail, children(expression)))


def _evaluate_on(expression: Expression, rows: Rows, mask: Mask) -> pa.Array:
    """One value for each row; anything, or null, for rows outside the mask, which do not fail."""
    if not may_fail(expression) or mask.all():
        return evaluate(expression, rows)
    positions = np.cumsum(mask) - 1
    return evaluate(expression, rows.where(mask)).take(pa.array(positions, mask=~mask))


def _is_true(flags: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(flags, False))


def _is_valid(column: pa.Array) -> Mask:
    return np.asarray(column.is_valid())


# --- Columns and constants


def _column(expression: Column, rows: Rows) -> pa.Array:
    return rows.columns[expression.name]


def _member(expression: Member, rows: Rows) -> pa.Array:
    return field_at(evaluate(expression.of, rows), expression.number)


def _const(expression: Const, rows: Rows) -> pa.Array:
    return pa.repeat(scalar_of(expression), rows.count)


@cache
def scalar_of(const: Const) -> pa.Scalar:
    type_, value = decoded_type(const.type), const.value
    if value is not None and pa.types.is_decimal(type_):
        return pa.scalar(Decimal(str(value)), type_)
    if value is not None and pa.types.is_temporal(type_):
        return pa.array([value], pa.int32() if pa.types.is_date(type_) else pa.int64()).view(type_)[0]
    if isinstance(value, str) and pa.types.is_binary(type_):
        return pa.scalar(value.encode("latin-1"), type_)
    return pa.scalar(value, type_)


# --- Boolean logic


def _and(expression: And, rows: Rows) -> pa.Array:
    left = evaluate(expression.left, rows)
    return pc.and_kleene(left, _evaluate_on(expression.right, rows, np.asarray(pc.fill_null(left, True))))


def _or(expression: Or, rows: Rows) -> pa.Array:
    left = evaluate(expression.left, rows)
    return pc.or_kleene(left, _evaluate_on(expression.right, rows, ~_is_true(left)))


def _not(expression: Not, rows: Rows) -> pa.Array:
    return pc.invert(evaluate(expression.of, rows))


def _is_null(expression: IsNull, rows: Rows) -> pa.Array:
    return evaluate(expression.of, rows).is_null()


def _is_nan(expression: IsNan, rows: Rows) -> pa.Array:
    return pc.fill_null(pc.is_nan(evaluate(expression.of, rows)), False)


def _case(expression: Case, rows: Rows) -> pa.Array:
    undecided = np.ones(rows.count, np.bool_)
    branches = []
    for condition, value in expression.branches:
        taken = undecided & _is_true(_evaluate_on(condition, rows, undecided))
        branches.append((taken, _evaluate_on(value, rows, taken)))
        undecided = undecided & ~taken
    if expression.otherwise is None:
        result = pa.nulls(rows.count, decoded_type(expression.type))
    else:
        result = _evaluate_on(expression.otherwise, rows, undecided)
    for taken, values in branches:
        result = pc.if_else(pa.array(taken), values, result)
    return result


# --- Comparisons


def _compare(expression: Compare, rows: Rows) -> pa.Array:
    left = evaluate(expression.left, rows)
    if expression.op == "same":
        return _same(left, evaluate(expression.right, rows))
    return _COMPARE[expression.op](left, _evaluate_on(expression.right, rows, _is_valid(left)))


def _same(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_(pc.fill_null(_equal(left, right), False), pc.and_(left.is_null(), right.is_null()))


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    equal = pc.equal(left, right)
    return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right))) if pa.types.is_floating(left.type) else equal


def _less(left: pa.Array, right: pa.Array) -> pa.Array:
    less = pc.less(left, right)
    return pc.or_(less, pc.and_not(pc.is_nan(right), pc.is_nan(left))) if pa.types.is_floating(left.type) else less


_COMPARE: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "eq": _equal,
    "lt": _less,
    "gt": lambda left, right: _less(right, left),
    "le": lambda left, right: pc.invert(_less(right, left)),
    "ge": lambda left, right: pc.invert(_less(left, right)),
}


def _in(expression: In, rows: Rows) -> pa.Array:
    column = evaluate(expression.of, rows)
    values = [scalar_of(each) for each in expression.among]
    known = [value for value in values if value.is_valid]
    matches = pa.array(np.zeros(rows.count, np.bool_))
    if known and _hashes_as_equal(column.type):
        matches = pc.is_in(column, pa.array(known, column.type))
    elif known:
        matches = reduce(pc.or_, [_equal(column, pa.repeat(value, rows.count)) for value in known])
    unknown = ~_is_valid(column) | (np.asarray(pc.invert(pc.fill_null(matches, False))) & (len(known) < len(values)))
    return pc.if_else(pa.array(unknown), pa.scalar(None, pa.bool_()), matches)


def _hashes_as_equal(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_string(type_))


# --- Numbers


def _arithmetic(expression: Arithmetic, rows: Rows) -> pa.Array:
    left = evaluate(expression.left, rows)
    right = _evaluate_on(expression.right, rows, _is_valid(left))
    return _within_range(_function(expression.op, expression.checked), left, right)


def _negate(expression: Negate, rows: Rows) -> pa.Array:
    return _within_range(_function("negate", expression.checked), evaluate(expression.of, rows))


def _function(op: str, checked: bool) -> Callable[..., pa.Array]:
    return partial(pc.call_function, f"{op}_checked" if checked else op)


def _within_range(function: Callable[..., pa.Array], *columns: pa.Array) -> pa.Array:
    try:
        return function(list(columns))
    except pa.ArrowInvalid as error:
        raise UserError(
            f"[ARITHMETIC_OVERFLOW] a value computed of the input is out of the range of {columns[0].type} ({error}): compute "
            "with a wider type, or with try_add, try_subtract or try_multiply"
        ) from error


def _widen(expression: Widen, rows: Rows) -> pa.Array:
    return evaluate(expression.of, rows).cast(decoded_type(expression.type), safe=False)


# --- Whole rows


def _struct(expression: MakeStruct, rows: Rows) -> pa.Array:
    values = [evaluate(value, rows) for value in expression.values]
    return pa.StructArray.from_arrays(values, fields=list(decoded_type(expression.type)))


def _hash(expression: Hash, rows: Rows) -> pa.Array:
    return pa.array(hash_columns([evaluate(each, rows) for each in expression.of]).view(np.int64))


_EVALUATE: dict[type, Callable[[Any, Rows], pa.Array]] = {
    Column: _column,
    Member: _member,
    Const: _const,
    Compare: _compare,
    And: _and,
    Or: _or,
    Not: _not,
    IsNull: _is_null,
    IsNan: _is_nan,
    In: _in,
    Arithmetic: _arithmetic,
    Negate: _negate,
    Widen: _widen,
    MakeStruct: _struct,
    Case: _case,
    Hash: _hash,
}
