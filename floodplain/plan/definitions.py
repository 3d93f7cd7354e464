"""Stateful steps described: what the log records, what ``explain`` shows, and what a restart is held against."""

from dataclasses import replace
from typing import Any

from floodplain.expressions.columns import written
from floodplain.expressions.identifiers import unquoted
from floodplain.operators.kernel.definition import (
    PROCESS,
    STATEFUL_PROCESSOR,
    OperatorSpec,
    ParameterSpec,
    Rule,
    canonical,
    fixed,
    free,
    not_less,
    renamed,
)
from floodplain.operators.kernel.reserved_columns import ALL, AT
from floodplain.plan.nodes import Extend, Keyed, Select
from floodplain.state.durations import duration


def expression(made: Any) -> str:
    """As the user wrote it; a name without quotes."""
    text = written(made)
    return str(made) if text is None else unquoted(text) or text


def keyed_by(keys: tuple[str, ...]) -> str:
    return "as one group" if keys == (ALL,) else f"by {', '.join(keys)}"


def described(step: Keyed, event_time: str | None = None) -> OperatorSpec:
    """``event_time``: the column that its rows have their time in, where the step does not say so itself."""
    made = dict(step.parent.columns) if isinstance(step.parent, Select) else {}
    own = step.traits.described(lambda column: expression(made.get(column, column)))
    parameters = [*own.parameters, _keys(step, own.kind), _time(step, own.kind, event_time)]
    order = None if step.in_order is None else [step.in_order.rows, step.in_order.time_ms]
    bound = f", up to {step.in_order.bound}" if step.in_order is not None and step.in_order.bounded else ""
    parameters.append(
        ParameterSpec("in_order", order, "" if order is None else f"in order of event time{bound}", _still_in_order)
    )
    if all(each.name != "lateness" for each in own.parameters):
        late = f"up to {duration(step.lateness_ms)} late" if step.lateness_ms else ""
        parameters.append(ParameterSpec("lateness", step.lateness_ms, late, not_less))
    failing = f"on_error {step.on_error}" if step.on_error != "raise" else ""
    parameters.append(ParameterSpec("on_error", step.on_error, failing, free))
    return replace(own, parameters=tuple(parameters))


def _keys(step: Keyed, kind: str) -> ParameterSpec:
    """Names of keys, and the expressions of those that ``key_by`` was given. Spark knows those of its processors by place, and
    their types are compared with the tables."""
    node = step.parent.parent if isinstance(step.parent, Select) and step.parent.chosen else step.parent
    made = dict(node.columns) if isinstance(node, Extend) and node.for_keys else {}
    written = {key: expression(made[key]) for key in step.keys if key in made}
    value = [[key, canonical(written.get(key, key))] for key in step.keys]
    text = keyed_by(tuple(f"{key} = {written[key]}" if key in written else key for key in step.keys))
    return ParameterSpec("keys", value, text, renamed if kind == STATEFUL_PROCESSOR else fixed)


def _time(step: Keyed, kind: str, event_time: str | None) -> ParameterSpec:
    if step.event_time == AT:
        times = getattr(step.process, "times", ())
        return ParameterSpec("event_time", None, f"event time {' and '.join(dict.fromkeys(times))}")
    column = step.event_time or event_time
    rule: Rule = _not_taken_away if kind == PROCESS else fixed if step.traits.goes_by_time() else free
    return ParameterSpec("event_time", column, "" if column is None else f"event time {column}", rule)


def _still_in_order(old: Any, new: Any) -> str:
    """Whether rows wait when it is given up is looked up in the state."""
    return "rows that are ahead of the watermark were processed as they came" if old is None and new is not None else ""


def _not_taken_away(old: Any, new: Any) -> str:
    return "timers that wait for event time would never fire" if old is not None and new is None else ""
