"""Evaluates the expressions that need no Spark: columns, fields of structs, literals, and comparisons of them."""

from collections.abc import Collection
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.expressions.comparison import COMPARED
from floodplain.expressions.syntax import And, Column, Compare, Condition, Expression, In, Literal, parse
from floodplain.expressions.type_ddl import parse_type
from floodplain.state.row_expressions import evaluate


def evaluated(expression: Any, rows: pa.Table) -> pa.Array:
    """The column that the expression names, or a literal for every row. Raises ``BadInput`` for any other expression."""
    if not isinstance(expression, str):
        raise _needs_spark(expression)
    return _evaluated(parse(expression), rows, expression)


def _evaluated(parsed: Expression, rows: pa.Table, written: str) -> pa.Array:
    match parsed:
        case Literal(value, type_):
            return pa.repeat(pa.scalar(value, parse_type(type_)), len(rows))
        case Column(path):
            return evaluate(path, rows)
    raise _needs_spark(written)


def rest(but: Collection[str], rows: pa.Table) -> pa.Array | None:
    """All columns except ``but`` as one struct; None if there are none."""
    excluded = frozenset(but)
    names = [name for name in rows.column_names if name not in excluded]
    if not names:
        return None
    columns = [pa.concat_arrays(rows.column(name).chunks) if len(rows) else pa.nulls(0, rows.field(name).type) for name in names]
    return pa.StructArray.from_arrays(columns, names)


def holds(condition: Any, rows: pa.Table) -> pa.Array:
    """A mask of the rows where the condition holds: a boolean column, comparisons and ``in (…)``, joined by ``and``."""
    if not isinstance(condition, str):
        raise _needs_spark(condition)
    parsed = parse(condition)
    mask = pa.repeat(True, len(rows))
    for operand in parsed.conditions if isinstance(parsed, And) else (parsed,):
        operand_mask = _holds(operand, rows, condition)
        if not pa.types.is_boolean(operand_mask.type):
            raise BadInput(f"the condition {condition} is {operand_mask.type}, not boolean")
        mask = pc.and_(mask, operand_mask)
    return mask


def _holds(condition: Condition, rows: pa.Table, written: str) -> pa.Array:
    match condition:
        case In(operand, values):
            return reduce(pc.or_kleene, [_holds(Compare(operand, "=", value), rows, written) for value in values])
        case Compare(left, sign, right) if sign in COMPARED:
            return COMPARED[sign](_evaluated(left, rows, written), _evaluated(right, rows, written))
    return _evaluated(condition, rows, written)


def _needs_spark(expression: Any) -> BadInput:
    return BadInput(
        f"the expression {expression} needs Spark, and the kit runs without it: compute the column in a transform, pass the kit "
        "an equivalent Arrow function (transforms=[…]), and name the column here"
    )
