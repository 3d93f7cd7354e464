"""The operators of a state and their variables, as readers in Spark's terms see them."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from floodplain.eventtime.watermarks import NEWEST
from floodplain.spark import operator_names
from floodplain.state.tables import NULL_MARK, SEPARATOR
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.versions.records.definition import Definition, SparkProcessor, SparkVariable
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import Field, TableSchema
from floodplain.versions.records.user_names import operator_of

Kind: TypeAlias = Literal["value", "list", "map", "timer"]
KINDS: dict[Kind, str] = {"value": "ValueState", "list": "ListState", "map": "MapState", "timer": "TimerState"}
"""As Spark calls them."""
TIMER_NAMES = {EVENT_TIMERS: "$eventTimers_keyToTimestamp", PROCESSING_TIMERS: "$procTimers_keyToTimestamp"}
"""What Spark calls the states that timers are in."""
_TIMERS_OF_MODE = {"EventTime": EVENT_TIMERS, "ProcessingTime": PROCESSING_TIMERS}


@dataclass(frozen=True)
class StructColumns:
    """A struct of Spark's, made of columns of a table: of one that holds it whole, or of one column for each field."""

    columns: tuple[str, ...]
    type: StructType
    whole: bool = False


@dataclass(frozen=True)
class Variable:
    """One state variable of an operator, and where it is."""

    name: str
    kind: Kind
    table: str
    key: StructColumns
    value: StructColumns
    """Of a timer, its time."""
    user_key: StructColumns | None = None
    """Of a map."""
    null_mark: str | None = None
    """The column that tells a value that was set to null."""
    shared: bool = False
    """Whether other variables are columns of the same table, so that a row does not tell that there is a value."""
    ttl: str | None = None
    """The column that tells when it ends, as reads name it, if it has a time to live."""

    @property
    def properties(self) -> dict[str, Any]:
        """As Spark's metadata tell it."""
        return {"stateName": self.name, "stateVariableType": KINDS[self.kind], "ttlEnabled": self.ttl is not None}


@dataclass(frozen=True)
class Operator:
    """One stateful operator."""

    number: int
    name: str
    shown: str
    """What Spark would call it; our operators have no such name, and are called by their own."""
    processor: SparkProcessor | None
    variables: tuple[Variable, ...]
    whole: Variable | None = None
    """All values of a key side by side, of an operator that is none of PySpark's."""

    def variable(self, name: str) -> Variable | None:
        return next((variable for variable in self.variables if variable.name == name), None)

    @property
    def timers(self) -> Variable | None:
        """Those of a processor's time mode; of our own operators, which may have both kinds, those of event time."""
        if self.processor is not None:
            wanted = _TIMERS_OF_MODE.get(self.processor.time_mode)
            return None if wanted is None else self.variable(TIMER_NAMES[wanted])
        return self.variable(TIMER_NAMES[EVENT_TIMERS])

    @property
    def properties(self) -> str:
        """The JSON of Spark's ``operatorProperties``."""
        variables = [variable.properties for variable in self.variables]
        modes: dict[str, Any] = {}
        if self.processor is not None:
            modes = {"timeMode": self.processor.time_mode, "outputMode": self.processor.output_mode}
            variables += map(_deleted, self.processor.deleted.values())
        return json.dumps({**modes, "stateVariables": variables}, separators=(",", ":"), ensure_ascii=False)


def _deleted(variable: SparkVariable) -> dict[str, Any]:
    """A variable that ``init`` has deleted: it has no state, and Spark's metadata have it."""
    return {"stateName": variable.name, "stateVariableType": KINDS[variable.kind], "ttlEnabled": variable.ttl}


def operators_of(manifest: Manifest) -> list[Operator]:
    """In the order in which they were recorded, which is that of the dataflow of the first start; of the drop-in in that of
    Spark's ids."""
    tables = [table for table in manifest.schemas if table != NEWEST]
    undefined = sorted({operator_of(table) for table in tables} - manifest.definitions.keys())
    names = [*manifest.definitions, *undefined]
    names = operator_names.as_spark_numbers(names) if _is_drop_in(manifest) else names
    return [_operator(number, name, manifest) for number, name in enumerate(names)]


def _is_drop_in(manifest: Manifest) -> bool:
    first = manifest.definitions.get(operator_names.PROCESSOR)
    return first is not None and first.spark is not None


def _operator(number: int, name: str, manifest: Manifest) -> Operator:
    definition = manifest.definitions.get(name, Definition(""))
    schemas = [versions[-1] for table, versions in manifest.schemas.items() if operator_of(table) == name]
    if definition.spark is not None:
        variables = tuple(_of_processor(name, definition.spark, {schema.table: schema for schema in schemas}))
        return Operator(number, name, definition.spark.operator, definition.spark, variables)
    keys, made, whole = _key_names(definition), list[Variable](), None
    for schema in schemas:
        with suppress(PySparkTypeError):  # of a type that Spark does not have: not readable here
            made += list(_of_table(name, schema, keys))
            whole = _whole(name, schema, keys) if schema.table == name else whole
    shown = operator_names.in_spark(name) if _is_drop_in(manifest) else name
    return Operator(number, name, shown, None, tuple(made), whole)


