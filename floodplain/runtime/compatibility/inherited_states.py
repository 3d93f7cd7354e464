"""Which states of one operator are carried over from earlier runs, under which name, and which are dropped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from floodplain.eventtime.times import END_MS, late_cutoff_ms
from floodplain.operators.kernel.dead_letters import DEAD_LETTERS
from floodplain.operators.kernel.definition import PROCESS, STATEFUL_PROCESSOR, OperatorSpec, plain
from floodplain.operators.kernel.event_order import WAITING
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import traits_of
from floodplain.runtime.compatibility.definition_rules import KEPT, Refusal
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.tables import NULL_MARK, SEPARATOR, stored_states
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.versions.records.definition import Definition, Parameter
from floodplain.versions.records.edit import DropTable, RenameTable
from floodplain.versions.records.manifest import Manifest

_OWN = (EVENT_TIMERS, PROCESSING_TIMERS, DEAD_LETTERS, WAITING)
"""Tables that operators have besides those of declared states."""
_WINDOWS = "window aggregate"
_FIXED = {
    "default": "keys without a value of their own would read another one",
    "ttl_ms": "what is there ends by the old one",
    "nullable": "values that were set to null would be taken for none",
}
"""Options of a declaration that must not change silently, besides what the schema of a table covers."""


def declared_states(process: Process) -> dict[str, Parameter]:
    states = {}
    for name, state in process.states().items():
        options = {each: getattr(state, each) for each in ("default", "nullable", "ttl_ms") if hasattr(state, each)}
        types = [str(getattr(state, each)) for each in ("type", "key", "value", "state") if hasattr(state, each)]
        states[name] = Parameter(plain(options), f"{type(state).__name__} {', '.join(types)}".strip())
    return states


def with_kept(new: OperatorSpec, process: Process) -> OperatorSpec:
    """With the states that each aggregate is made of."""
    kept = traits_of(process).states_by_aggregate()
    aggregates = [
        replace(aggregate, value={**aggregate.value, KEPT: kept.get(aggregate.name, [])}) for aggregate in new.aggregates
    ]
    return replace(new, aggregates=tuple(aggregates))


@dataclass
class StateChanges:
    """What becomes of the states of an operator."""

    definition: Definition
    """As recorded, with the present names of aggregates, and without those that are dropped."""
    structural: list[DropTable | RenameTable] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    """Columns that are renamed, old → new."""
    evolve: dict[str, Callable[[Any], Any] | None] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    """States that would be lost."""
    impossible: list[Refusal] = field(default_factory=list)
    """Arguments of ``start`` that cannot be carried out."""
    noted: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    """Arguments of ``start`` that were meant for this operator."""


class Inherited:
    """An operator on state that is there already."""

    def __init__(self, operator: KeyedOperator, old: Definition, new: OperatorSpec, base: Manifest) -> None:
        self._operator, self._old, self._new, self._base = operator, old, new, base
        known = {table: versions[-1] for table, versions in base.schemas.items()}
        self._held = {name: table for name, table in stored_states(operator.name, known).items() if name not in _OWN}
        self._lateness_before = self._earlier_lateness()

    def continued(self, operator: KeyedOperator) -> KeyedOperator:
        """With what it must know of definitions that it had before."""
        apart = [name for name, table in self._held.items() if table is not None]
        process = operator.traits.resumed(apart, self._lateness_before)
        return replace(operator, process=process, lateness_before=self._lateness_before)

    def definition(self, old: Definition) -> Definition:
        """To be recorded. ``old``: what was, under the names of today."""
        new = self._new.recorded
        aggregates = {
            name: msgspec.structs.replace(each, since=old.aggregates[name].since if name in old.aggregates else self._base.epoch)
            for name, each in new.aggregates.items()
        }
        return msgspec.structs.replace(new, aggregates=aggregates, states=self.declared, lateness=self._lateness_before)

    @property
    def declared(self) -> dict[str, Parameter]:
        """How its states are declared, where users do that."""
        return declared_states(self._operator.process) if self._new.kind == PROCESS else {}

    def changes(
        self,
        rename: Mapping[str, str],
        drop: Sequence[str],
        evolve: Mapping[str, Callable[[Any], Any] | None],
        former: str,
    ) -> StateChanges:
        """What the arguments of ``start`` and the declared states change for this operator. ``former``: its former name."""
        changes = StateChanges(self._old)
        for argument, old, new in self._meant(rename, former):
            self._rename(changes, f"{argument} to {new}", argument, old, new.rpartition(".")[2])
        for state, declared in self._operator.process.states().items():
            was = getattr(declared, "was", None)
            if was in self._held and state not in self._held:
                self._rename(changes, f"{self._operator.name}.{was} to {state}", None, was, state)
        for argument, name, _ in self._meant(dict.fromkeys(drop, ""), former):
            self._drop(changes, argument, name)
        for argument, name, _ in self._meant(dict.fromkeys(evolve, ""), former):
            was = next((old for old, new in changes.columns.items() if new == name), name)
            if was in self._held and name in self._operator.tables.places and not self._is_done(f"evolve {argument}", was, name):
                changes.used.append(argument)
                changes.evolve[name] = evolve[argument]
                changes.noted.append(f"evolve {argument}")
        self._compare_states(changes)
        if self._new.kind != STATEFUL_PROCESSOR:
            self._refuse_lost(changes)
        return changes

    def _compare_states(self, changes: StateChanges) -> None:
        """Refuses a state whose declaration has changed and whose values are not converted by ``evolve``."""
        former = {new: old for old, new in changes.columns.items()}
        for name, now in self.declared.items():
            old = self._old.states.get(name) or self._old.states.get(former.get(name, ""))
            if old is None or name in changes.evolve:
                continue
            for option, why in _FIXED.items():
                was, is_ = (each.value.get(option) for each in (old, now))
                if was != is_ and not (option == "nullable" and is_):
                    way_out = f"start(evolve={{'{self._operator.name}.{name}': None}}) takes the values over as if it had been so"
                    what = f"{option} of state {name}"
                    changes.refused.append(Refusal(self._operator.name, what, f"was {was!r}, is {is_!r}: {why}", way_out))

    def _is_done(self, note: str, was: str, name: str) -> bool:
        """Whether an earlier start has converted these values already, and they have the declared type."""
        place = self._operator.tables.places[name]
        wanted = next(schema for schema in self._operator.tables.schemas if schema.table == place.table)
        held = self._base.schemas.get(place.table, (wanted,))[-1]
        old = next((field.type for field in held.values if field.name in (was, place.column)), b"")
        same = any(field.name == place.column and field.type == old for field in wanted.values)
        return same and any(change.what == note for change in self._base.changes)

    def _meant(self, option: Mapping[str, str], former: str) -> Iterator[tuple[str, str, str]]:
        for argument, value in option.items():
            operator, _, name = argument.rpartition(".")
            if operator in ("", former, self._operator.name):
                yield argument, name, value

    def _rename(self, changes: StateChanges, words: str, argument: str | None, old: str, new: str) -> None:
        """``argument``: of ``start``; None if the declaration of the state has the rename (``was``)."""
        pairs = self._renamed_aggregate(changes, old, new)
        if pairs is None and old in self._held and new in self._operator.tables.places and new not in self._held:
            pairs = [(old, new)]
        if pairs is None and old in self._keys and new in self._operator.tables.key_columns.values():
            changes.columns[old] = new
            pairs = []
        if pairs is None:
            return
        for before, now in pairs:
            table = self._held[before]
            if table is None:
                changes.columns |= {before: now, before + NULL_MARK: now + NULL_MARK}
            else:
                changes.structural.append(RenameTable(table, f"{self._operator.name}{SEPARATOR}{now}"))
        changes.used += [] if argument is None else [argument]
        changes.noted.append(f"rename {words}")

    @property
    def _keys(self) -> list[str]:
        return [field.name for field in self._base.schemas[f"{self._operator.name}{SEPARATOR}{EVENT_TIMERS}"][-1].keys]

    def _renamed_aggregate(self, changes: StateChanges, old: str, new: str) -> list[tuple[str, str]] | None:
        """The states that are renamed with the aggregate; None if there is no such aggregate."""
        aggregates = dict(changes.definition.aggregates)
        renamed = next((each for each in self._new.aggregates if each.name == new), None)
        if old not in aggregates or new in aggregates or renamed is None:
            return None
        if self._new.kind == _WINDOWS:
            why = f"it cannot be called {new} while windows are open: they keep it under its name"
            changes.impossible.append(Refusal(self._operator.name, f"aggregate {old}", why))
            return []
        before = aggregates.pop(old)
        kept = before.value.get(KEPT, [])
        aggregates[new] = msgspec.structs.replace(before, value={**before.value, KEPT: renamed.value[KEPT]})
        changes.definition = msgspec.structs.replace(changes.definition, aggregates=aggregates)
        return [(one, other) for one, other in zip(kept, renamed.value[KEPT], strict=False) if one != other]

    def _drop(self, changes: StateChanges, argument: str, name: str) -> None:
        aggregates = dict(changes.definition.aggregates)
        if name in aggregates and all(each.name != name for each in self._new.aggregates):
            del aggregates[name]
            changes.definition = msgspec.structs.replace(changes.definition, aggregates=aggregates)
        elif name not in self._held or name in self._operator.tables.places:
            return
        changes.used.append(argument)
        changes.noted.append(f"drop {argument}")
        table = self._held.get(name)
        changes.structural += [] if table is None else [DropTable(table)]

    def _refuse_lost(self, changes: StateChanges) -> None:
        """Refuses to lose a recorded state that no operator would read any more."""
        operator = self._operator.name
        gone = {*changes.columns, *(argument.rpartition(".")[2] for argument in changes.used)}
        gone |= {update.table.removeprefix(operator + SEPARATOR) for update in changes.structural}
        gone |= self._of_dropped_aggregates(changes)
        for state in self._held.keys() - self._operator.tables.places.keys() - gone:
            way_out = (
                f"start(drop=['{operator}.{state}']) drops it; start(rename={{'{operator}.{state}': '…'}}), or was='{state}' in "
                "its declaration, gives it another name"
            )
            why = "the state has it, and this pipeline does not"
            changes.refused.append(Refusal(operator, f"state {state}", why, way_out))

    def _of_dropped_aggregates(self, changes: StateChanges) -> set[str]:
        kept = {state for each in changes.definition.aggregates.values() for state in each.value.get(KEPT, ())}
        return {state for each in self._old.aggregates.values() for state in each.value.get(KEPT, ())} - kept

    def _earlier_lateness(self) -> tuple[tuple[int, int], ...]:
        """Shorter lateness that still matters, if there was any."""
        was, now = (parameters.get("lateness") for parameters in (self._old.parameters, self._new.recorded.parameters))
        watermark_ms = self._base.watermarks.get(EVENT_TIME)
        if was is None or now is None or watermark_ms is None:
            return self._old.lateness
        longer = [] if now.value <= was.value else [(self._until_ms(watermark_ms), was.value)]
        before = [*self._old.lateness, *longer]
        gone = late_cutoff_ms(watermark_ms, now.value, ())
        return tuple((until, shorter) for until, shorter in before if until - shorter > gone)

    def _until_ms(self, watermark_ms: int) -> int:
        """Up to when the former lateness applies: the watermark, or the latest expiry of state by event time, which was
        computed with the former lateness."""
        ends = [watermark_ms]
        for table in (schema.table for schema in self._operator.tables.schemas if schema.ttl_clock == EVENT_TIME):
            ends += [run.last_expiry_ms or END_MS for run in self._base.runs.get(table, ())]
        return max(ends)
