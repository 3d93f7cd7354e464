"""Parts of one table, told apart by the value of a column, put together again: one pass over the table will do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from floodplain.spark.names import literal, quoted
from floodplain.spark.plan import Node, Rest, Select, Union

Made: TypeAlias = str | tuple[tuple[str, str], ...]
"""An expression, or those of the fields of a struct by name."""


@dataclass(frozen=True)
class Part:
    """What becomes of the rows that have this value."""

    value: str
    columns: tuple[tuple[str, Made], ...]


@dataclass(frozen=True)
class OnePass:
    """``union`` over rows of one step: each row is in one part, or in none."""

    parent: Node
    column: str
    parts: tuple[Part, ...]

    def sql(self) -> list[str]:
        """Its columns."""
        names = dict.fromkeys(name for part in self.parts for name, _ in part.columns)
        return [f"{self._cases(name)} as {quoted(name)}" for name in names]

    def where(self) -> str:
        return f"{quoted(self.column)} in ({', '.join(literal(part.value) for part in self.parts)})"

    def _cases(self, name: str) -> str:
        found = [(part.value, dict(part.columns)[name]) for part in self.parts if name in dict(part.columns)]
        cases = " ".join(f"when {quoted(self.column)} = {literal(value)} then {_sql(made)}" for value, made in found)
        return f"case {cases} end"


def one_pass(union: Union) -> OnePass | None:
    """The same in one pass, where that is possible: members that choose by the value of one column and only name columns then."""
    parts, chosen = [], set()
    for member in union.members:
        chain = list(_chain(member))
        first = chain[-1] if chain else None
        if first is None or first.only is None or any(step.only is not None for step in chain[:-1]):
            return None
        columns: tuple[tuple[str, Made], ...] | None = None
        for step in reversed(chain):
            columns = _composed(columns, step.columns)
            if columns is None:
                return None
        assert columns is not None
        chosen.add((first.parent, first.only[0]))
        parts.append(Part(first.only[1], columns))
    if len(chosen) != 1 or len({part.value for part in parts}) != len(parts):
        return None
    ((parent, column),) = chosen
    return OnePass(parent, column, tuple(parts))


def _chain(node: Node) -> Iterator[Select]:
    while isinstance(node, Select):
        yield node
        node = node.parent


def _composed(
    inner: tuple[tuple[str, Made], ...] | None, outer: Sequence[tuple[str, object]]
) -> tuple[tuple[str, Made], ...] | None:
    """The columns of the outer step by those of the first step's parent; None where that takes more than looking up names."""
    if inner is None:
        plain = [(name, made) for name, made in outer if isinstance(made, str)]
        return tuple(plain) if len(plain) == len(outer) else None
    known = {way: made for name, made in inner for way in (name, quoted(name))}
    found: list[tuple[str, Made]] = []
    for name, made in outer:
        if isinstance(made, Rest):
            fields = [(field, value) for field, value in inner if field not in made.but]
            plain = [(field, value) for field, value in fields if isinstance(value, str)]
            if len(plain) < len(fields):
                return None
            found += [(name, tuple(plain))] if plain else []
        elif isinstance(made, str) and (made in known or made in _LITERALS):
            found.append((name, known.get(made, made)))
        else:
            return None
    return tuple(found)


_LITERALS = {"true", "false", "null"}


def _sql(made: Made) -> str:
    if isinstance(made, str):
        return f"({made})"
    return f"struct({', '.join(f'{value} as {quoted(field)}' for field, value in made)})"
