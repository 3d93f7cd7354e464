"""From the declared states of an operator to the tables that hold them.

* All states with one entry per key (``Value``, ``Reducing``, ``Aggregating``) are columns of one table named after the
  operator. Those that expire by event time stand in a second one, because a table expires by one clock.
* Each list, map, set and timer is a table of its own, named ``<operator>__<state>``. So is what belongs to no key: a task
  value is keyed by its slot, a broadcast map by its entry key.
* **Absent or null.** A column is null where the state is absent: never set, cleared or expired; its default is applied by
  whoever reads. That a ``Value`` was *set* to null stands in a column ``<state>__null`` beside it, which is true then and
  null otherwise. It expires with the value, so an expired null is absent again; and the value's own column keeps its plain
  type, so that a query on the state reads ``views`` and not ``views.value``. (One bitmap of presence for all states could
  not expire by the state; a struct around each value would be in the way of merges and of every query.)
  The other kinds have no such column: a merge leaves nulls out, and an element of a list or map is there if its row is.
* Names given by users never hold ``__``, so no two operators and states make one table name.
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
from floodplain.versions.records.schema import PROCESSING_TIME, TableSchema

SEPARATOR = "__"
NULL_MARK = "__null"
_EVENT_VALUES = "___event"
SLOT = "slot"
SLOTS = "slots"
"""Of a task value's table: how many slots there were when it was written."""

KeySchema: TypeAlias = str | pa.Schema | Mapping[str, str | pa.DataType]
OnePerKey: TypeAlias = Value | Reducing | Aggregating


@dataclass(frozen=True, slots=True)
class StateColumn:
    """Where a state is kept."""

    table: str
    column: str | None
    """Of its value; None for a set and for timers, whose sub-key says all."""
    null_mark: str | None = None
    """The column that tells a value set to null."""
    subkey: str | None = None
    beside: str | None = None
    """The column without which this one means nothing."""
    whole: bool = False
    """Whether fields inside its values mean nothing without each other."""


def state_of(place: StateColumn) -> str:
    """The name of the state that is kept here."""
    return place.table.partition(SEPARATOR)[2] if place.subkey else place.column or ""


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """The tables of one operator."""

    operator: str
    key_columns: Mapping[str, str]
    """The name of each key column as it was given → as the tables call it."""
    schemas: tuple[TableSchema, ...]
    places: Mapping[str, StateColumn]
    """State → where it is."""


def tables_for(operator: str, keys: KeySchema, states: Mapping[str, State]) -> OperatorTables:
    """The tables for these states. Raises errors that name the operator and the state."""
    _check_user_name("operator", operator)
    given = as_fields(keys)
    key_columns = safe_names(given)
    stored_keys = {key_columns[name]: type_ for name, type_ in given.items()}
    places: dict[str, StateColumn] = {}
    schemas: list[TableSchema] = []
    columns: dict[str, dict[str, Column]] = {PROCESSING_TIME: {}, EVENT_TIME: {}}
    for name, state in states.items():
        with_name = f"operator {operator}, state {name}"
        _check_user_name("state", name)
        if isinstance(state, OnePerKey):
            clock = state.watermark if state.ttl_ms else PROCESSING_TIME
            if name in stored_keys:
                raise SchemaMismatch(f"{with_name}: a key column has this name: call one of them something else")
            columns[clock].update(_value_columns(name, state))
            mark = name + NULL_MARK if isinstance(state, Value) and state.nullable else None
            beside = state.beside if isinstance(state, Value) else None
            whole = isinstance(state, Value) and state.whole
            places[name] = StateColumn(_values_table(operator, clock), name, null_mark=mark, beside=beside, whole=whole)
        elif isinstance(state, TaskValue | Broadcast):
            table = checked_name("table", f"{operator}{SEPARATOR}{name}")
            places[name] = StateColumn(table, "value", subkey=SLOT if isinstance(state, TaskValue) else "key")
            schemas.append(_keyless_table(table, state))
        else:
            table = checked_name("table", f"{operator}{SEPARATOR}{name}")
            places[name] = _own_place(table, state, stored_keys)
            schemas.append(_own_table(places[name], state, stored_keys))
    for clock, values in columns.items():
        if values:
            schemas.append(value_table(_values_table(operator, clock), stored_keys, values, ttl_clock=clock))
    return OperatorTables(operator, key_columns, tuple(sorted(schemas, key=lambda schema: schema.table)), places)


