"""The states of one operator that were there before: which go on, under which name, and which go."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from floodplain.eventtime.times import END_MS, late_cutoff_ms
from floodplain.operators.kernel.dead_letters import DEAD_LETTERS
from floodplain.operators.kernel.definition import PROCESS, STATEFUL_PROCESSOR, Described, plain
from floodplain.operators.kernel.event_order import WAITING
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import traits_of
from floodplain.runtime.compatibility.definition_rules import KEPT, Refusal
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.tables import NULL_MARK, SEPARATOR, held_states
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
"""What may not change in a declaration without a word, besides what tables say."""


def declared_states(process: Process) -> dict[str, Parameter]:
    found = {}
    for name, state in process.states().items():
        options = {each: getattr(state, each) for each in ("default", "nullable", "ttl_ms") if hasattr(state, each)}
        types = [str(getattr(state, each)) for each in ("type", "key", "value", "state") if hasattr(state, each)]
        found[name] = Parameter(plain(options), f"{type(state).__name__} {', '.join(types)}".strip())
    return found


def with_kept(new: Described, process: Process) -> Described:
    """With the states that each aggregate is made of."""
    kept = traits_of(process).kept_by()
    aggregates = [replace(given, value={**given.value, KEPT: kept.get(given.name, [])}) for given in new.aggregates]
    return replace(new, aggregates=tuple(aggregates))


@dataclass
class StateChanges:
    """What becomes of the states of an operator."""

    definition: Definition
    """As recorded, with the names that aggregates have now, and without those that go."""
    structural: list[DropTable | RenameTable] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    """Columns that are renamed, old → new."""
    evolve: dict[str, Callable[[Any], Any] | None] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    """States that would be lost."""
    impossible: list[Refusal] = field(default_factory=list)
    """What ``start`` was told and cannot be done."""
    noted: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    """What ``start`` was told that was meant for this operator."""


class Inherited:
    """An operator on state that is there already."""

    def __init__(self, operator: KeyedOperator, old: Definition, new: Described, base: Manifest) -> None:
        self._operator, self._old, self._new, self._base = operator, old, new, base
        known = {table: versions[-1] for table, versions in base.schemas.items()}
        self._held = {name: table for name, table in held_states(operator.name, known).items() if name not in _OWN}
        self._lateness_before = self._earlier_lateness()

    def continued(self, operator: KeyedOperator) -> KeyedOperator:
        """With what it must know of definitions that it had before."""
        apart = [name for name, table in self._held.items() if table is not None]
        process = operator.traits.continued(apart, self._lateness_before)
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
        """What ``start`` was told, as far as it is meant for this operator, and what its states say. ``former``: what it was
        called."""
        found = StateChanges(self._old)
        for told, old, new in self._meant(rename, former):
            self._rename(found, f"{told} to {new}", told, old, new.rpartition(".")[2])
        for state, declared in self._operator.process.states().items():
            was = getattr(declared, "was", None)
            if was in self._held and state not in self._held:
                self._rename(found, f"{self._operator.name}.{was} to {state}", None, was, state)
        for told, name, _ in self._meant(dict.fromkeys(drop, ""), former):
            self._drop(found, told, name)
        for told, name, _ in self._meant(dict.fromkeys(evolve, ""), former):
            was = next((old for old, new in found.columns.items() if new == name), name)
            if was in self._held and name in self._operator.tables.places and not self._is_done(f"evolve {told}", was, name):
                found.used.append(told)
                found.evolve[name] = evolve[told]
                found.noted.append(f"evolve {told}")
        self._compare_states(found)
        if self._new.kind != STATEFUL_PROCESSOR:
            self._refuse_lost(found)
        return found

    def _compare_states(self, found: StateChanges) -> None:
        """A state that is declared otherwise, and whose values are not made anew."""
        former = {new: old for old, new in found.columns.items()}
        for name, now in self.declared.items():
            old = self._old.states.get(name) or self._old.states.get(former.get(name, ""))
            if old is None or name in found.evolve:
                continue
            for option, why in _FIXED.items():
                was, is_ = (each.value.get(option) for each in (old, now))
                if was != is_ and not (option == "nullable" and is_):
                    way_out = f"start(evolve={{'{self._operator.name}.{name}': None}}) takes the values over as if it had been so"
                    what = f"{option} of state {name}"
                    found.refused.append(Refusal(self._operator.name, what, f"was {was!r}, is {is_!r}: {why}", way_out))

    def _is_done(self, told: str, was: str, name: str) -> bool:
        """Whether an earlier start made these values anew, which are of the type that is wanted."""
        place = self._operator.tables.places[name]
        wanted = next(schema for schema in self._operator.tables.schemas if schema.table == place.table)
        held = self._base.schemas.get(place.table, (wanted,))[-1]
        old = next((field.type for field in held.values if field.name in (was, place.column)), b"")
        same = any(field.name == place.column and field.type == old for field in wanted.values)
        return same and any(change.what == told for change in self._base.changes)

    def _meant(self, given: Mapping[str, str], former: str) -> Iterator[tuple[str, str, str]]:
        for told, value in given.items():
            operator, _, name = told.rpartition(".")
            if operator in ("", former, self._operator.name):
                yield told, name, value

    def _rename(self, found: StateChanges, words: str, told: str | None, old: str, new: str) -> None:
        """``told``: as ``start`` has it; None if the state itself says so."""
        pairs = self._renamed_aggregate(found, old, new)
        if pairs is None and old in self._held and new in self._operator.tables.places and new not in self._held:
            pairs = [(old, new)]
        if pairs is None and old in self._keys and new in self._operator.tables.key_columns.values():
            found.columns[old] = new
            pairs = []
        if pairs is None:
            return
        for before, now in pairs:
            table = self._held[before]
            if table is None:
                found.columns |= {before: now, before + NULL_MARK: now + NULL_MARK}
            else:
                found.structural.append(RenameTable(table, f"{self._operator.name}{SEPARATOR}{now}"))
        found.used += [] if told is None else [told]
        found.noted.append(f"rename {words}")

    @property
    def _keys(self) -> list[str]:
        return [field.name for field in self._base.schemas[f"{self._operator.name}{SEPARATOR}{EVENT_TIMERS}"][-1].keys]

    def _renamed_aggregate(self, found: StateChanges, old: str, new: str) -> list[tuple[str, str]] | None:
        """The states that change their names with it; None if there is no such aggregate."""
        aggregates = dict(found.definition.aggregates)
        given = next((each for each in self._new.aggregates if each.name == new), None)
        if old not in aggregates or new in aggregates or given is None:
            return None
        if self._new.kind == _WINDOWS:
            why = f"it cannot be called {new} while windows are open: they keep it under its name"
            found.impossible.append(Refusal(self._operator.name, f"aggregate {old}", why))
            return []
        before = aggregates.pop(old)
        kept = before.value.get(KEPT, [])
        aggregates[new] = msgspec.structs.replace(before, value={**before.value, KEPT: given.value[KEPT]})
        found.definition = msgspec.structs.replace(found.definition, aggregates=aggregates)
        return [(one, other) for one, other in zip(kept, given.value[KEPT], strict=False) if one != other]

    def _drop(self, found: StateChanges, told: str, name: str) -> None:
        aggregates = dict(found.definition.aggregates)
        if name in aggregates and all(each.name != name for each in self._new.aggregates):
            del aggregates[name]
            found.definition = msgspec.structs.replace(found.definition, aggregates=aggregates)
        elif name not in self._held or name in self._operator.tables.places:
            return
        found.used.append(told)
        found.noted.append(f"drop {told}")
        table = self._held.get(name)
        found.structural += [] if table is None else [DropTable(table)]

    def _refuse_lost(self, found: StateChanges) -> None:
        """A state that is there and that nobody would read any more never goes without a word."""
        operator = self._operator.name
        gone = {*found.columns, *(told.rpartition(".")[2] for told in found.used)}
        gone |= {update.table.removeprefix(operator + SEPARATOR) for update in found.structural}
        gone |= self._of_dropped_aggregates(found)
        for state in self._held.keys() - self._operator.tables.places.keys() - gone:
            way_out = (
                f"start(drop=['{operator}.{state}']) drops it; start(rename={{'{operator}.{state}': '…'}}), or was='{state}' in "
                "its declaration, gives it another name"
            )
            why = "the state has it, and this pipeline does not"
            found.refused.append(Refusal(operator, f"state {state}", why, way_out))

    def _of_dropped_aggregates(self, found: StateChanges) -> set[str]:
        kept = {state for each in found.definition.aggregates.values() for state in each.value.get(KEPT, ())}
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
        """Up to when rows are judged by the lateness that there was: now; or when all that ends by event time has ended, since it
        was kept for no longer than that lateness needed it."""
        ends = [watermark_ms]
        for table in (schema.table for schema in self._operator.tables.schemas if schema.ttl_clock == EVENT_TIME):
            ends += [run.last_expiry_ms or END_MS for run in self._base.runs.get(table, ())]
        return max(ends)
