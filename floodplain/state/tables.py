"""Maps the declared states of an operator to tables.

* All states with one entry per key (``Value``, ``Reducing``, ``Aggregating``) are columns of one table named after the
  operator. Those that expire by event time are in a second table, because a table has one clock.
* Each list, map, set and timer is a table of its own, named ``<operator>__<state>``. So is state without a key: a task
  value is keyed by its slot, a broadcast map by its entry key.
* **Absent or null.** A column is null where the state is absent: never set, cleared or expired; the reader applies the
  default. The column ``<state>__null`` is true if a ``Value`` was *set* to null, else null. It expires with the value, so an
  expired null is absent again. The value's own column keeps its plain type, so that a query on the state reads ``views`` and
  not ``views.value``. (A presence bitmap of all states could not expire per state; a struct around each value would be in the
  way of merges and of every query.) The other kinds have no such column: a merge ignores nulls, and an element of a list or
  map exists if its row does.
* Names of users never contain ``__``, so table names are unique.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from floodplain.errors import BadName, SchemaMismatch
from floodplain.state.descriptors import (
    EVENT_TIME,
    WATERMARKS,
    Aggregating,
    Broadcast,
    List,
    Map,
    Reducing,
    Set,
    State,
    TaskValue,
    Timers,
    Value,
)
from floodplain.state.types import as_fields
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.rows.evolution import evolve
from floodplain.store.rows.widening import changes_inside
from floodplain.store.store import Writer
from floodplain.tiers.paths import checked_name
from floodplain.versions.records import user_names
from floodplain.versions.records.schema import PROCESSING_TIME, TableSchema

SEPARATOR = user_names.SEPARATOR
NULL_MARK = user_names.NULL_MARK
_EVENT_VALUES = "___event"
SLOT = "slot"
SLOTS = "slots"
"""The column of a task value with the number of slots when it was written."""

KeySchema: TypeAlias = str | pa.Schema | Mapping[str, str | pa.DataType]
OnePerKey: TypeAlias = Value | Reducing | Aggregating


@dataclass(frozen=True, slots=True)
class StateColumn:
    """The table and columns that store a state."""

    table: str
    column: str | None
    """The column of its value; None for a set and for timers, which have only a sub-key."""
    null_mark: str | None = None
    """The column that marks a value set to null."""
    subkey: str | None = None
    companion: str | None = None
    """The column without which this one is meaningless."""
    whole: bool = False
    """Whether the fields of its values depend on each other."""


def state_of(place: StateColumn) -> str:
    """The name of the state that is stored here."""
    return place.table.partition(SEPARATOR)[2] if place.subkey else place.column or ""


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """The tables of one operator."""

    operator: str
    key_columns: Mapping[str, str]
    """Key column of the input → column name in the tables."""
    schemas: tuple[TableSchema, ...]
    places: Mapping[str, StateColumn]
    """State → the table and columns that store it."""


def tables_for(operator: str, keys: KeySchema, states: Mapping[str, State]) -> OperatorTables:
    """The tables for these states. Raises errors that name the operator and the state."""
    _check_user_name("operator", operator)
    fields = as_fields(keys)
    key_columns = safe_names(fields)
    stored_keys = {key_columns[name]: type_ for name, type_ in fields.items()}
    places: dict[str, StateColumn] = {}
    schemas: list[TableSchema] = []
    columns: dict[str, dict[str, Column]] = {PROCESSING_TIME: {}, EVENT_TIME: {}}
    for name, state in states.items():
        with_name = f"operator {operator}, state {name}"
        _check_user_name("state", name)
        if isinstance(state, OnePerKey):
            clock = state.watermark if state.ttl_ms else PROCESSING_TIME
            if name in stored_keys:
                raise SchemaMismatch(f"{with_name}: a key column has this name: rename one of them")
            columns[clock].update(_value_columns(name, state))
            mark = name + NULL_MARK if isinstance(state, Value) and state.nullable else None
            companion = state.companion if isinstance(state, Value) else None
            whole = isinstance(state, Value) and state.whole
            places[name] = StateColumn(_values_table(operator, clock), name, null_mark=mark, companion=companion, whole=whole)
        elif isinstance(state, TaskValue | Broadcast):
            table = checked_name("table", f"{operator}{SEPARATOR}{name}")
            places[name] = StateColumn(table, "value", subkey=SLOT if isinstance(state, TaskValue) else "key")
            schemas.append(_keyless_table(table, state))
        else:
            table = checked_name("table", f"{operator}{SEPARATOR}{name}")
            places[name] = _own_column(table, state, stored_keys)
            schemas.append(_own_table(places[name], state, stored_keys))
    for clock, values in columns.items():
        if values:
            schemas.append(value_table(_values_table(operator, clock), stored_keys, values, ttl_clock=clock))
    return OperatorTables(operator, key_columns, tuple(sorted(schemas, key=lambda schema: schema.table)), places)


def define(writer: Writer, *operators: OperatorTables) -> None:
    """Creates the tables, or evolves them to the declared states; all or nothing.

    Raises ``SchemaMismatch`` that names the state whose stored type is incompatible with the declared one. A state that is no
    longer declared is dropped if it was a column; a list, map, set or timer keeps its table, and has it again if it is declared
    again.
    """
    known = {name: versions[-1] for name, versions in writer.store.head.schemas.items()}
    for tables in operators:
        evolved(tables, known)
    for tables in operators:
        for schema in tables.schemas:
            writer.define(schema)


def evolved(
    tables: OperatorTables,
    known: Mapping[str, TableSchema],
    renames: Mapping[str, str] | None = None,
    replaced: Collection[str] = (),
    compared: Collection[str] = (),
) -> list[TableSchema]:
    """The schemas that are new or change, given the ``known`` ones.

    ``renames``: columns, old → new. ``replaced``: states whose values are all rewritten, so that they may have any type.
    ``compared``: states whose fields are known to have kept their meaning. Raises ``SchemaMismatch`` that names the state whose
    stored type is incompatible with the declared one.
    """
    for name, place in tables.places.items():
        _check_not_moved(tables.operator, name, place, known)
        _check_companion(tables.operator, name, place, known)
    wanted = {schema.table: schema for schema in tables.schemas}
    for name, place in tables.places.items():
        if place.whole and place.table in known and name not in compared:
            _check_whole(tables.operator, name, place, wanted[place.table], known[place.table])
    changed = []
    for schema in tables.schemas:
        old = known.get(schema.table)
        new = schema if old is None else _evolved(tables, schema, old, renames or {}, replaced)
        changed += [] if new is old else [new]
    return changed


def stored_states(operator: str, known: Mapping[str, TableSchema]) -> dict[str, str | None]:
    """Stored state → its own table; None if it is a column. Includes timers and other internal states."""
    columns = [
        field.name
        for table in (operator, operator + _EVENT_VALUES)
        if table in known
        for field in known[table].values
        if not field.name.endswith(NULL_MARK)
    ]
    own = operator + SEPARATOR
    apart = {table.removeprefix(own): table for table in known if table.startswith(own) and table != operator + _EVENT_VALUES}
    return {**dict.fromkeys(columns), **apart}


def safe_names(names: Mapping[str, object]) -> dict[str, str]:
    """A valid and unique column name of tables for each of these names, which may be any that Spark allows."""
    safe: dict[str, str] = {}
    taken, numbers = set[str](), dict[str, int]()
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:60] or "key"
        column, number = plain, numbers.get(plain, 1)
        while column in taken:
            number += 1
            column = f"{plain}_{number}"
        numbers[plain] = number
        taken.add(column)
        safe[name] = column
    return safe


def _check_user_name(what: str, name: str) -> None:
    checked_name(what, name)
    if SEPARATOR in name or name.startswith("_") or name.endswith("_"):
        raise BadName(f"{what} name {name!r} is not allowed: it may not start or end with _ nor contain {SEPARATOR}")


def _values_table(operator: str, clock: str) -> str:
    return checked_name("table", operator if clock == PROCESSING_TIME else operator + _EVENT_VALUES)


def _value_columns(name: str, state: OnePerKey) -> Iterator[tuple[str, Column]]:
    merge = "" if isinstance(state, Value) else state.merge_name
    yield checked_name("column", name), Column(state.arrow, merge=merge, ttl_ms=state.ttl_ms)
    if isinstance(state, Value) and state.nullable:
        yield checked_name("column", name + NULL_MARK), Column(pa.bool_(), ttl_ms=state.ttl_ms)


def _own_column(table: str, state: List | Map | Set | Timers, keys: Mapping[str, pa.DataType]) -> StateColumn:
    match state:
        case List():
            return StateColumn(table, free_name("value", keys), subkey=free_name("position", keys))
        case Map():
            return StateColumn(table, free_name("value", keys), subkey=free_name("key", keys), whole=state.whole)
        case Set():
            return StateColumn(table, None, subkey=free_name("element", keys))
        case Timers():
            # Named after its clock, so that event-time timers are never read as processing-time timers.
            return StateColumn(table, None, subkey=free_name(WATERMARKS[state.time], keys))


def _own_table(place: StateColumn, state: List | Map | Set | Timers, keys: Mapping[str, pa.DataType]) -> TableSchema:
    value, subkey = place.column or "", place.subkey or ""
    if isinstance(state, Timers):
        return timer_table(place.table, keys, time=subkey)
    ttl_ms, clock = state.ttl_ms, state.watermark if state.ttl_ms else PROCESSING_TIME
    match state:
        case List():
            return list_table(place.table, keys, {value: state.arrow}, position=subkey, ttl_ms=ttl_ms, ttl_clock=clock)
        case Map():
            column = Column(state.arrow_value, merge=state.merge_name)
            return map_table(place.table, keys, {subkey: state.arrow_key}, {value: column}, ttl_ms=ttl_ms, ttl_clock=clock)
        case Set():
            return map_table(place.table, keys, {subkey: state.arrow}, {}, ttl_ms=ttl_ms, ttl_clock=clock)


def _keyless_table(table: str, state: TaskValue | Broadcast) -> TableSchema:
    if isinstance(state, TaskValue):
        return value_table(table, {SLOT: pa.int32()}, {SLOTS: pa.int32(), "value": Column(state.arrow)})
    return value_table(table, {"key": state.arrow_key}, {"value": Column(state.arrow_value)})


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with underscores appended until it is not taken."""
    while name in taken:
        name += "_"
    return name


