"""Conditions and operands as far as we read them without Spark: columns, literals, comparisons, ``in`` and ``and``.

What is more than that is ``Other``, and Spark's to read. Double quotes are among it: the session says whether they quote a text
or a name.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from floodplain.expressions.identifiers import Path
from floodplain.expressions.tokens import Kind, Token, Tokens, tokens

_CONSTANTS = {"true": (True, "boolean"), "false": (False, "boolean"), "null": (None, "void")}
_SUFFIXES = {"l": "bigint", "s": "smallint", "y": "tinyint"}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_COMPARISONS = ("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a struct."""

    path: Path


@dataclass(frozen=True, slots=True)
class Literal:
    value: bool | int | str | None
    type: str
    """As Spark calls it: ``int`` or ``bigint``, ``string``, ``boolean``, ``void``."""


@dataclass(frozen=True, slots=True)
class Other:
    """What only Spark can compute."""

    text: str


Operand: TypeAlias = Column | Literal | Other


@dataclass(frozen=True, slots=True)
class Compare:
    left: Operand
    sign: str
    right: Operand


@dataclass(frozen=True, slots=True)
class In:
    operand: Operand
    values: tuple[Operand, ...]


Condition: TypeAlias = Operand | Compare | In


@dataclass(frozen=True, slots=True)
class And:
    conditions: tuple[Condition, ...]


Expression: TypeAlias = Condition | And


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """What the text says; ``Other`` if it is more than we read."""
    read = _Reader(tokens(text)).expression()
    return Other(text.strip()) if read is None else read


class _Reader:
    """Recursive descent. A word where an operand is due is a column, whatever else it means in SQL. None: not read."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._next = 0

    def expression(self) -> Expression | None:
        conditions = [self._condition()]
        while self._skip_word("and"):
            conditions.append(self._condition())
        read = [condition for condition in conditions if condition is not None]
        if len(read) < len(conditions) or self._peek is not None:
            return None
        return read[0] if len(read) == 1 else And(tuple(read))

    def _condition(self) -> Condition | None:
        left = self._operand()
        sign = self._peek
        if left is None or sign is None:
            return left
        if sign.is_mark(*_COMPARISONS):
            self._next += 1
            right = self._operand()
            return None if right is None else Compare(left, sign.text, right)
        return self._in(left) if self._skip_word("in") else left

    def _in(self, operand: Operand) -> In | None:
        values: list[Operand | None] = []
        while self._skip_mark("," if values else "("):
            values.append(self._operand())
        read = [value for value in values if value is not None]
        return In(operand, tuple(read)) if read and len(read) == len(values) and self._skip_mark(")") else None

    def _operand(self) -> Operand | None:
        token = self._peek
        if token is None:
            return None
        self._next += 1
        if token.kind is Kind.TEXT and token.text.startswith("'"):
            return Literal(token.value, "string")
        if token.is_mark("-", "+") and self._peek is not None and self._peek.start == token.end:
            number, self._next = self._peek, self._next + 1
            return _whole_number(number, token.text)
        if token.kind is Kind.NUMBER:
            return _whole_number(token, "")
        if token.is_word(*_CONSTANTS):
            return Literal(*_CONSTANTS[token.text.lower()])
        return self._column(token) if token.is_name else None

    def _column(self, first: Token) -> Column | None:
        path = [first.value]
        while self._skip_mark("."):
            field = self._peek
            self._next += 1
            if field is None or not (field.is_name or field.kind is Kind.NUMBER):
                return None
            path += [field.value] if field.is_name else field.text.split(".")
        return Column(tuple(path))

    @property
    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _skip_word(self, word: str) -> bool:
        skipped = self._peek is not None and self._peek.is_word(word)
        self._next += skipped
        return skipped

    def _skip_mark(self, mark: str) -> bool:
        skipped = self._peek is not None and self._peek.is_mark(mark)
        self._next += skipped
        return skipped


def _whole_number(token: Token, sign: str) -> Literal | None:
    """A number without a suffix is a long only where an int cannot hold it, as in Spark."""
    suffix = token.text[-1:].lower()
    digits = token.text[:-1] if suffix in _SUFFIXES else token.text
    if token.kind is not Kind.NUMBER or not (digits.isascii() and digits.isdigit()):
        return None
    value = int(sign + digits)
    types = (_SUFFIXES[suffix],) if suffix in _SUFFIXES else ("int", "bigint")
    for type_ in types:
        if -(1 << _BITS[type_] - 1) <= value < 1 << _BITS[type_] - 1:
            return Literal(value, type_)
    return None
