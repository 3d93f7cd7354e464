"""Conditions on rows that tasks can check themselves, so that rows need not go through Spark for them."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.expressions.syntax import Column, Compare, parse

COMPARED = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
"""How SQL writes a comparison → the same in Arrow."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of two columns, as SQL has it: where one is null it does not hold."""

    left: str
    sign: str
    right: str

    def fits(self, rows: pa.Schema) -> bool:
        """Whether there are such columns, of a type that Arrow and Spark compare alike."""
        if not {self.left, self.right} <= set(rows.names):
            return False
        left, right = rows.field(self.left).type, rows.field(self.right).type
        return left == right and (pa.types.is_integer(left) or pa.types.is_timestamp(left) or pa.types.is_date(left))

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which it holds."""
        return rows.filter(COMPARED[self.sign](rows.column(self.left), rows.column(self.right)))


def comparison(condition: object) -> Comparison | None:
    """The condition, if it compares two columns and nothing else."""
    match parse(condition) if isinstance(condition, str) else None:
        case Compare(Column((left,)), sign, Column((right,))) if sign in COMPARED:
            return Comparison(left, sign, right)
    return None
