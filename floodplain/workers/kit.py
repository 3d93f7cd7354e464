"""What a worker is launched with: the operators of its query, and where state and coordinator are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.traits import traits_of
from floodplain.runtime.binder import BoundPlan
from floodplain.settings import StoreSettings
from floodplain.sinks.row_checks import SinkCheck
from floodplain.workers.channel import Credentials

Dumps: TypeAlias = Callable[[Any], bytes]
Named = TypeVar("Named")
Point: TypeAlias = Literal["read", "pull", "serve", "take", "process", "answer"]


ALONE_S = 10.0


def go_on(_: Point) -> None:
    """Nothing happens there."""


@dataclass(frozen=True)
class WorkerKit:
    """Shipped with the launch of a worker. Commands name operators; code never travels with them."""

    address: tuple[str, int]
    """The coordinator's."""
    credentials: Credentials
    location: str = field(repr=False)
    settings: StoreSettings
    options: Mapping[str, str] = field(repr=False)
    operators: Mapping[str, bytes] = field(repr=False)
    """By name, as ``load`` reads them."""
    checks: Mapping[tuple[str, str], bytes] = field(repr=False)
    """Operator and output → what its sinks ask of rows."""
    load: Callable[[bytes], Any] = field(repr=False)
    alone_s: float = ALONE_S
    """A worker that has heard nothing of its driver for so long ends, also in the middle of user code."""
    reach: Callable[["Point"], None] = go_on
    """Called where the worker comes to a point of its work: where tests put faults."""

    @classmethod
    def of(
        cls,
        bound: BoundPlan,
        address: tuple[str, int],
        credentials: Credentials,
        dumps: Dumps,
        load: Callable[[bytes], Any],
        alone_s: float = ALONE_S,
    ) -> "WorkerKit":
        """For the operators of a plan. ``dumps``: how they travel; ``load``: how they are read again."""
        place = bound.place
        return cls(
            address=address,
            credentials=credentials,
            location=place.location,
            settings=place.settings,
            options=dict(place.options),
            operators=_dumped(bound.operators, dumps),
            checks=_dumped(bound.checks, dumps),
            load=load,
            alone_s=alone_s,
        )

    def with_plan(self, bound: BoundPlan, dumps: Dumps) -> "WorkerKit":
        """The same for the operators of another plan."""
        return replace(self, operators=_dumped(bound.operators, dumps), checks=_dumped(bound.checks, dumps))

    def operator(self, name: str, fixed: bytes = b"") -> KeyedOperator:
        """A fresh copy, so that nothing that a try leaves in it reaches the next."""
        operator: KeyedOperator = self.load(self.operators[name])
        return replace(operator, process=traits_of(operator.process).with_fixed(fixed))

    def checks_of(self, operator: str, output: str) -> tuple[SinkCheck, ...]:
        made: tuple[SinkCheck, ...] = self.load(self.checks[operator, output])
        return made


def _dumped(parts: Mapping[Named, Any], dumps: Dumps) -> dict[Named, bytes]:
    return {name: dumps(part) for name, part in parts.items()}
