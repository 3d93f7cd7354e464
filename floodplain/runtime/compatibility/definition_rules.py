"""Compares a changed operator with its recorded definition: each difference is compatible, or refused with what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from floodplain.errors import IncompatibleChange
from floodplain.operators.kernel.definition import INCOMPATIBLE, OperatorSpec, ParameterSpec, renamed
from floodplain.versions.records.definition import Definition, Parameter
from floodplain.versions.records.user_names import UserNames

KEPT = "kept"
"""In the value of an aggregate: the states that it is made of."""


@dataclass(frozen=True)
class Refusal:
    """A difference that the state cannot follow."""

    operator: str
    what: str
    """The parameter, aggregate or state."""
    why: str
    way_out: str = ""
    """Besides those that there always are."""

    def __str__(self) -> str:
        return f"operator {self.operator}, {self.what}: {self.why}" + (f" ({self.way_out})" if self.way_out else "")


@dataclass
class Comparison:
    """What became of the differences between a recorded and a new definition."""

    refused: list[Refusal] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    """Those that the state can follow, in words."""


def compare(operator: str, old: Definition, new: OperatorSpec) -> Comparison:
    """``old``: as recorded, under the names of today."""
    comparison = Comparison()
    if old.kind != new.kind:
        why = f"it was a {old.kind} and is a {new.kind}: give it another name"
        comparison.refused.append(Refusal(operator, "kind", why))
        return comparison
    for parameter in new.parameters:
        recorded = old.parameters.get(parameter.name)
        if recorded is not None and recorded.value != parameter.recorded.value:
            _judge(operator, parameter, recorded, comparison)
    for aggregate in new.aggregates:
        _judge_aggregate(operator, aggregate, old, comparison)
    for name in old.aggregates.keys() - {aggregate.name for aggregate in new.aggregates}:
        why = f"the state has it ({old.aggregates[name].told}), and this pipeline does not"
        way_out = f"start(drop=['{operator}.{name}']) drops it, start(rename={{'{operator}.{name}': …}}) gives it another name"
        comparison.refused.append(Refusal(operator, f"aggregate {name}", why, way_out))
    return comparison


def _judge(operator: str, parameter: ParameterSpec, recorded: Parameter, comparison: Comparison) -> None:
    change = f"was {_shown(recorded)}, is {_shown(parameter.recorded)}"
    if why := parameter.rule(recorded.value, parameter.recorded.value):
        comparison.refused.append(Refusal(operator, parameter.name, f"{change}: {why}"))
    elif parameter.rule is not renamed:
        comparison.noted.append(f"operator {operator}, {parameter.name}: {change}")


def _judge_aggregate(operator: str, aggregate: ParameterSpec, definition: Definition, comparison: Comparison) -> None:
    what, recorded = f"aggregate {aggregate.name}", definition.aggregates.get(aggregate.name)
    if recorded is None:
        _judge_new(operator, aggregate, definition.kind, comparison)
        return
    old, new = (
        {name: each for name, each in value.items() if name != KEPT} for value in (recorded.value, aggregate.recorded.value)
    )
    if old != new:
        change = f"was {_shown(recorded)}, is {_shown(aggregate.recorded)}" + _settings(old, new)
        comparison.refused.append(Refusal(operator, what, f"{change}: {INCOMPATIBLE}"))
    elif not set(aggregate.value.get(KEPT, ())) <= set(recorded.value.get(KEPT, ())):
        kept = " and ".join(recorded.value[KEPT])
        comparison.refused.append(Refusal(operator, what, f"it is kept as {kept}, together with aggregates that stood before it"))


def _judge_new(operator: str, aggregate: ParameterSpec, kind: str, comparison: Comparison) -> None:
    """An aggregate that the recorded definition does not have."""
    if kind == "retractable aggregate":
        why = f"it is new ({aggregate.text}), and rows that it has not seen may be retracted"
        comparison.refused.append(Refusal(operator, f"aggregate {aggregate.name}", why))
    elif aggregate.value["since"] == "now":
        comparison.noted.append(f"operator {operator}: {aggregate.text} added")
    else:
        why = (
            f"it is new ({aggregate.text}), and would count from this start on beside others that have counted from the beginning"
        )
        way_out = "if that is meant, say so: since='now' in the aggregate"
        comparison.refused.append(Refusal(operator, f"aggregate {aggregate.name}", why, way_out))


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Differences that the words of an aggregate do not show."""
    shown = ("function", "arguments", "where")
    names = [name for name in {**old, **new} if name not in shown and old.get(name) != new.get(name)]
    return "".join(f", {name} was {old.get(name)!r}, is {new.get(name)!r}" for name in names)


def _shown(parameter: Parameter) -> str:
    return parameter.told or repr(parameter.value)


def refuse(refusals: Iterable[Refusal], location: str, names: UserNames) -> None:
    """Raises ``IncompatibleChange`` with all of them, if there are any, in the names that users know."""
    some = list(refusals)
    if not some:
        return
    listed = names.in_text("\n".join(f"- {refusal}" for refusal in some))
    operators = ", ".join(f"'{name}'" for name in dict.fromkeys(refusal.operator for refusal in some))
    raise IncompatibleChange(
        f"the state at {location} was made by a pipeline that did something else, and would be misread:\n{listed}\n"
        f"Nothing was written. Ways out: keep what was changed as it was; start(reset=[{operators}]), and the operator begins "
        "empty while the others go on; or give it another name, and drop the old one with start(drop=[…])"
    )
