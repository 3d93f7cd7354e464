"""Conditions on rows that tasks can check themselves, so that rows need not go through Spark for them."""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|<>|!=|==|=|<|>)\s*([A-Za-z_]\w*)\s*")
_CONSTANTS = {"true", "false", "null"}
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
    """The condition, if it compares two columns by their plain names."""
    found = _FORM.fullmatch(condition) if isinstance(condition, str) else None
    if found is None or {found[1].lower(), found[3].lower()} & _CONSTANTS:
        return None
    return Comparison(found[1], found[2], found[3])
