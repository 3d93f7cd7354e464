"""What an operator is told to do, as it describes itself: compared with what the log has of it, and shown by ``explain``.

Each parameter says by itself which changes its state can bear. Whatever is not said to be safe is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import msgspec

from floodplain.expressions.tokens import pieces
from floodplain.versions.records.definition import Definition, Parameter

Rule: TypeAlias = Callable[[Any, Any], str]
"""``rule(old, new)``: why state of the old value cannot go on with the new one; empty if it can."""
Written: TypeAlias = Callable[[str], str]
"""A column of an operator's input → the expression that makes it, as the user wrote it."""

PROCESS, STATEFUL_PROCESSOR = "process", "stateful processor"
"""Kinds of operators whose states users declare: ours, and PySpark's, which may come and go without a word."""


def fixed(old: Any, new: Any) -> str:  # noqa: ARG001
    """What the state holds was made with the old value."""
    return "what the state holds was made with the old one"


def free(old: Any, new: Any) -> str:  # noqa: ARG001
    """The state means the same with any value."""
    return ""


def not_more(old: Any, new: Any) -> str:
    """The state has enough for less of it."""
    return "" if new <= old else "the state does not hold what more of it needs"


def not_less(old: Any, new: Any) -> str:
    return "" if new >= old else "what the state waits for was set by the old one"


@dataclass(frozen=True)
class Given:
    """A parameter as the running code has it."""

    name: str
    value: Any
    told: str = ""
    rule: Rule = fixed

    @property
    def recorded(self) -> Parameter:
        return Parameter(plain(self.value), self.told)


@dataclass(frozen=True)
class Described:
    """An operator as the running code has it."""

    kind: str
    parameters: tuple[Given, ...] = ()
    aggregates: tuple[Given, ...] = ()

    @property
    def recorded(self) -> Definition:
        return Definition(
            self.kind,
            {each.name: each.recorded for each in self.parameters},
            {each.name: each.recorded for each in self.aggregates},
        )


def plain(value: Any) -> Any:
    """As it comes back from the log. What is no plain value is known by its name."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value, enc_hook=_name))


def _name(value: object) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def canonical(expression: str) -> str:
    """An expression without what makes no difference to it: white space, and parentheses around the whole."""
    tokens = [token.text for token in pieces(expression)]
    while tokens[:1] == ["("] and _closed_by(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return " ".join(tokens)


def _closed_by(tokens: Sequence[str]) -> int:
    """Where the parenthesis that opens is closed."""
    depth = 0
    for place, each in enumerate(tokens):
        depth += (each == "(") - (each == ")")
        if not depth:
            return place
    return -1


def named(value: Any) -> str:
    """Its class, and what it was given that is not as usual."""
    if not is_dataclass(value):
        return type(value).__name__ if hasattr(value, "states") else str(value)
    given = [
        (item.name, getattr(value, item.name))
        for item in fields(value)
        if item.init and item.repr and not item.name.startswith("_") and getattr(value, item.name) != _default(item)
    ]
    parts = [f"{name}={', '.join(found) if isinstance(found, Mapping) else named(found)}" for name, found in given]
    return f"{type(value).__name__}({', '.join(parts)})" if parts else type(value).__name__


def _default(item: Any) -> Any:
    return item.default_factory() if callable(item.default_factory) else item.default
