"""What a changed job does to the state at its start: decided before anything is written, then done by one edit."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from floodplain.errors import BadInput, SchemaMismatch, UserError, short
from floodplain.eventtime.watermarks import NEWEST
from floodplain.operators.kernel.definition import PROCESS
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.windows.storage import WINDOWS
from floodplain.plan.definitions import described
from floodplain.plan.nodes import Keyed
from floodplain.runtime.compatibility.definition_rules import Refusal, compare, refuse
from floodplain.runtime.compatibility.inherited_states import Inherited, StateChanges, declared_states, with_kept
from floodplain.state.python_values import user_values
from floodplain.state.tables import evolved
from floodplain.store.compaction.rewrite import rewrite
from floodplain.store.store import Writer
from floodplain.versions.log.commit import commit
from floodplain.versions.log.requirements import RequireRuns, RequireSchema
from floodplain.versions.records.definition import Definition
from floodplain.versions.records.edit import (
    DropDefinition,
    DropTable,
    NoteChange,
    PutDefinition,
    PutSchema,
    RenameTable,
    ReplaceRuns,
    Update,
)
from floodplain.versions.records.manifest import Manifest, preview
from floodplain.versions.records.schema import TableSchema, field_named
from floodplain.versions.records.user_names import UserNames, operator_of

Structural: TypeAlias = DropTable | RenameTable | DropDefinition
Evolve: TypeAlias = Callable[[Any], Any] | None
"""From an old value to a new one; None: values stay as they are."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartChanges:
    """What ``start`` was told to do with what is in the state. The name of a state may have that of its operator before it."""

    drop: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    evolve: Mapping[str, Evolve] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        drop: Sequence[str] = (),
        reset: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        evolve: Mapping[str, Evolve] | None = None,
    ) -> "StartChanges":
        """As users pass them."""
        return cls(_names("drop", drop), _names("reset", reset), dict(rename or {}), dict(evolve or {}))


