"""Aggregates as users give them to ``agg``: by name, without one, as Spark's dicts, and as Spark's ``Column``s."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from floodplain.errors import BadInput
from floodplain.expressions.columns import written
from floodplain.expressions.identifiers import quoted, unquoted
from floodplain.expressions.shown_columns import call_of_columns, is_distinct_call
from floodplain.operators.aggregates import functions
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.naming import default_name

_BY_NAME: dict[str, Callable[..., Aggregate]] = {
    "approx_count_distinct": functions.approx_count_distinct,
    "avg": functions.avg,
    "count": functions.count,
    "max": functions.max,
    "max_by": functions.max_by,
    "mean": functions.avg,
    "min": functions.min,
    "min_by": functions.min_by,
    "sum": functions.sum,
}
_EVERY_ROW = (("*",), ("1",))


def all_named(unnamed: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Those without a name under one of their own, then the others. Raises ``BadInput`` where two would have one name."""
    found: dict[str, Any] = {}
    for name, aggregate in [pair for each in unnamed for pair in _named(each)]:
        if name in found or name in named:
            raise BadInput(f"agg: two aggregates would be called {name}: name one of them, as in agg(other=…)")
        found[name] = aggregate
    return {**found, **named}


def _named(given: Any) -> Iterator[tuple[str, Aggregate]]:
    if isinstance(given, Aggregate):
        name = default_name(given, _text)
        if name is None:
            raise BadInput(f"agg: {given} needs a name: agg(x=…)")
        yield name, given
    elif isinstance(given, Mapping):
        for column, function in given.items():
            yield from _named(_by_name(str(function), [] if (column,) in _EVERY_ROW else [quoted(column)], given))
    elif isinstance(given, str) or written(given) is None:
        raise BadInput(f"agg({given!r}): give an aggregate, as in agg(n=fp.count())")
    else:
        yield _of_column(given, written(given) or "")


def _text(argument: object) -> str:
    text = written(argument) or str(argument)
    return unquoted(text) or text


def _of_column(column: Any, text: str) -> tuple[str, Aggregate]:
    """Spark's own, as its text tells it, if that is a function of columns."""
    call = call_of_columns(text)
    if call is None:
        raise BadInput(f"agg: {text} is Spark's own and cannot be taken over: use those of fp, as in agg(total=fp.sum('v * 2'))")
    if _is_distinct(column, text):
        raise BadInput(f"agg: {text} is of distinct values: use agg(n=fp.count_distinct('v'))")
    made = _by_name(call.function, [] if call.columns in _EVERY_ROW else [quoted(each) for each in call.columns], text)
    return (_text(call.alias), made) if call.alias else next(_named(made))


def _by_name(function: str, columns: list[str], given: object) -> Aggregate:
    kind = _BY_NAME.get(function.lower())
    if kind is None:
        known = ", ".join(sorted(_BY_NAME))
        raise BadInput(f"agg({given!r}): {function} is not one of {known}: use those of fp, as fp.last('v') or fp.collect('v')")
    return kind(*columns)


def _is_distinct(column: Any, text: str) -> bool:
    """Of a function of Spark's its text does not say: ``F.countDistinct("v")`` reads as ``count(v)``. Its node does."""
    if not hasattr(column, "_jc"):
        return False
    node = column._jc.node()
    while (kind := node.getClass().getSimpleName()) == "Alias":
        node = node.child()
    return bool(node.isDistinct()) if kind == "UnresolvedFunction" else is_distinct_call(text)
