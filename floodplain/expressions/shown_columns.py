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


def shown(given: object) -> str | None:
    """What a ``Column`` shows; None if it is none."""
    text = repr(given)
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
    given = pieces(text)
    return len(given) > 3 and given[1].is_mark("(") and given[2].is_word("distinct")


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
    given = pieces(text)
    term, place = _term(text, given, 0)
    if not isinstance(term, Call):
        return None
    rest = text[given[place - 1].end :]
    if not rest:
        return term
    return Call(term.function, term.arguments, rest[4:]) if rest[:4] == " AS " and rest[4:] else None


def _column(text: str) -> str | None:
    if text == "*":
        return text
    given = pieces(text)
    if len(given) == 1 and given[0].is_name:
        return given[0].value
    return text if all(token.is_name or token.is_mark("`") for token in given) else None


def _term(text: str, given: Tokens, first: int) -> tuple[Call | str | None, int]:
    """The call or name that begins at ``first``, and where it ends. None where a parenthesis stays open."""
    place = first
    while place < len(given) and not given[place].is_mark("(", ")", ","):
        place += 1
    if place == first or place == len(given):
        return None, place
    shown_text = text[given[first].start : given[place - 1].end]
    if not given[place].is_mark("("):
        return shown_text, place
    arguments: list[Call | str] = []
    while place < len(given) and given[place].is_mark("(", ","):
        argument, place = _term(text, given, place + 1)
        if argument is None:
            break
        arguments.append(argument)
    closed = place < len(given) and given[place].is_mark(")")
    return (Call(shown_text, tuple(arguments)), place + 1) if closed else (None, place)
