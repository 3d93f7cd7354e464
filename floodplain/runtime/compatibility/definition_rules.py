"""A changed operator held against what the log has of it: each difference is safe, or its user is told what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from floodplain.errors import IncompatibleChange
from floodplain.operators.kernel.definition import Described, Given
from floodplain.versions.records.definition import Definition, Parameter

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


def compare(operator: str, old: Definition, new: Described) -> Comparison:
    """``old``: as recorded, under the names of today."""
    found = Comparison()
    if old.kind != new.kind:
        why = f"it was a {old.kind} and is a {new.kind}: give it another name"
        found.refused.append(Refusal(operator, "kind", why))
        return found
    for given in new.parameters:
        recorded = old.parameters.get(given.name)
        if recorded is not None and recorded.value != given.recorded.value:
            _judge(operator, given, recorded, found)
    for given in new.aggregates:
        _judge_aggregate(operator, given, old, found)
    for name in old.aggregates.keys() - {given.name for given in new.aggregates}:
        why = f"the state has it ({old.aggregates[name].told}), and this pipeline does not"
        way_out = f"start(drop=['{operator}.{name}']) drops it, start(rename={{'{operator}.{name}': …}}) gives it another name"
        found.refused.append(Refusal(operator, f"aggregate {name}", why, way_out))
    return found


def _judge(operator: str, given: Given, recorded: Parameter, found: Comparison) -> None:
    change = f"was {_shown(recorded)}, is {_shown(given.recorded)}"
    if why := given.rule(recorded.value, given.recorded.value):
        found.refused.append(Refusal(operator, given.name, f"{change}: {why}"))
    else:
        found.noted.append(f"operator {operator}, {given.name}: {change}")


def _judge_aggregate(operator: str, given: Given, definition: Definition, found: Comparison) -> None:
    what, recorded = f"aggregate {given.name}", definition.aggregates.get(given.name)
    if recorded is None:
        _judge_new(operator, given, definition.kind, found)
        return
    old, new = ({name: each for name, each in value.items() if name != KEPT} for value in (recorded.value, given.recorded.value))
    if old != new:
        change = f"was {_shown(recorded)}, is {_shown(given.recorded)}" + _settings(old, new)
        found.refused.append(Refusal(operator, what, f"{change}: what the state holds was made with the old one"))
    elif not set(given.value.get(KEPT, ())) <= set(recorded.value.get(KEPT, ())):
        kept = " and ".join(recorded.value[KEPT])
        found.refused.append(Refusal(operator, what, f"it is kept as {kept}, together with aggregates that stood before it"))


def _judge_new(operator: str, given: Given, kind: str, found: Comparison) -> None:
    """An aggregate that was not there before."""
    if kind == "retractable aggregate":
        why = f"it is new ({given.told}), and rows that it has not seen may be retracted"
        found.refused.append(Refusal(operator, f"aggregate {given.name}", why))
    elif given.value["since"] == "now":
        found.noted.append(f"operator {operator}: {given.told} added")
    else:
        why = f"it is new ({given.told}), and would count from this start on beside others that have counted from the beginning"
        way_out = "if that is meant, say so: since='now' in the aggregate"
        found.refused.append(Refusal(operator, f"aggregate {given.name}", why, way_out))


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Differences that the words of an aggregate do not show."""
    shown = ("function", "arguments", "where")
    names = [name for name in {**old, **new} if name not in shown and old.get(name) != new.get(name)]
    return "".join(f", {name} was {old.get(name)!r}, is {new.get(name)!r}" for name in names)


def _shown(parameter: Parameter) -> str:
    return parameter.told or repr(parameter.value)


def refuse(refusals: Iterable[Refusal], location: str) -> None:
    """Raises ``IncompatibleChange`` with all of them, if there are any."""
    some = list(refusals)
    if not some:
        return
    listed = "\n".join(f"- {refusal}" for refusal in some)
    operators = ", ".join(f"'{name}'" for name in dict.fromkeys(refusal.operator for refusal in some))
    raise IncompatibleChange(
        f"the state at {location} was made by a pipeline that did something else, and would be misread:\n{listed}\n"
        f"Nothing was written. Ways out: keep what was changed as it was; start(reset=[{operators}]), and the operator begins "
        "empty while the others go on; or give it another name, and drop the old one with start(drop=[…])"
    )
