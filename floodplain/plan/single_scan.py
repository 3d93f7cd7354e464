"""Unions of filters on one column of one table, rewritten to a single scan of the table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from floodplain.expressions.identifiers import bare, literal, quoted
from floodplain.expressions.syntax import Column, Compare, Literal, parse
from floodplain.plan.nodes import Extend, Node, Rest, Select, Union

Made: TypeAlias = str | tuple[tuple[str, str], ...]
"""An expression, or those of the fields of a struct by name."""
Columns: TypeAlias = tuple[tuple[str, Made], ...]

_NO_WORDS = {"true", "t", "yes", "y", "false", "f", "no", "n", "nan", "inf", "infinity"}
_LITERALS = {"true", "false", "null"}


@dataclass(frozen=True)
class Branch:
    """A member of the union: the rows that have this value, and the columns that it selects."""

    value: str
    columns: Columns
    where: tuple[str, ...] = ()
    """Further conditions on columns of the table; all must hold."""


@dataclass(frozen=True)
class OnePass:
    """A ``union`` over rows of one step, as a single scan: each row is in one branch, or in none."""

    parent: Node
    column: str
    parts: tuple[Branch, ...]

    def sql(self) -> list[str]:
        """Its columns."""
        names = dict.fromkeys(name for branch in self.parts for name, _ in branch.columns)
        return [f"{self._cases(name)} as {quoted(name)}" for name in names]

    def where(self) -> str:
        if not any(branch.where for branch in self.parts):
            return f"{quoted(self.column)} in ({', '.join(literal(branch.value) for branch in self.parts)})"
        return " or ".join(
            " and ".join([self._is(branch.value), *(f"({condition})" for condition in branch.where)]) for branch in self.parts
        )

    def _cases(self, name: str) -> str:
        cases = [(branch.value, dict(branch.columns)[name]) for branch in self.parts if name in dict(branch.columns)]
        return f"case {' '.join(f'when {self._is(value)} then {_sql(made)}' for value, made in cases)} end"

    def _is(self, value: str) -> str:
        return f"{quoted(self.column)} = {literal(value)}"


def one_pass(union: Union) -> OnePass | None:
    """The union as a single scan; None where that is not possible.

    Each member must filter by the value of one column first, then by any conditions, and then only select columns by name.
    """
    members = [member for node in union.members if (member := _member(node)) is not None]
    chosen = {(parent, column) for parent, column, _ in members}
    parts = [branch for _, _, branch in members]
    if len(members) < len(union.members) or len(chosen) != 1 or len({branch.value.casefold() for branch in parts}) != len(parts):
        return None
    ((parent, column),) = chosen
    return OnePass(parent, column, tuple(parts))


def _member(node: Node) -> tuple[Node, str, Branch] | None:
    """The table that a member reads, the column that it filters by, and its branch."""
    chain = list(_chain(node))
    while chain and _choice(chain[-1]) is None:
        chain.pop()
    if not chain:
        return None
    column, value = _choice(chain[-1]) or ("", "")
    where, columns = list[str](), None
    for step in reversed(chain):
        if isinstance(step, Select):
            columns = _composed(columns, step.columns) if step.only is None or step is chain[-1] else None
            if columns is None:
                return None
        elif step is not chain[-1]:
            if columns is not None or step.columns or not isinstance(step.where, str):
                return None
            where.append(step.where)
    return None if columns is None else (chain[-1].parent, column, Branch(value, columns, tuple(where)))


def _chain(node: Node) -> Iterator[Select | Extend]:
    while isinstance(node, Select | Extend):
        yield node
        node = node.parent


def _choice(step: Select | Extend) -> tuple[str, str] | None:
    """The column and the value it must have, if the step asks for nothing else."""
    if isinstance(step, Select):
        return step.only
    match parse(step.where) if isinstance(step.where, str) and not step.columns else None:
        case Compare(Column((column,)), "=" | "==", Literal(str(value))) if _is_word(value):
            return column, value
    return None


def _is_word(value: str) -> bool:
    """Whether it is a text in any case. What could be a number or a time is not: of columns that are no text, several of these
    may be the same value."""
    inner = value.replace("-", "_").replace(" ", "_")
    starts = value[:1].isalpha() and (value[-1:].isalnum() or value.endswith("_"))
    return value.isascii() and starts and bare(inner) and value.lower() not in _NO_WORDS


def _composed(inner: Columns | None, outer: Sequence[tuple[str, object]]) -> Columns | None:
    """The columns of the outer step by those of the table; None where that takes more than looking up names."""
    if inner is None:
        plain = [(name, made) for name, made in outer if isinstance(made, str)]
        return tuple(plain) if len(plain) == len(outer) else None
    known = {way: made for name, made in inner for way in (name, quoted(name))}
    composed: list[tuple[str, Made]] = []
    for name, made in outer:
        if isinstance(made, Rest):
            fields = [(field, value) for field, value in inner if field not in made.but]
            plain = [(field, value) for field, value in fields if isinstance(value, str)]
            if len(plain) < len(fields):
                return None
            composed += [(name, tuple(plain))] if plain else []
        elif isinstance(made, str) and (made in known or made in _LITERALS):
            composed.append((name, known.get(made, made)))
        else:
            return None
    return tuple(composed)


def _sql(made: Made) -> str:
    if isinstance(made, str):
        return f"({made})"
    return f"struct({', '.join(f'{value} as {quoted(field)}' for field, value in made)})"
