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
    given = pieces(text)
    found: list[SortItem] = []
    at = 0
    while at < len(given):
        until = next((place for place in range(at, len(given)) if given[place].is_mark(",")), len(given))
        item = _item(given[at:until])
        if item is None:
            raise Unreadable("no column", given[at].start)
        found.append(item)
        at = until + 1
    return tuple(found)


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
