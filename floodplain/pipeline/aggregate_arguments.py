"""The arguments of ``agg``: aggregates with or without a name, dicts as in Spark, and ``Column``s of Spark's functions."""

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
    """Aggregates without a name under default names, then the named ones. Raises ``BadInput`` if two have the same name."""
    aggregates: dict[str, Any] = {}
    for name, aggregate in [pair for each in unnamed for pair in _named(each)]:
        if name in aggregates or name in named:
            raise BadInput(f"agg: two aggregates would be called {name}: name one of them, as in agg(other=…)")
        aggregates[name] = aggregate
    return {**aggregates, **named}


def _named(argument: Any) -> Iterator[tuple[str, Aggregate]]:
    if isinstance(argument, Aggregate):
        name = default_name(argument, _text)
        if name is None:
            raise BadInput(f"agg: {argument} needs a name: agg(x=…)")
        yield name, argument
    elif isinstance(argument, Mapping):
        for column, function in argument.items():
            yield from _named(_by_name(str(function), [] if (column,) in _EVERY_ROW else [quoted(column)], argument))
    elif isinstance(argument, str) or written(argument) is None:
        raise BadInput(f"agg({argument!r}): this is no aggregate: pass one, as in agg(n=fp.count())")
    else:
        yield _of_column(argument, written(argument) or "")


def _text(argument: object) -> str:
    text = written(argument) or str(argument)
    return unquoted(text) or text


def _of_column(column: Any, text: str) -> tuple[str, Aggregate]:
    """The aggregate for a ``Column`` of one of Spark's functions, read from its text. Its arguments must be columns."""
    call = call_of_columns(text)
    if call is None:
        raise BadInput(f"agg: Spark's {text} has no equivalent here: use an aggregate of fp, as in agg(total=fp.sum('v * 2'))")
    if _is_distinct(column, text):
        raise BadInput(f"agg: {text} is of distinct values: use agg(n=fp.count_distinct('v'))")
    aggregate = _by_name(call.function, [] if call.columns in _EVERY_ROW else [quoted(each) for each in call.columns], text)
    return (_text(call.alias), aggregate) if call.alias else next(_named(aggregate))


def _by_name(function: str, columns: list[str], argument: object) -> Aggregate:
    kind = _BY_NAME.get(function.lower())
    if kind is None:
        known = ", ".join(sorted(_BY_NAME))
        raise BadInput(
            f"agg({argument!r}): {function} is not one of {known}: use aggregates of fp, such as fp.last('v') or fp.collect('v')"
        )
    return kind(*columns)


def _is_distinct(column: Any, text: str) -> bool:
    """Spark's text omits it: ``F.countDistinct("v")`` reads as ``count(v)``. So this asks the expression node."""
    if not hasattr(column, "_jc"):
        return False
    node = column._jc.node()
    while (kind := node.getClass().getSimpleName()) == "Alias":
        node = node.child()
    return bool(node.isDistinct()) if kind == "UnresolvedFunction" else is_distinct_call(text)