def _of_processor(operator: str, processor: SparkProcessor, schemas: dict[str, TableSchema]) -> Iterator[Variable]:
    key = StructType.fromJson(json.loads(processor.keys))
    for stored, recorded in processor.variables.items():
        table = operator if recorded.kind == "value" else f"{operator}{SEPARATOR}{stored}"
        if table in schemas:
            yield _declared(stored, recorded, key, schemas[table])
    timers = _TIMERS_OF_MODE.get(processor.time_mode)
    table = f"{operator}{SEPARATOR}{timers}"
    if timers is not None and table in schemas:
        schema = schemas[table]
        yield Variable(TIMER_NAMES[timers], "timer", table, _keys(schema, key), _struct(schema.subkeys))


def _declared(stored: str, recorded: SparkVariable, key: StructType, schema: TableSchema) -> Variable:
    """A variable that a processor has declared."""
    types = [StructType.fromJson(json.loads(text)) for text in recorded.schemas]
    shared = recorded.kind == "value"
    named = {field.name: field for field in schema.values}
    value = named[stored] if shared else schema.values[0]
    return Variable(
        name=recorded.name,
        kind=recorded.kind,
        table=schema.table,
        key=_keys(schema, key),
        value=_kept(value, types[-1]),
        user_key=_kept(schema.subkeys[0], types[0]) if recorded.kind == "map" else None,
        null_mark=stored + NULL_MARK if shared and stored + NULL_MARK in named else None,
        shared=shared,
        ttl=_ttl(schema, value.name) if recorded.ttl else None,
    )


def _kept(field: Field, type_: StructType) -> StructColumns:
    """A struct with these fields, which a column holds whole; a single field may be stored as it is."""
    bare = len(type_) == 1 and not pa.types.is_struct(field.arrow)
    if len(type_) == 1 and isinstance(inner := type_[0].dataType, StructType) and pa.types.is_struct(field.arrow):
        bare = [each.name for each in field.arrow] == inner.names
    return StructColumns((field.name,), type_, whole=not bare)


def _ttl(schema: TableSchema, column: str) -> str | None:
    if schema.ttl_ms:
        return "_expires"
    return f"_expires_{column}" if any(field.name == column and field.ttl_ms for field in schema.values) else None


def _keys(schema: TableSchema, key: StructType) -> StructColumns:
    return StructColumns(tuple(field.name for field in schema.keys), key)


def _key_names(definition: Definition) -> list[str]:
    """Key columns as the user wrote them; none if that is not recorded."""
    recorded = definition.parameters.get("keys")
    return [] if recorded is None else [name for name, _ in recorded.value]


def _of_table(operator: str, schema: TableSchema, key_names: list[str]) -> Iterator[Variable]:
    """The variables that a table of our own operators has: its columns, or one that has the table to itself."""
    key = _named_keys(schema, key_names)
    state = schema.table.partition(SEPARATOR)[2]
    own = Variable(TIMER_NAMES.get(state, state), "value", schema.table, key, _struct(schema.values))
    match schema.shape:
        case "value" if _is_shared(operator, schema):
            for field in schema.values:
                if not field.name.endswith(NULL_MARK):
                    yield _column(field, schema, key)
        case "value":
            yield replace(own, key=_struct(schema.keys))
        case "ordered":
            yield replace(own, kind="list", ttl=_row_ttl(schema))
        case "time" if not schema.values:
            yield replace(own, kind="timer", value=_struct(schema.subkeys))
        case _ if schema.values:
            yield replace(own, kind="map", user_key=_struct(schema.subkeys), ttl=_row_ttl(schema))
        case _:
            yield replace(own, kind="list", value=_struct(schema.subkeys), ttl=_row_ttl(schema))


def _is_shared(operator: str, schema: TableSchema) -> bool:
    """Whether states with one entry per key are its columns."""
    return schema.table == operator or schema.table.removeprefix(operator).startswith(f"{SEPARATOR}_")


def _column(field: Field, schema: TableSchema, key: StructColumns) -> Variable:
    mark = field.name + NULL_MARK
    return Variable(
        name=field.name,
        kind="value",
        table=schema.table,
        key=key,
        value=_struct((field,)),
        null_mark=mark if any(each.name == mark for each in schema.values) else None,
        shared=True,
        ttl=_ttl(schema, field.name),
    )


def _whole(operator: str, schema: TableSchema, key_names: list[str]) -> Variable:
    fields = tuple(field for field in schema.values if not field.name.endswith(NULL_MARK))
    type_ = StructType([StructField(field.name, _spark_type(field.arrow)) for field in fields])
    return Variable(
        operator,
        "value",
        schema.table,
        _named_keys(schema, key_names),
        StructColumns(tuple(field.name for field in fields), type_),
    )


def _row_ttl(schema: TableSchema) -> str | None:
    return "_expires" if schema.ttl_ms else None


def _named_keys(schema: TableSchema, names: list[str]) -> StructColumns:
    part = _struct(schema.keys, always=True)
    if len(names) != len(part.columns):
        return part
    fields = [StructField(name, field.dataType) for name, field in zip(names, part.type, strict=True)]
    return replace(part, type=StructType(fields))


def _struct(fields: tuple[Field, ...], *, always: bool = False) -> StructColumns:
    """A struct is taken as it is, unless ``always`` one is to be made; all else becomes its fields."""
    columns = tuple(field.name for field in fields)
    if len(fields) == 1 and not always and pa.types.is_struct(fields[0].arrow):
        made = _spark_type(fields[0].arrow)
        assert isinstance(made, StructType)
        return StructColumns(columns, made, whole=True)
    return StructColumns(columns, StructType([StructField(field.name, _spark_type(field.arrow)) for field in fields]))


def _spark_type(type_: pa.DataType) -> DataType:
    # Times without a zone are Spark's timestamp_ntz.
    return from_arrow_type(type_, prefer_timestamp_ntz=True)
