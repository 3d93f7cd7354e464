"""Binds a plan's operators to the schemas of their inputs and to the state that they continue."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.expressions.columns import check_there
from floodplain.operators.kernel.event_order import WAITING
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.reserved_columns import check_not_reserved
from floodplain.plan.changelog_checks import check_all_came, check_weight
from floodplain.plan.nodes import MAIN, Extend, Input, Keyed, Node, Outlet, Plan, Select, Side, Transform, Union, sources_of
from floodplain.runtime.compatibility.inherited_output import check_unpublished, check_waiting
from floodplain.runtime.compatibility.migration import Migration
from floodplain.runtime.engine import Engine, StateLocation, apply_stateless
from floodplain.runtime.operator_binding import fitted_operator
from floodplain.runtime.preaggregation_policy import Measured, combiner_of
from floodplain.sinks.row_checks import SinkCheck
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.task_writer import conflict_before_damage
from floodplain.versions.log.requirements import RequireLease


@dataclass(frozen=True)
class TimerTable:
    """A table of an operator that holds times to wait for."""

    table: str
    operator: KeyedOperator
    by_event_time: bool


@dataclass(frozen=True)
class BoundPlan:
    """A plan on its state, its operators bound to the schemas of their inputs."""

    place: StateLocation
    plan: Plan
    engine: Engine
    empty: Mapping[str, Any] = field(default_factory=dict)
    """Input → its columns without rows, as operators get them."""
    operators: Mapping[str, KeyedOperator] = field(default_factory=dict)
    schemas: Mapping[tuple[str, str], pa.Schema] = field(default_factory=dict)
    """The columns of each output of each operator, and of what stateless steps stage."""
    checks: Mapping[tuple[str, str], tuple[SinkCheck, ...]] = field(default_factory=dict)
    """What sinks require of the rows that are staged for them."""
    measured: dict[str, Measured] = field(default_factory=dict)
    """Operator → what the last epoch that had rows has shown."""

    def schema_of(self, outlet: Outlet) -> pa.Schema:
        """The columns of what this outlet gets."""
        return self.schemas[outlet.staged_as]

    @property
    def timers(self) -> Iterator[TimerTable]:
        for operator in self.operators.values():
            places = operator.tables.places
            yield TimerTable(places[EVENT_TIMERS].table, operator, by_event_time=True)
            yield TimerTable(places[PROCESSING_TIMERS].table, operator, by_event_time=False)
            if operator.in_order is not None:
                yield TimerTable(places[WAITING].table, operator, by_event_time=True)

    @property
    def follows_watermark(self) -> bool:
        """Whether an operator wants to know of a watermark that moves, even if no timer is due."""
        return any(operator.traits.follows_watermark for operator in self.operators.values())

    @property
    def preaggregates(self) -> dict[str, bool]:
        """Operator → whether its rows would be pre-aggregated in the next epoch, as far as the last ones tell."""
        return {
            name: combiner_of(operator.process, (), self.measured.get(name)) is not None
            for name, operator in self.operators.items()
        }


class Binder:
    """Binds one plan, each operator after those upstream of it. Writes nothing."""

    def __init__(self, place: StateLocation, plan: Plan, engine: Engine, migration: Migration) -> None:
        self._place, self._plan, self._engine, self._migration = place, plan, engine, migration
        self._operators: dict[str, KeyedOperator] = {}
        self._schemas: dict[tuple[str, str], pa.Schema] = {}
        self._rows: dict[Node, Any] = {}

    def bind(self, empty: Mapping[str, Any]) -> BoundPlan:
        """``empty`` has the columns of each input and no rows.

        Raises if a step does not fit its input, or if the state has something that this plan cannot take over.
        """
        for node in self._plan.nodes:
            self._rows[node] = self._bound_rows(node, empty)
        for outlet in self._plan.outlets:
            self._schemas.setdefault(outlet.staged_as, self._engine.schema(self._rows[outlet.node]))
        self._check_inherited()
        return BoundPlan(self._place, self._plan, self._engine, empty, self._operators, self._schemas)

    def _bound_rows(self, node: Node, empty: Mapping[str, Any]) -> Any:
        """The columns of what the step gives, without rows."""
        match node:
            case Input(tag=tag):
                check_not_reserved(f"input {tag}".strip(), self._engine.schema(empty[tag]).names)
                return empty[tag]
            case Transform() | Select() | Extend() | Union():
                return self._stateless(node)
            case Side(parent=parent, output=output):
                return self._engine.empty(self._side_schema(parent.name, output))
            case Keyed():
                return self._engine.empty(self._bind_operator(node).output)

    def _bind_operator(self, node: Keyed) -> KeyedOperator:
        fitted = fitted_operator(node, self._engine.schema(self._rows[node.parent]), self._plan)
        operator = self._migration.bound(node, fitted)
        upstream = [self._operators[source.name] for source in sources_of(node.parent)]
        check_all_came(operator, upstream, self._migration.base)
        self._operators[node.name] = operator
        for output, schema in {MAIN: operator.output, **operator.sides}.items():
            check_not_reserved(f"operator {node.name}", schema.names)
            self._schemas[node.name, output] = schema
        return operator

    def _stateless(self, node: Transform | Select | Extend | Union) -> Any:
        if isinstance(node, Select):
            reader = next((f"operator {step.name}: " for step in self._plan.operators if step.parent is node), "")
            check_there(node.columns, self._engine.schema(self._rows[node.parent]), reader if node.chosen else "")
        rows = apply_stateless(node, self._plan, self._engine, self._rows.__getitem__)
        if isinstance(node, Transform):
            check_not_reserved("transform", self._engine.schema(rows).names)
            if node.changes:
                check_weight(self._engine.schema(rows))
        return rows

    def _side_schema(self, operator: str, output: str) -> pa.Schema:
        sides = self._operators[operator].sides
        if output not in sides:
            raise BadInput(f"{operator} has no side output {output!r}; it has: {', '.join(sides) or 'none'}")
        return sides[output]

    def _check_inherited(self) -> None:
        """Raises if something in the state does not fit the plan."""
        store = self._place.store
        outputs = {outlet.staged_as: self._schemas[outlet.staged_as] for outlet in self._plan.outlets}
        self._migration.check()
        with conflict_before_damage(store.history, [RequireLease(self._place.writer.token)]):
            check_unpublished(store.head, outputs, store.history.blobs)
        check_waiting(Snapshot(self._migration.base, store.open_runs, store.history), self._operators.values())
