"""PySpark's ``Column``s by the text that they show: ``Column<'and(=(a, b), =(c, d))'>``.

That is not SQL: functions and operators stand before their arguments, and names stand without backticks.
"""

from dataclasses import dataclass

from floodplain.expressions.identifiers import bare
from floodplain.expressions.tokens import Tokens, pieces

_BEGIN, _END = "Column<'", "'>"


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator of terms."""

    function: str
    arguments: "tuple[Call | str, ...]"
    """What is no call is as it is shown."""
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class CallOfColumns:
    function: str
    columns: tuple[str, ...]
    """Their names; ``*`` is all of them."""
    alias: str | None


def shown(column: object) -> str | None:
    """What a ``Column`` shows; None if it is none."""
    text = repr(column)
    return text[len(_BEGIN) : -len(_END)] if text.startswith(_BEGIN) and text.endswith(_END) else None


def call_of_columns(text: str) -> CallOfColumns | None:
    """``max_by(a, my col) AS newest``: a named function of columns. An alias may be any text."""
    call = call_in(text)
    if call is None or not bare(call.function):
        return None
    columns = [_column(each) for each in call.arguments if isinstance(each, str)]
    names = tuple(each for each in columns if each is not None)
    return CallOfColumns(call.function, names, call.alias) if names and len(names) == len(call.arguments) else None


def is_distinct_call(text: str) -> bool:
    """Whether SQL text calls a function of distinct values: ``count(distinct v)``."""
    tokens = pieces(text)
    return len(tokens) > 3 and tokens[1].is_mark("(") and tokens[2].is_word("distinct") and tokens[3].is_name


def equal_columns(text: str) -> tuple[tuple[str, str], ...] | None:
    """Left and right columns of ``and(=(a, b), =(c, d))``; None if it is anything else."""
    call = call_in(text)
    return None if call is None or call.alias is not None else _equal(call)


def _equal(call: Call | str) -> tuple[tuple[str, str], ...] | None:
    match call:
        case Call("=", (str(left), str(right))):
            return ((left, right),)
        case Call("and", (one, other)):
            first, second = _equal(one), _equal(other)
            return None if first is None or second is None else (*first, *second)
    return None


def call_in(text: str) -> Call | None:
    """The call that the text of a ``Column`` is."""
    tokens = pieces(text)
    term, place = _term(text, tokens, 0)
    if not isinstance(term, Call):
        return None
    rest = text[tokens[place - 1].end :]
    if not rest:
        return term
    return Call(term.function, term.arguments, rest[4:]) if rest[:4] == " AS " and rest[4:] else None


def _column(text: str) -> str | None:
    if text == "*":
        return text
    tokens = pieces(text)
    if len(tokens) == 1 and tokens[0].is_name:
        return tokens[0].value
    return text if all(token.is_name or token.is_mark("`") for token in tokens) else None


def _term(text: str, tokens: Tokens, first: int) -> tuple[Call | str | None, int]:
    """The call or name that begins at ``first``, and where it ends. None where a parenthesis stays open."""
    place = first
    while place < len(tokens) and not tokens[place].is_mark("(", ")", ","):
        place += 1
    if place == first or place == len(tokens):
        return None, place
    shown_text = text[tokens[first].start : tokens[place - 1].end]
    if not tokens[place].is_mark("("):
        return shown_text, place
    arguments: list[Call | str] = []
    while place < len(tokens) and tokens[place].is_mark("(", ","):
        argument, place = _term(text, tokens, place + 1)
        if argument is None:
            break
        arguments.append(argument)
    closed = place < len(tokens) and tokens[place].is_mark(")")
    return (Call(shown_text, tuple(arguments)), place + 1) if closed else (None, place)
