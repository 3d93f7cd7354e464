"""Columns that users pass by position: names, PySpark ``Column``s, and expressions with an alias.

A text is the name of a column, whatever characters it has, in backticks or not, unless it ends in ``as name``. A ``Column`` is
read by its text. One without Spark, as all are in the kit, needs none of this.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.expressions.aliases import alias_in
from floodplain.expressions.identifiers import bare, name_in, path_in, quoted, unquoted
from floodplain.expressions.shown_columns import shown

Given: TypeAlias = Any
"""A text or a ``Column``."""


def written(column: Given) -> str | None:
    """What is written there, if it is a text or a ``Column``."""
    return column if isinstance(column, str) else shown(column)


def text_of(column: Given, call: str) -> str:
    """What is written there. Raises ``BadInput`` for what is neither text nor ``Column``."""
    text = written(column)
    if text is None:
        raise BadInput(f"{call}: {column!r} is no column: give its name, or a Column")
    return text


def named(columns: Iterable[Given], call: str, made: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Name and expression of each, then those ``made`` by name. Raises ``BadInput`` where a name is missing or stands twice."""
    pairs = [*(_named(each, call) for each in columns), *made.items()]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{call}: two columns would be called {name}: name one of them, as in {call}(other={quoted(name)!r})")
    return pairs


def _named(column: Given, call: str) -> tuple[str, Any]:
    text = text_of(column, call)
    if (alias := alias_in(text)) is not None:
        return alias.name, alias.expression if isinstance(column, str) else column
    if isinstance(column, str):
        name = unquoted(column.strip()) or column
        return name, quoted(name)
    if (path := path_in(text)) is not None:
        return path[-1], ".".join(map(quoted, path))
    raise BadInput(f"{call}: {text} has no name: give it one, as in {call}(w={text!r}), or .alias('w')")


def expression_named(text: str) -> tuple[str, str]:
    """Name and expression of what ``selectExpr`` takes: a column, a field, or ``expression as name``."""
    if (alias := alias_in(text)) is not None:
        return alias.name, alias.expression
    if (path := path_in(text)) is not None:
        return path[-1], text.strip()
    raise BadInput(f"selectExpr: {text} has no name: give it one, as in selectExpr('{text} as w')")


def computed(columns: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Those that are not there already under their name."""
    return tuple((name, made) for name, made in columns if not isinstance(made, str) or made != quoted(name))


def name_of(column: Given, call: str) -> str:
    """The name of a column that must be there."""
    text = text_of(column, call)
    if isinstance(column, str):
        return unquoted(column.strip()) or column
    name = name_in(text)
    if name is None:
        raise BadInput(
            f"{call}: {text} is not the name of a column: make it one before, with_column('w', {text!r}), and name that"
        )
    return name


def order_text(by: Given | Sequence[Given], call: str) -> str:
    """An order as ``parse_order`` reads it: a text as it is, ``F.col("price").desc()``, or several of them."""
    if isinstance(by, Sequence) and not isinstance(by, str):
        return ", ".join(order_text(each, call) for each in by)
    return text_of(by, call)


def check_there(columns: Iterable[tuple[str, Any]], rows: pa.Schema, who: str = "") -> None:
    """Raises ``BadInput`` unless rows have the columns that are only named. Case does not count, as in Spark. ``who`` asks."""
    known = {name.casefold() for name in rows.names}
    for _, made in columns:
        name = unquoted(made) if isinstance(made, str) else None
        if name is not None and name.casefold() not in known:
            raise BadInput(f"{who}there is no column {name}; there are: {', '.join(rows.names)}{hint(name, 'select')}")


def hint(name: str, call: str) -> str:
    """What to do, where a name looks like an expression."""
    return "" if bare(name) else f". An expression is given with a name: {call}(w={name!r})"
