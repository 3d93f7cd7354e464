"""What a native reader computes of a file: a scan with its steps and expressions, as messages that go to tasks.

The semantics of every expression are Spark's. What cannot be evaluated exactly as Spark does has no expression here.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa


class _Node(msgspec.Struct, frozen=True, tag_field="node"):
    """What is told apart by its tag."""


class Column(_Node, frozen=True, tag="column"):
    """A column of the rows that the step reads."""

    name: str


class Member(_Node, frozen=True, tag="member"):
    """A field of a struct, by its number; null where the struct is."""

    of: "Expression"
    number: int


class Const(_Node, frozen=True, tag="const"):
    """The same value in each row. Dates are days and timestamps microseconds since 1970, decimals are text, and so are
    bytes, as Latin-1."""

    value: bool | int | float | str | None
    type: bytes


class Compare(_Node, frozen=True, tag="compare"):
    """``same`` is null-safe equality (``<=>``). NaN equals NaN and is greater than any number; -0.0 equals 0.0; text and binary
    compare by bytes. Requires: both sides have one type."""

    op: Literal["eq", "lt", "le", "gt", "ge", "same"]
    left: "Expression"
    right: "Expression"


class And(_Node, frozen=True, tag="and"):
    left: "Expression"
    right: "Expression"


class Or(_Node, frozen=True, tag="or"):
    left: "Expression"
    right: "Expression"


class Not(_Node, frozen=True, tag="not"):
    of: "Expression"


class IsNull(_Node, frozen=True, tag="is_null"):
    of: "Expression"


class IsNan(_Node, frozen=True, tag="is_nan"):
    """False where the value is null."""

    of: "Expression"


class In(_Node, frozen=True, tag="in"):
    """Whether a value is one of several, which have its type. Null if it is null, or if it is none of them and one is null."""

    of: "Expression"
    among: tuple[Const, ...]


class Arithmetic(_Node, frozen=True, tag="arithmetic"):
    """Of integers and floats of one type, or of decimals whose result always fits. ``checked``: integer overflow is an error
    instead of wrapping around."""

    op: Literal["add", "subtract", "multiply"]
    left: "Expression"
    right: "Expression"
    checked: bool


class Negate(_Node, frozen=True, tag="negate"):
    of: "Expression"
    checked: bool


class Widen(_Node, frozen=True, tag="widen"):
    """A cast to a type that holds every value, or to the nearest ``double`` of an integer."""

    of: "Expression"
    type: bytes


class MakeStruct(_Node, frozen=True, tag="struct"):
    """A struct, never null, of as many values as its type has fields."""

    values: tuple["Expression", ...]
    type: bytes


class Case(_Node, frozen=True, tag="case"):
    """The value of the first branch whose condition is true, else ``otherwise``, else null. All have one type."""

    branches: tuple[tuple["Expression", "Expression"], ...]
    otherwise: "Expression | None"
    type: bytes


class Hash(_Node, frozen=True, tag="hash"):
    """Spark's ``xxhash64`` of several columns."""

    of: tuple["Expression", ...]


_Test: TypeAlias = Compare | And | Or | Not | IsNull | IsNan | In
_Number: TypeAlias = Arithmetic | Negate | Widen | Hash
Expression: TypeAlias = Column | Member | Const | MakeStruct | Case | _Test | _Number


def children(expression: Expression) -> Sequence[Expression]:
    """What an expression is computed of."""
    match expression:
        case Compare() | And() | Or() | Arithmetic():
            return expression.left, expression.right
        case Member() | Not() | IsNull() | IsNan() | In() | Negate() | Widen():
            return (expression.of,)
        case MakeStruct():
            return expression.values
        case Hash():
            return expression.of
        case Case():
            last = () if expression.otherwise is None else (expression.otherwise,)
            return (*(each for branch in expression.branches for each in branch), *last)
        case _:
            return ()


class Where(_Node, frozen=True, tag="where"):
    """Keeps the rows for which the condition is true."""

    condition: Expression


class Project(_Node, frozen=True, tag="project"):
    """Replaces all columns by these."""

    columns: tuple[tuple[str, Expression], ...]


class Observe(_Node, frozen=True, tag="observe"):
    """Measures event times where Spark's watermark operator stands. ``column``: a timestamp, with or without a time zone."""

    column: str


Step: TypeAlias = Where | Project | Observe


class ParquetScan(msgspec.Struct, frozen=True):
    """Reads columns of Parquet files as Spark does, and applies steps to each file's rows."""

    schema: bytes
    """Arrow schema of the columns that are read, with Spark's names and types."""
    names: tuple[str, ...]
    """What the steps call these columns."""
    steps: tuple[Step, ...]
    output: tuple[str, ...]
    """Which columns there are after the steps, in order."""
    output_schema: bytes
    """Their Arrow schema."""
    case_sensitive: bool = False
    """Whether names of columns are matched with those in files by case."""
    datetime_rebase: str = "CORRECTED"
    """Of files that do not say which calendar they are written in: ``CORRECTED``, or Spark rebases or refuses old dates."""
    int96_rebase: str = "CORRECTED"
    partitions: tuple[tuple[str, str], ...] = ()
    """Columns of which each file has one value, by the folder that it is in: what the steps call them, and their names."""


def encoded_type(type_: pa.DataType) -> bytes:
    return encoded_schema(pa.schema([pa.field("", type_)]))


def decoded_type(encoded: bytes) -> pa.DataType:
    return decoded_schema(encoded).field(0).type


def encoded_schema(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize().to_pybytes())


def decoded_schema(encoded: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(encoded))