def define(writer: Writer, *operators: OperatorTables) -> None:
    """Create the tables or change them to what is declared now; nothing is changed unless everything can be.

    Raises ``SchemaMismatch`` naming the state that cannot be read as it is declared now. A state no longer declared is
    forgotten if it was a column; a list, map, set or timer keeps its table and is found again if it is declared again.
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
    """The schemas that are new or change, given those that are ``known``.

    ``renames``: columns, old → new. ``replaced``: states whose values are all made anew, so that they may be of any type.
    ``compared``: states whose parts are known to mean what they meant. Raises ``SchemaMismatch`` naming the state that cannot be
    read as it is declared now.
    """
    for name, place in tables.places.items():
        _check_not_moved(tables.operator, name, place, known)
        _check_beside(tables.operator, name, place, known)
    wanted = {schema.table: schema for schema in tables.schemas}
    for name, place in tables.places.items():
        if place.whole and place.table in known and name not in compared:
            _check_whole(tables.operator, name, place, wanted[place.table], known[place.table])
    found = []
    for schema in tables.schemas:
        old = known.get(schema.table)
        new = schema if old is None else _evolved(tables, schema, old, renames or {}, replaced)
        found += [] if new is old else [new]
    return found


def held_states(operator: str, known: Mapping[str, TableSchema]) -> dict[str, str | None]:
    """State → the table of its own that it has; None for one that is a column. Timers and the like are among them."""
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
    """A column name allowed in tables for each of the names, which may be any that Spark allows; all different."""
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
        raise BadName(f"{what} name {name!r} is not allowed: it may not start or end with _ nor hold {SEPARATOR}")


def _values_table(operator: str, clock: str) -> str:
    return checked_name("table", operator if clock == PROCESSING_TIME else operator + _EVENT_VALUES)


def _value_columns(name: str, state: OnePerKey) -> Iterator[tuple[str, Column]]:
    merge = "" if isinstance(state, Value) else state.merge_name
    yield checked_name("column", name), Column(state.arrow, merge=merge, ttl_ms=state.ttl_ms)
    if isinstance(state, Value) and state.nullable:
        yield checked_name("column", name + NULL_MARK), Column(pa.bool_(), ttl_ms=state.ttl_ms)


def _own_place(table: str, state: List | Map | Set | Timers, keys: Mapping[str, pa.DataType]) -> StateColumn:
    match state:
        case List():
            return StateColumn(table, free_name("value", keys), subkey=free_name("position", keys))
        case Map():
            return StateColumn(table, free_name("value", keys), subkey=free_name("key", keys), whole=state.whole)
        case Set():
            return StateColumn(table, None, subkey=free_name("element", keys))
        case Timers():
            # Named after its clock, so that timers of the one are never taken for those of the other.
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
    """A column name that key columns leave free."""
    while name in taken:
        name += "_"
    return name


def _check_not_moved(operator: str, name: str, place: StateColumn, known: Mapping[str, TableSchema]) -> None:
    """A state that another table holds already would start empty, without a word."""
    own = f"{operator}{SEPARATOR}{name}"
    shared = [_values_table(operator, PROCESSING_TIME), operator + _EVENT_VALUES]
    held = [table for table in shared if table in known and any(field.name == name for field in known[table].values)]
    held += [own] if own in known else []
    elsewhere = [table for table in held if table != place.table]
    if elsewhere:
        raise SchemaMismatch(
            f"operator {operator}, state {name}: table {elsewhere[0]} holds it as another kind of state (or by another clock), "
            f"and {place.table} would start empty: declare it as it was, or call it something else"
        )


def _check_beside(operator: str, name: str, place: StateColumn, known: Mapping[str, TableSchema]) -> None:
    held = {field.name for field in known[place.table].values} if place.table in known else set()
    if place.beside is not None and name in held and place.beside not in held:
        raise SchemaMismatch(
            f"operator {operator}, state {name}: table {place.table} has it, but not {place.beside}, and it means nothing alone: "
            "declare what belongs together as it was (aggregates that go by one column in their order), or use another name"
        )


def _check_whole(operator: str, name: str, place: StateColumn, wanted: TableSchema, old: TableSchema) -> None:
    held = {field.name: field for field in old.fields}
    for field in wanted.fields:
        before = held.get(field.name)
        if field.name not in (place.column, place.subkey) or before is None or not changes_inside(before, field):
            continue
        if _declared_parts(before.arrow) != _declared_parts(field.arrow):
            raise SchemaMismatch(
                f"operator {operator}, state {name}: table {old.table}: column {field.name} is {before.arrow} and cannot become "
                f"{field.arrow}: its fields belong together, and those in the state were made otherwise; rename the operator"
            )


def _declared_parts(type_: pa.DataType) -> list[pa.Field] | pa.DataType:
    """The fields of a struct, or of those in a list or map, but for those that an operator adds by itself."""
    if pa.types.is_list(type_):
        return _declared_parts(type_.value_type)
    if pa.types.is_map(type_):
        return _declared_parts(type_.item_type)
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