def _names(option: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise BadInput(f"{option}={names!r} is a text: pass a list of names, {option}=[{names!r}]")
    return tuple(names)


NO_CHANGES = StartChanges()


@dataclass(frozen=True)
class Rewrite:
    """A state whose values are all to be made anew."""

    after: TableSchema
    column: str
    was: str
    """What the column was called before."""
    function: Evolve
    state: str
    """As messages call it."""

    def remade(self, values: pa.Array) -> pa.Array:
        """Raises ``UserError`` naming the value that the function fails on, or gives something for that does not fit."""
        type_ = field_named(self.after, self.column).arrow
        if self.function is None:
            return values.cast(type_)
        return pa.array([self._new(value, type_) for value in user_values(values)], type_)

    def _new(self, value: Any, type_: pa.DataType) -> Any:
        if value is None:
            return None
        try:
            assert self.function is not None
            return pa.scalar(self.function(value), type_)
        except Exception as error:
            raise UserError(
                f"{type(error).__name__} where state {self.state} evolves to {type_}, value {short(value)}: {error}. Nothing was "
                "changed"
            ) from error


class Migration:
    """From the state as it is to one that the pipeline can go on with. Writes nothing.

    Operators are bound one by one, each after those it reads from. Then ``check`` raises if one cannot go on; if it does not,
    ``updates`` and ``rewrites`` are what is to be done.
    """

    def __init__(self, head: Manifest, operators: Collection[str], changes: StartChanges, location: str) -> None:
        self.head, self._changes, self._location = head, changes, location
        self._names = set(operators)
        self._former: dict[str, str] = {}
        self._structural: list[Structural] = []
        self._schemas: list[TableSchema] = []
        self._definitions: dict[str, Definition] = {}
        self._refused: list[Refusal] = []
        self._lost: list[Refusal] = []
        self._mismatch: SchemaMismatch | None = None
        self._used: dict[str, str] = {}
        self._adopted: list[str] = []
        self.notes: list[str] = []
        """What is done, in words, as far as it is more than new tables."""
        self.rewrites: list[Rewrite] = []
        self.base = head
        """The state once tables that go are gone and others have their new names."""
        self._rename_operators()
        self._drop_operators()
        for name in changes.reset:
            if name not in self._names:
                raise BadInput(
                    f"reset: this pipeline has no operator {name!r}; it has: {', '.join(sorted(self._names)) or 'none'}"
                )

    def bound(self, step: Keyed, operator: KeyedOperator) -> KeyedOperator:
        """The operator as it goes on with what is in the state, if it can."""
        name, new = step.name, with_kept(described(step, operator.event_time), operator.process)
        if self._begins_anew(name, new.recorded):
            self._restructure(*map(DropTable, self._tables_of(name)), *self._undefined(name))
        if not self._tables_of(name):
            declared = declared_states(operator.process) if new.kind == PROCESS else {}
            self._definitions[name] = msgspec.structs.replace(new.recorded, states=declared)
            self._schemas += operator.tables.schemas
            return operator
        old = self.base.definitions.get(name)
        if old is None:
            self._adopted.append(name)
        inherited = Inherited(operator, old or new.recorded, new, self.base)
        states = inherited.changes(self._changes.rename, self._changes.drop, self._changes.evolve, self._former.get(name, name))
        comparison = compare(name, states.definition, new)
        # A state that is lost because of another difference would only be reported twice.
        self._refused += states.impossible or comparison.refused
        self._lost += [] if states.impossible or comparison.refused else states.refused
        self.notes += [*comparison.noted, *states.noted]
        for used in states.used:
            self._use(used, name)
        operator = inherited.continued(operator)
        self._restructure(*states.structural)
        self._definitions[name] = inherited.definition(states.definition)
        self._evolve(operator, states, (WINDOWS,) if old is not None and new.aggregates else ())
        return operator

    def check(self) -> None:
        """Raises ``IncompatibleChange`` for what the state cannot follow, ``BadInput`` for names that mean nothing here."""
        names = UserNames({**self.base.definitions, **self._definitions})
        refuse(self._refused, self._location, names)
        if self._mismatch is not None:
            raise SchemaMismatch(names.in_text(str(self._mismatch))) from self._mismatch
        refuse(self._lost, self._location, names)
        for option in ("drop", "rename", "evolve"):
            for name in getattr(self._changes, option):
                if name not in self._used and not self._was_done(option, name):
                    known = ", ".join(sorted(self.head.schemas.keys() - {NEWEST})) or "nothing"
                    raise BadInput(f"{option}: {name!r} is nothing in the state that could be meant; its tables are: {known}")
        if self._adopted:
            _log.warning(
                "the state at %s is of a release that did not record what operators do: what this pipeline says of %s is taken "
                "for it, and later changes are held against that",
                self._location,
                ", ".join(self._adopted),
            )

    def updates(self) -> list[Update]:
        """All that changes but values. Requires: ``check`` raised nothing."""
        put = [
            PutDefinition(name, definition)
            for name, definition in self._definitions.items()
            if definition != self.base.definitions.get(name) or name in self._former
        ]
        return [*self._structural, *map(PutSchema, self._schemas), *put, *map(NoteChange, self.notes)]

    def _restructure(self, *updates: Structural) -> None:
        self._structural += updates
        self.base = preview(self.base, updates)

    def _undefined(self, operator: str) -> list[Structural]:
        return [DropDefinition(operator)] if operator in self.base.definitions else []

    def _tables_of(self, operator: str) -> list[str]:
        return [table for table in self.base.schemas if operator_of(table) == operator]

    def _use(self, name: str, operator: str) -> None:
        other = self._used.setdefault(name, operator)
        if other != operator:
            raise BadInput(f"{name!r} may be of operator {other} or of {operator}: say which, as in '{operator}.{name}'")

    def _was_done(self, option: str, name: str) -> bool:
        """Whether an earlier start did it: a job may be started again with the same arguments."""
        notes = {"drop": f"drop {name}", "evolve": f"evolve {name}"}
        done = notes.get(option) or f"rename {name} to {self._changes.rename.get(name)}"
        return any(change.what == done for change in self.head.changes)

    def _rename_operators(self) -> None:
        held = _operators(self.head)
        for old, new in self._changes.rename.items():
            if old not in held or old in self._names:
                continue
            if new not in self._names or new in held:
                why = "the state has one of that name already" if new in held else "this pipeline has none of that name"
                raise BadInput(f"rename: operator {old!r} is to be called {new!r}, and {why}")
            self._use(old, new)
            self._former[new] = old
            definition = self.base.definitions.get(old)
            renamed = [RenameTable(table, new + table.removeprefix(old)) for table in self._tables_of(old)]
            self._restructure(*renamed, *self._undefined(old))
            if definition is not None:
                self.base = msgspec.structs.replace(self.base, definitions={**self.base.definitions, new: definition})
            self.notes.append(f"rename {old} to {new}")

    def _drop_operators(self) -> None:
        for name in self._changes.drop:
            if name in _operators(self.base) - self._names:
                self._use(name, name)
                self._restructure(*map(DropTable, self._tables_of(name)), *self._undefined(name))
                self.notes.append(f"drop {name}")
        left = sorted(_operators(self.base) - self._names)
        if left:
            raise BadInput(
                f"the state at {self._location} has operator {left[0]!r}, which this pipeline does not have. If the step was "
                f"renamed, say so: start(rename={{{left[0]!r}: '…'}}), or give it its old name: process(…, name={left[0]!r}). If "
                f"its state is to go, say so: start(drop=[{left[0]!r}])"
            )

    def _begins_anew(self, name: str, new: Definition) -> bool:
        """Whether the operator starts empty: it has no rows, or ``reset`` requests it and no earlier start has done it."""
        tables = self._tables_of(name)
        if tables and not any(self.base.runs.get(table) for table in tables):
            return True
        note = f"reset {name}"
        if name not in self._changes.reset or not tables:
            return False
        old = self.base.definitions.get(name)
        if old is not None and _same(old, new) and any(change.what == note for change in self.head.changes):
            _log.warning("operator %s was reset already and has not been changed since: it goes on", name)
            return False
        self.notes.append(note)
        return True

    def _evolve(self, operator: KeyedOperator, states: StateChanges, compared: Collection[str]) -> None:
        known = {table: versions[-1] for table, versions in self.base.schemas.items()}
        try:
            schemas = evolved(operator.tables, known, states.columns, states.evolve, compared)
        except SchemaMismatch as error:
            name = operator.name
            ways_out = (
                f"start(evolve={{'{name}.…': function}}) makes new values of the old ones; start(reset=['{name}']) begins empty"
            )
            self._mismatch = self._mismatch or SchemaMismatch(f"{error}. Ways out: {ways_out}")
            return
        self._schemas += schemas
        after = {schema.table: schema for schema in schemas}
        for state, function in states.evolve.items():
            place = operator.tables.places[state]
            if place.table in after and place.column is not None:
                named = f"{operator.name}.{state}"
                was = next((old for old, new in states.columns.items() if new == place.column), place.column)
                self.rewrites.append(Rewrite(after[place.table], place.column, was, function, named))


def migrate(writer: Writer, migration: Migration) -> None:
    """Commits the migration as one edit. If it does more than create tables, it is its own epoch, which a rollback undoes."""
    updates, history = migration.updates(), writer.store.history
    if not updates:
        return
    if not migration.notes:
        tables = {
            update.schema.table: migration.head.schema(update.schema.table) for update in updates if isinstance(update, PutSchema)
        }
        needed = [RequireSchema(table, schema.id if schema else 0) for table, schema in tables.items()]
        commit(history, updates, needed, token=writer.token)
        return
    commit_migration(writer, migration)


def commit_migration(writer: Writer, migration: Migration, also: Sequence[Update] = ()) -> int:
    """Commits the migration as an epoch of its own, by one edit, and returns its number. ``also``: what else the edit has."""
    updates, epoch = migration.updates(), writer.epoch()
    replaced = _rewritten(writer, migration.base, migration.rewrites)
    runs = {run.id: run for runs in migration.head.runs.values() for run in runs}
    requirements = [
        requirement for update in replaced for requirement in RequireRuns.of((runs[run] for run in update.dropped), update.groups)
    ]
    # It has no output, so no sink is to be called for it.
    epoch.commit(also=[*updates, *replaced, *also], requirements=requirements, published=True)
    return epoch.number


def _rewritten(writer: Writer, base: Manifest, requested: Sequence[Rewrite]) -> list[ReplaceRuns]:
    replacements, store = [], writer.store
    for table in dict.fromkeys(each.after.table for each in requested):
        mine = [each for each in requested if each.after.table == table]
        columns = {each.column: (each.was, each.remade) for each in mine}
        replacements += rewrite(store.history, store.open_runs, base, mine[0].after, columns)
    return replacements


def _operators(manifest: Manifest) -> set[str]:
    return {operator_of(table) for table in manifest.schemas if table != NEWEST}


def _same(old: Definition, new: Definition) -> bool:
    """Whether they say the same, whatever happened on the way."""
    bare = [
        {name: each.value for name, each in {**one.parameters, **one.aggregates}.items()} | {"kind": one.kind}
        for one in (old, new)
    ]
    return bare[0] == bare[1]
