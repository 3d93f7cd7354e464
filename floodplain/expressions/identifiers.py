"""Names of columns and literals as Spark's expressions have them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from floodplain.expressions.tokens import Kind, Token, Unreadable, pieces

Path: TypeAlias = tuple[str, ...]
"""A column, then fields within it."""
_CONSTANTS = ("true", "false", "null")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def unquoted(text: str) -> str | None:
    """The name, if the text is one that ``quoted`` made."""
    if not (text.startswith("`") and text.endswith("`")):
        return None
    name = _only(text)
    return None if name is None or name.kind is not Kind.QUOTED else name.value


def bare(name: str) -> bool:
    """Whether a name has only letters, digits and ``_``."""
    word = _only(name)
    return word is not None and word.kind is Kind.WORD


def name_in(text: str) -> str | None:
    """The name that the text is, in backticks or not, with nothing around it."""
    name = _only(text)
    return None if name is None else name.value


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def plain_name(expression: object) -> str | None:
    """The column that an expression names, if it does nothing else."""
    name = _only(expression) if isinstance(expression, str) else None
    if name is None or name.is_word(*_CONSTANTS):
        return None
    return name.value if name.kind is Kind.QUOTED or _starts_as_a_name(name.text) else None


def path_in(text: str) -> Path | None:
    """The column, or field of a struct, that the text is: ``s.x``, with no space within."""
    try:
        paths = paths_in(text)
    except Unreadable:
        return None
    tokens = pieces(text)
    close = all(one.end == other.start for one, other in pairwise(tokens))
    return paths[0] if len(paths) == 1 and close else None


def paths_in(text: str) -> tuple[Path, ...]:
    """Columns and fields of structs, separated by commas: ``page, click.`page url` ``. Raises ``Unreadable``."""
    tokens = pieces(text)
    paths: list[Path] = []
    names: list[str] = []
    for place in range(0, len(tokens) + 1, 2):
        if place >= len(tokens) or not tokens[place].is_name:
            raise Unreadable("expected the name of a column or field", _at(tokens, place, text))
        names.append(tokens[place].value)
        mark = tokens[place + 1] if place + 1 < len(tokens) else None
        if mark is not None and not mark.is_mark(".", ","):
            raise Unreadable(f"unexpected {mark.text[0]!r}", mark.start)
        if mark is None or mark.text == ",":
            paths.append(tuple(names))
            names = []
        if mark is None:
            break
    return tuple(paths)


def _at(tokens: Sequence[Token], place: int, text: str) -> int:
    return tokens[place].start if place < len(tokens) else len(text)


def _only(text: str) -> Token | None:
    tokens = pieces(text)
    return tokens[0] if len(tokens) == 1 and tokens[0].is_name and tokens[0].text == text else None


def _starts_as_a_name(word: str) -> bool:
    return word[0] == "_" or (word[0].isascii() and word[0].isalpha())
