"""The operator that a stock checkpoint has the state of: its key, its time mode, its state variables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from floodplain.errors import BadInput, FloodplainError, short
from floodplain.operators.kernel.definition import STATEFUL_PROCESSOR, canonical
from floodplain.spark.transform_with_state.handle import Declared, Kind, table_names
from floodplain.spark.transform_with_state.process import PANDAS_OPERATOR, ROW_OPERATOR
from floodplain.state.descriptors import State
from floodplain.state.tables import safe_names
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.versions.records.definition import Definition, Parameter, SparkProcessor

UNKNOWN_TTL_MS = 24 * 3_600_000
"""Spark records that a state has a time to live, and not how long that is. Each row has its own end, and the first start declares
the length for what is written from then on."""
_KINDS: dict[str, Kind] = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_VALUE_COLUMNS: dict[Kind, str] = {"value": "value", "list": "list_value", "map": "user_map_value"}
_TIMERS = {"EventTime": EVENT_TIMERS, "ProcessingTime": PROCESSING_TIMERS}


@dataclass(frozen=True)
class StockVariable:
    """A state variable, and its rows as Spark reads them."""

    name: str
    declared: Declared
    rows: DataFrame


@dataclass(frozen=True)
class StockOperator:
    """The operator of a checkpoint."""

    name: str
    time_mode: str
    output_mode: str
    keys: StructType
    variables: tuple[StockVariable, ...]
    timers: DataFrame | None
    """None without a time mode."""

    @property
    def timer_state(self) -> str | None:
        return _TIMERS.get(self.time_mode)

    @property
    def stored_names(self) -> dict[str, str]:
        """State variable → what tables call it."""
        taken = [*safe_names(dict.fromkeys(self.keys.names)).values(), EVENT_TIMERS, PROCESSING_TIMERS]
        return table_names([variable.name for variable in self.variables], taken)

    @property
    def key_types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in to_arrow_schema(self.keys, timezone="UTC")}

    def states(self) -> dict[str, State]:
        names = self.stored_names
        return {names[variable.name]: variable.declared.descriptor() for variable in self.variables}

    def definition(self) -> Definition:
        """What a start compares with its processor: only what a checkpoint tells."""
        names = self.stored_names
        variables = {names[each.name]: each.declared.recorded(each.name) for each in self.variables}
        return Definition(
            STATEFUL_PROCESSOR,
            {"keys": Parameter([[name, canonical(name)] for name in self.keys.names], f"by {', '.join(self.keys.names)}")},
            spark=SparkProcessor(self.name, self.time_mode, self.output_mode, self.keys.json(), variables),
        )


def stock_operator(spark: SparkSession, location: str, batch: int) -> StockOperator:
    """Raises ``BadInput`` if the checkpoint is not that of one ``transformWithState`` of Python, or has a state that cannot be
    kept here."""
    name, properties = _described(spark, location, batch)
    mode = properties["timeMode"]
    reader = _Reader(spark, location, batch)
    variables = tuple(
        reader.variable(each["stateName"], _KINDS[each["stateVariableType"]], each["ttlEnabled"])
        for each in properties["stateVariables"]
        if each["stateVariableType"] in _KINDS
    )
    timers = reader.load(readRegisteredTimers="true") if mode in _TIMERS else None
    frames = [*([] if timers is None else [timers]), *(variable.rows for variable in variables)]
    if not frames:
        raise BadInput(f"the query at {location} keeps no state: start the ported job at a new location")
    keys = cast("StructType", frames[0].schema["key"].dataType)
    made = StockOperator(name, mode, properties["outputMode"], keys, variables, timers)
    _check(made, location)
    return made


def _described(spark: SparkSession, location: str, batch: int) -> tuple[str, Mapping[str, Any]]:
    """The name and the properties of the only operator."""
    try:
        rows = spark.read.format("state-metadata").option("batchId", batch).load(location).collect()
    except PySparkException as error:
        raise BadInput(
            f"the state metadata of {location} cannot be read: {short(str(error), 300)}. Nothing was imported"
        ) from error
    names = sorted({f"{row.operatorName} ({row.operatorId})" for row in rows})
    if len(names) != 1 or rows[0].operatorName not in (PANDAS_OPERATOR, ROW_OPERATOR):
        raise BadInput(
            f"the query at {location} is not one with a single transformWithState of PySpark; its stateful operators: "
            f"{', '.join(names) or 'none'}. Only the state of {ROW_OPERATOR} and {PANDAS_OPERATOR} can be imported: start the "
            "ported job at a new location"
        )
    return rows[0].operatorName, json.loads(rows[0].operatorProperties)


@dataclass(frozen=True)
class _Reader:
    """Reads the state of one batch with Spark's own reader."""

    spark: SparkSession
    location: str
    batch: int

    def load(self, **options: str) -> DataFrame:
        try:
            return self.spark.read.format("statestore").options(batchId=self.batch, **options).load(self.location)
        except PySparkException as error:
            why = short(str(error), 300)
            raise BadInput(f"the state at {self.location} cannot be read with {options}: {why}. Nothing was imported") from error

    def variable(self, name: str, kind: Kind, ttl: bool) -> StockVariable:
        rows = self.load(stateVarName=name, flattenCollectionTypes="false" if kind == "list" else "true")
        values: Any = rows.schema[_VALUE_COLUMNS[kind]].dataType
        values = values.elementType if kind == "list" else values
        values = values["value"].dataType if ttl else values
        schemas = (cast("StructType", rows.schema["user_map_key"].dataType), values) if kind == "map" else (values,)
        return StockVariable(name, Declared(kind, schemas, UNKNOWN_TTL_MS if ttl else None), rows)


def _check(operator: StockOperator, location: str) -> None:
    for variable in operator.variables:
        try:
            variable.declared.descriptor()
        except (FloodplainError, PySparkException, pa.ArrowException) as error:
            _refuse(f"state {variable.name!r}", location, error)
    try:
        _ = operator.key_types, operator.stored_names
    except (FloodplainError, PySparkException, pa.ArrowException) as error:
        _refuse("the key", location, error)


def _refuse(what: str, location: str, error: Exception) -> NoReturn:
    raise BadInput(f"{what} of the query at {location} cannot be kept in a state of Floodplain: {error}. Nothing was imported")
