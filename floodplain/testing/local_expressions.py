"""Expressions as far as they make sense without Spark: columns, fields of structs and literals."""

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
    """The column that the expression names, or a literal in every row. Raises ``BadInput`` for what only Spark can compute."""
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
    """All columns but these as one struct, if there are any."""
    left_out = frozenset(but)
    names = [name for name in rows.column_names if name not in left_out]
    if not names:
        return None
    columns = [pa.concat_arrays(rows.column(name).chunks) if len(rows) else pa.nulls(0, rows.field(name).type) for name in names]
    return pa.StructArray.from_arrays(columns, names)


def holds(condition: Any, rows: pa.Table) -> pa.Array:
    """Where a boolean column is true, or comparisons of what ``evaluated`` takes, also ``in (…)``, put together by ``and``."""
    if not isinstance(condition, str):
        raise _needs_spark(condition)
    parsed = parse(condition)
    found = pa.repeat(True, len(rows))
    for part in parsed.conditions if isinstance(parsed, And) else (parsed,):
        here = _holds(part, rows, condition)
        if not pa.types.is_boolean(here.type):
            raise BadInput(f"the condition {condition} is {here.type}, not boolean")
        found = pc.and_(found, here)
    return found


def _holds(condition: Condition, rows: pa.Table, written: str) -> pa.Array:
    match condition:
        case In(operand, values):
            return reduce(pc.or_kleene, [_holds(Compare(operand, "=", value), rows, written) for value in values])
        case Compare(left, sign, right) if sign in COMPARED:
            return COMPARED[sign](_evaluated(left, rows, written), _evaluated(right, rows, written))
    return _evaluated(condition, rows, written)


def _needs_spark(expression: Any) -> BadInput:
    return BadInput(
        f"the expression {expression} needs Spark, and the kit runs without: compute it in a transform, give the kit the same as "
        "an Arrow function (transforms=[…]), and name the column here"
    )
