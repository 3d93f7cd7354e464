"""Compares stateless steps of two plans: whether a step of the one is computed from the input as a step of the other is."""

from collections.abc import Iterator, Sequence
from typing import Any

from floodplain.expressions.columns import written
from floodplain.plan.nodes import Extend, Input, Node, Plan, Rest, Select, Union, parents


def counterpart(plan: Plan, step: Node, other: Plan) -> Node | None:
    """The step of the other plan that gives the same rows as ``step`` of this one, if nothing else there reads what comes before
    it: the rows of ``step`` are then all that the other plan needs of that input."""
    same = (node for node in other.nodes if _same(plan, step, other, node))
    return next((node for node in same if _reads_only(other, node)), None)


def _reads_only(plan: Plan, step: Node) -> bool:
    """Whether every path from what is upstream of the step leads through it."""
    upstream = set(_upstream(step))
    others = [node for node in plan.nodes if node is not step and node not in upstream]
    read = {parent for node in others for parent in parents(node)} | {outlet.node for outlet in plan.outlets}
    return not upstream & read


def _upstream(step: Node) -> Iterator[Node]:
    for parent in parents(step):
        yield parent
        yield from _upstream(parent)


def _same(plan: Plan, one: Node, other_plan: Plan, two: Node) -> bool:
    match one, two:
        case Input(tag=tag), Input(tag=other):
            return tag == other
        case Select(), Select():
            alike = one.only == two.only and _same_columns(plan.columns(one), other_plan.columns(two))
        case Extend(), Extend():
            alike = _same_columns(one.columns, two.columns) and _same_expression(one.where, two.where)
        case Union(), Union():
            alike = len(one.members) == len(two.members)
        case _:
            return False
    pairs = zip(parents(one), parents(two), strict=True) if alike else ()
    return alike and all(_same(plan, above, other_plan, other_above) for above, other_above in pairs)


def _same_columns(one: Sequence[tuple[str, Any]], two: Sequence[tuple[str, Any]]) -> bool:
    if [name for name, _ in one] != [name for name, _ in two]:
        return False
    return all(_same_expression(made, other) for (_, made), (_, other) in zip(one, two, strict=True))


def _same_expression(one: Any, two: Any) -> bool:
    """By their text, which of a ``Column`` is all that can be compared. Text and ``Column`` are never the same."""
    if one is two or isinstance(one, Rest | str | None) or isinstance(two, Rest | str | None):
        return bool(one is two or (type(one) is type(two) and one == two))
    text = written(one)
    return text is not None and text == written(two)
