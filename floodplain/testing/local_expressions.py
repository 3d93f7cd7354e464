"""Expressions as far as they make sense without Spark: columns, fields of structs and literals."""

import re
from collections.abc import Collection
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.expressions.comparison import COMPARED
from floodplain.state.row_expressions import evaluate, parse_paths

_NUMBER = re.compile(r"[+-]?\d+")
_TEXT = re.compile(r"'([^']*)'")
_AMONG = re.compile(r"(.+?)\s+in\s*\((.+)\)", re.IGNORECASE)
_COMPARISON = re.compile(r"(.+?)(<=>|<=|>=|<>|!=|==|=|<|>)(.+)")
_CONSTANTS = {"true": True, "false": False, "null": None}


def evaluated(expression: Any, rows: pa.Table) -> pa.Array:
    """The column that the expression names, or a literal in every row. Raises ``BadInput`` for what only Spark can compute."""
    if not isinstance(expression, str):
        raise _needs_spark(expression)
    text = expression.strip()
    if text.lower() in _CONSTANTS:
        return pa.repeat(pa.scalar(_CONSTANTS[text.lower()]), len(rows))
    if _NUMBER.fullmatch(text):
        return pa.repeat(pa.scalar(int(text), pa.int32()), len(rows))
    if match := _TEXT.fullmatch(text):
        return pa.repeat(pa.scalar(match[1]), len(rows))
    try:
        (path,) = parse_paths(text)
    except (BadInput, ValueError) as error:
        raise _needs_spark(expression) from error
    return evaluate(path, rows)


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
    found = pa.repeat(True, len(rows))
    for part in re.split(r"\s+and\s+", condition.strip(), flags=re.IGNORECASE):
        here = _holds(part, rows)
        if not pa.types.is_boolean(here.type):
            raise BadInput(f"the condition {condition} is {here.type}, not boolean")
        found = pc.and_(found, here)
    return found


def _holds(condition: str, rows: pa.Table) -> pa.Array:
    if among := _AMONG.fullmatch(condition):
        return reduce(pc.or_kleene, [_holds(f"{among[1]} = {value}", rows) for value in among[2].split(",")])
    match = _COMPARISON.fullmatch(condition)
    if match is None:
        return evaluated(condition, rows)
    if match[2] not in COMPARED:
        raise _needs_spark(condition)
    return COMPARED[match[2]](evaluated(match[1], rows), evaluated(match[3], rows))


def _needs_spark(expression: Any) -> BadInput:
    return BadInput(
        f"the expression {expression} needs Spark, and the kit runs without: compute it in a transform, give the kit the same as "
        "an Arrow function (transforms=[…]), and name the column here"
    )
