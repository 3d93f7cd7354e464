"""Stateful steps downstream of the first, and the chain that they make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from pyspark.sql import DataFrame

from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.reserved_columns import PREFIX
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Keyed
from floodplain.spark.downstream.plans import DELAY, Fragment, items, kind_of
from floodplain.spark.operator_names import numbered
from floodplain.state.tables import SEPARATOR
from floodplain.store.store import Store

UNTIMED = f"{PREFIX}untimed"
"""As the name of an event-time column: there is none, also where the rows have a column called as that of the source."""


@dataclass(frozen=True)
class Changes:
    """Arguments of ``start`` that take over what has changed since the last one."""

    evolve: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: "Changes") -> "Changes":
        return Changes({**self.evolve, **other.evolve}, {**self.rename, **other.rename})


class Step(Protocol):
    """A stateful step that reads another."""

    @property
    def name(self) -> str:
        """Of its state."""

    @property
    def deleted(self) -> frozenset[str]:
        """States that are to be forgotten."""

    def resumed(self, store: Store) -> "tuple[Step, Changes]":
        """It on the state that is there. Raises ``SchemaMismatch`` if it cannot go on with that."""

    def applied(self, stream: Stream, store: Store, mode: str) -> Stream:
        """The stream with this step. ``mode``: the output mode of the query, in lower case."""


class First(Protocol):
    """The stateful step that reads the source."""

    @property
    def deleted(self) -> frozenset[str]:
        """States that are to be forgotten."""

    def resumed(self, store: Store, name: str) -> "tuple[First, Changes]":
        """As that of a ``Step``. ``name``: of its state."""

    def begun(self, store: Store, name: str) -> Stream: ...


class BuiltIn:
    """A step whose states the user does not declare."""

    @property
    def deleted(self) -> frozenset[str]:
        return frozenset()

    def resumed(self, store: Store) -> tuple[Self, Changes]:  # noqa: ARG002
        return self, Changes()


@dataclass(frozen=True)
class Chain:
    """Stateful steps in the order of the dataflow, and what is stateless downstream of the last."""

    first: First
    first_name: str
    steps: tuple[Step, ...]
    last: Fragment
    has_watermark: bool = True
    """Whether Spark tells steps downstream of the last a watermark."""

    def resumed(self, store: Store) -> "tuple[Chain, Changes]":
        """It on the state that is there. Raises ``SchemaMismatch`` if a step cannot go on with that."""
        first, changes = self.first.resumed(store, self.first_name)
        steps: list[Step] = []
        for step in self.steps:
            on_state, more = step.resumed(store)
            steps.append(on_state)
            changes |= more
        return replace(self, first=first, steps=tuple(steps)), changes

    def stream(self, store: Store, mode: str) -> Stream:
        stream = self.first.begun(store, self.first_name)
        for step in self.steps:
            stream = step.applied(stream, store, mode)
        return stream if self.last.is_plain else stream.transform(self.last)

    @property
    def deleted(self) -> frozenset[str]:
        """Tables of states that are to be forgotten."""
        steps = [(self.first_name, self.first.deleted), *((step.name, step.deleted) for step in self.steps)]
        return frozenset(f"{name}{SEPARATOR}{state}" for name, states in steps for state in states)

    def then(self, step: Step, last: Fragment, *, has_watermark: bool | None = None) -> "Chain":
        known = self.has_watermark if has_watermark is None else has_watermark
        return replace(self, steps=(*self.steps, step), last=last, has_watermark=known)

    def named(self, kind: str) -> str:
        """The name of the next step, of this kind: with its number in the dataflow."""
        return numbered(kind, len(self.steps) + 2)

    def under(self, node: Any, child: int = 0) -> "Chain":
        return replace(self, last=self.last.under(node, child))


def keyed(
    stream: Stream,
    rows: Callable[[DataFrame], DataFrame] | None,
    name: str,
    keys: tuple[str, ...],
    process: Process,
    time: str | None,
) -> Stream:
    """The stream with an operator that has no changelog. ``rows`` makes its input of what the stream gives."""
    upstream = stream if rows is None else stream.transform(rows)
    return replace(upstream, node=Keyed(upstream.node, name, keys, process, event_time=time or UNTIMED), keys=())


def event_time_of(attributes: Any) -> Any:
    """The attribute that is the event time; None if there is none. Spark refuses several."""
    return next((each for each in items(attributes) if each.metadata().contains(DELAY)), None)


def is_window(attribute: Any) -> bool:
    """Whether its time is that of its end."""
    return kind_of(attribute.dataType()) == "StructType"
