"""Definitions of operators: recorded in the log, compared at a restart, shown by ``explain``.

Each parameter has a rule which changes are compatible with existing state. Without a rule, every change is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import msgspec

from floodplain.expressions.tokens import pieces
from floodplain.versions.records.definition import Definition, Parameter, SparkProcessor

Rule: TypeAlias = Callable[[Any, Any], str]
"""``rule(old, new)``: why state written with the old value is incompatible with the new one; empty if it is compatible."""
Written: TypeAlias = Callable[[str], str]
"""A column of an operator's input → the expression that computes it, as the user wrote it."""

PROCESS, STATEFUL_PROCESSOR = "process", "stateful processor"
"""Kinds of operators whose states users declare: Floodplain's, and PySpark's, whose states may be added and removed freely."""


INCOMPATIBLE = "the existing state was computed with the old one"


def fixed(old: Any, new: Any) -> str:  # noqa: ARG001
    """No change is compatible."""
    return INCOMPATIBLE


def free(old: Any, new: Any) -> str:  # noqa: ARG001
    """Every change is compatible."""
    return ""


def renamed(old: Any, new: Any) -> str:  # noqa: ARG001
    """Every change is compatible, and it is not worth a note: only a name has changed."""
    return ""


def not_more(old: Any, new: Any) -> str:
    """Only a smaller value is compatible: the state has enough for it."""
    return "" if new <= old else "the existing state has too little for a larger one"


def not_less(old: Any, new: Any) -> str:
    """Only a larger value is compatible."""
    return "" if new >= old else "timers and expiry times in the existing state were set by the old one"


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of the running job."""

    name: str
    value: Any
    """Compared with the recorded one."""
    text: str = ""
    """For ``explain`` and error messages; empty if it is not shown."""
    rule: Rule = fixed

    @property
    def recorded(self) -> Parameter:
        return Parameter(plain(self.value), self.text)


@dataclass(frozen=True)
class OperatorSpec:
    """An operator of the running job."""

    kind: str
    parameters: tuple[ParameterSpec, ...] = ()
    aggregates: tuple[ParameterSpec, ...] = ()
    spark: SparkProcessor | None = None

    @property
    def recorded(self) -> Definition:
        return Definition(
            self.kind,
            {each.name: each.recorded for each in self.parameters},
            {each.name: each.recorded for each in self.aggregates},
            spark=self.spark,
        )


def plain(value: Any) -> Any:
    """A value as the log returns it: other objects than numbers, texts, lists and maps become their class name."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value, enc_hook=_name))


def _name(value: object) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def canonical(expression: str) -> str:
    """An expression without insignificant white space and outer parentheses."""
    tokens = [token.text for token in pieces(expression)]
    while tokens[:1] == ["("] and _closed_by(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return " ".join(tokens)


def _closed_by(tokens: Sequence[str]) -> int:
    """The position of the token that closes the first parenthesis."""
    depth = 0
    for position, each in enumerate(tokens):
        depth += (each == "(") - (each == ")")
        if not depth:
            return position
    return -1


def named(value: Any) -> str:
    """The class of a value, and its fields that differ from their defaults."""
    if not is_dataclass(value):
        return type(value).__name__ if hasattr(value, "states") else str(value)
    changed = [
        (item.name, getattr(value, item.name))
        for item in fields(value)
        if item.init and item.repr and not item.name.startswith("_") and getattr(value, item.name) != _default(item)
    ]
    parts = [f"{name}={', '.join(each) if isinstance(each, Mapping) else named(each)}" for name, each in changed]
    return f"{type(value).__name__}({', '.join(parts)})" if parts else type(value).__name__


def _default(item: Any) -> Any:
    return item.default_factory() if callable(item.default_factory) else item.default