def _check_not_moved(operator: str, name: str, place: StateColumn, known: Mapping[str, TableSchema]) -> None:
    """Raises if another table stores the state: it would silently start empty."""
    own = f"{operator}{SEPARATOR}{name}"
    shared = [_values_table(operator, PROCESSING_TIME), operator + _EVENT_VALUES]
    stored = [table for table in shared if table in known and any(field.name == name for field in known[table].values)]
    stored += [own] if own in known else []
    elsewhere = [table for table in stored if table != place.table]
    if elsewhere:
        raise SchemaMismatch(
            f"operator {operator}, state {name}: table {elsewhere[0]} stores it as another kind of state (or by another clock), "
            f"and {place.table} would start empty: declare it as it was, or rename it"
        )


def _check_companion(operator: str, name: str, place: StateColumn, known: Mapping[str, TableSchema]) -> None:
    stored = {field.name for field in known[place.table].values} if place.table in known else set()
    if place.companion is not None and name in stored and place.companion not in stored:
        raise SchemaMismatch(
            f"operator {operator}, state {name}: table {place.table} has it, but not {place.companion}, without which it is "
            "meaningless: declare both as they were (aggregates by one column in their order), or use another name"
        )


def _check_whole(operator: str, name: str, place: StateColumn, wanted: TableSchema, old: TableSchema) -> None:
    stored = {field.name: field for field in old.fields}
    for field in wanted.fields:
        before = stored.get(field.name)
        if field.name not in (place.column, place.subkey) or before is None or not changes_inside(before, field):
            continue
        if _declared_fields(before.arrow) != _declared_fields(field.arrow):
            raise SchemaMismatch(
                f"operator {operator}, state {name}: table {old.table}: column {field.name} is {before.arrow} and cannot become "
                f"{field.arrow}: its fields depend on each other, and stored ones were computed otherwise; rename the operator"
            )


def _declared_fields(type_: pa.DataType) -> list[pa.Field] | pa.DataType:
    """The fields of a struct, or of the structs in a list or map, without those that an operator adds itself."""
    if pa.types.is_list(type_):
        return _declared_fields(type_.value_type)
    if pa.types.is_map(type_):
        return _declared_fields(type_.item_type)
    return [field for field in type_ if not field.name.startswith("_")] if pa.types.is_struct(type_) else type_


def _evolved(
    tables: OperatorTables, wanted: TableSchema, old: TableSchema, renames: Mapping[str, str], replaced: Collection[str]
) -> TableSchema:
    had, has = ({field.name for field in schema.fields} for schema in (old, wanted))
    mine = {before: now for before, now in renames.items() if before in had and now in has}
    columns = {tables.places[name].column or "" for name in replaced if tables.places[name].table == old.table}
    try:
        return evolve(old, wanted, mine, columns)
    except SchemaMismatch as error:
        alone = [name for name, place in tables.places.items() if place.table == wanted.table and place.subkey]
        of = f"operator {tables.operator}" + (f", state {alone[0]}" if alone else "")
        raise SchemaMismatch(f"{of}: {error}") from error
