"""An order of columns as SQL writes it: ``price desc nulls last, ts``."""

from dataclasses import dataclass

from floodplain.expressions.tokens import Kind, Token, Tokens, Unreadable, pieces


@dataclass(frozen=True, slots=True)
class SortItem:
    column: str
    descending: bool
    nulls_first: bool
    """Where it is not written, nulls are the least of all values, as in Spark."""


def sort_items(text: str) -> tuple[SortItem, ...]:
    """The columns in order; a comma may stand at the end. Raises ``Unreadable`` where one begins that is no column."""
    tokens = pieces(text)
    items: list[SortItem] = []
    at = 0
    while at < len(tokens):
        until = next((place for place in range(at, len(tokens)) if tokens[place].is_mark(",")), len(tokens))
        item = _item(tokens[at:until])
        if item is None:
            raise Unreadable("no column", tokens[at].start)
        items.append(item)
        at = until + 1
    return tuple(items)


def _item(part: Tokens) -> SortItem | None:
    if not part or not _is_column(part[0]):
        return None
    column, rest = part[0].value, part[1:]
    descending = bool(rest) and rest[0].is_word("desc")
    if rest and rest[0].is_word("asc", "desc"):
        rest = rest[1:]
    if not rest:
        return SortItem(column, descending, not descending)
    if len(rest) == 2 and rest[0].is_word("nulls") and rest[1].is_word("first", "last"):
        return SortItem(column, descending, rest[1].is_word("first"))
    return None


def _is_column(token: Token) -> bool:
    return token.is_name and (token.kind is Kind.QUOTED or token.text.isascii())
