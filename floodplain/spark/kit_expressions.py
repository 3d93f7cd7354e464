"""Expressions as far as they make sense without Spark: columns, fields of structs and literals."""

import re
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.spark.conditions import COMPARED
from floodplain.state.expressions import evaluate, parse_paths

_NUMBER = re.compile(r"[+-]?\d+")
_TEXT = re.compile(r"'([^']*)'")
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
    names = [name for name in rows.column_names if name not in but]
    if not names:
        return None
    columns = [pa.concat_arrays(rows.column(name).chunks) if len(rows) else pa.nulls(0, rows.field(name).type) for name in names]
    return pa.StructArray.from_arrays(columns, names)


def holds(condition: Any, rows: pa.Table) -> pa.Array:
    """Where a boolean column is true, or comparisons of what ``evaluated`` takes, put together by ``and``."""
    if not isinstance(condition, str):
        raise _needs_spark(condition)
    found = pa.repeat(True, len(rows))
    for part in re.split(r"\s+and\s+", condition.strip(), flags=re.IGNORECASE):
        match = _COMPARISON.fullmatch(part)
        if match and match[2] not in COMPARED:
            raise _needs_spark(condition)
        sides = [evaluated(side, rows) for side in ((match[1], match[3]) if match else (part,))]
        here = COMPARED[match[2]](*sides) if match else sides[0]
        if not pa.types.is_boolean(here.type):
            raise BadInput(f"the condition {condition} is {here.type}, not boolean")
        found = pc.and_(found, here)
    return found


def _needs_spark(expression: Any) -> BadInput:
    return BadInput(
        f"the expression {expression} needs Spark, and the kit runs without: compute it in a transform, give the kit the same as "
        "an Arrow function (transforms=[…]), and name the column here"
    )
