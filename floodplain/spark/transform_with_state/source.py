"""A processor in a query: its input, and how it becomes a step of a pipeline."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from floodplain.errors import BadInput, FloodplainError, UserError
from floodplain.pipeline.stream import Stream
from floodplain.spark.downstream.compiler import PROCESSOR
from floodplain.spark.downstream.plans import Fragment, analyzed, kind_of
from floodplain.spark.downstream.steps import Changes, keyed
from floodplain.spark.runtime import stream
from floodplain.spark.transform_with_state.chunks import MOST_BYTES, MOST_ROWS
from floodplain.spark.transform_with_state.errors import EVENT, PROCESSING, must_be_nullable
from floodplain.spark.transform_with_state.evolution import AVRO, ENCODING, renamed_keys, resumed
from floodplain.spark.transform_with_state.handle import Declared, table_names
from floodplain.spark.transform_with_state.initial_state import InitialRows
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.state.tables import stored_states
from floodplain.store.store import Store

_SETTINGS = (
    "spark.sql.session.timeZone",
    MOST_ROWS,
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
)
"""What Spark's own worker goes by."""

_DRIVER_CRASHED = "TransformWithStateInPySpark driver worker exited unexpectedly (crashed): "


@dataclass(frozen=True)
class Source:
    """The input of a processor."""

    rows: DataFrame
    """As Spark has planned them."""
    process: StatefulProcess
    deleted: frozenset[str] = frozenset()
    """States that ``init`` deletes."""
    initial: DataFrame | None = None
    initial_keys: tuple[str, ...] = ()
    failure: FloodplainError | None = None
    """What ``init`` raised, or what is wrong with the states that it declares."""

    @property
    def gives_watermark(self) -> bool:
        return self.process.time_mode != PROCESSING

    @property
    def needs_watermark(self) -> bool:
        return self.process.time_mode == EVENT

    def resumed(self, store: Store, name: str) -> "tuple[Source, Changes]":
        """It on what the store has of the operator of this name. Raises ``SchemaMismatch`` if Spark would not go on with that."""
        definition = store.head.definitions.get(name)
        before, now = definition.spark if definition is not None else None, self.process.in_sparks_terms
        state = resumed(self.rows.sparkSession, before, self.process.declared, now)
        if state.failure is not None:
            raise state.failure
        process = self.process.on(state)
        held = stored_states(name, {table: versions[-1] for table, versions in store.head.schemas.items()})
        evolve = {process.table_names[variable]: function for variable, function in state.evolve.items()}
        return replace(self, process=process), Changes(
            {f"{name}.{table}": function for table, function in evolve.items() if table in held},
            {f"{name}.{old}": new for old, new in renamed_keys(before, now)},
        )

    def begun(self, store: Store, name: str) -> Stream:
        rows, initial = stream(self.rows), self.initial_rows(store)
        rows = rows if initial is None else rows.transform(initial)
        return rows.key_by(*self.process.shape.keys).process(self.process, name=name)

    def step(self, name: str, rows: Fragment, event_time: str | None, *, has_watermark: bool) -> "DownstreamProcess":
        return DownstreamProcess(name, self, rows, event_time, has_watermark)

    def initial_rows(self, store: Store) -> InitialRows | None:
        if self.initial is None:
            return None
        return InitialRows(store, self.initial, self.initial_keys, self.process.shape.keys)


@dataclass(frozen=True)
class DownstreamProcess:
    """A processor that reads another stateful step."""

    name: str
    source: Source
    input: Fragment
    event_time: str | None
    has_watermark: bool

    @property
    def deleted(self) -> frozenset[str]:
        return self.source.deleted

    def resumed(self, store: Store) -> "tuple[DownstreamProcess, Changes]":
        source, changes = self.source.resumed(store, self.name)
        return replace(self, source=source), changes

    def applied(self, stream: Stream, store: Store, mode: str) -> Stream:  # noqa: ARG002
        process, initial = copy(self.source.process), self.source.initial_rows(store)
        process.drops_late, process.has_watermark = self.event_time is not None, self.has_watermark

        def rows(made: DataFrame) -> DataFrame:
            made = made if self.input.is_plain else self.input(made)
            return made if initial is None else initial(made)

        as_is = self.input.is_plain and initial is None
        return keyed(stream, None if as_is else rows, self.name, process.shape.keys, process, self.event_time)


def processor_node(planned: Any) -> Any:
    """Where Spark's plan of a call has the processor: at the top, or below what names the event time."""
    node = analyzed(planned)
    while kind_of(node) != PROCESSOR:
        node = node.children().head()
    return node


def names_of_keys(planned: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of the rows, and those of the initial state, as Spark resolved them."""
    node = processor_node(planned)
    count = node.groupingAttributesLen()
    rows, initial = node.left().output(), node.right().output()
    keys = tuple(rows.apply(at).name() for at in range(count))
    return keys, tuple(initial.apply(at).name() for at in range(count)) if node.hasInitialState() else ()


def source_of(rows: DataFrame, planned: DataFrame, arguments: tuple[Any, ...], *, pandas: bool) -> Source:
    """``planned`` is Spark's own plan of the same call: it has checked the arguments, and is never run."""
    processor, output, output_mode, time_mode, initial, event_time = arguments
    spark = rows.sparkSession
    keys, initial_keys = names_of_keys(planned)
    for name in keys:
        if rows.columns.count(name) != 1:
            raise BadInput(f"key {name} is not a column of the rows: add it with withColumn and group by that")
    output_type = output if isinstance(output, StructType) else parsed_type(spark, output)
    states = initial._df if initial is not None else None
    shape = Shape(rows.schema, keys, output_type, None if states is None else states.schema, event_time)
    time_mode = time_mode.lower()
    static = not rows.isStreaming
    declared, deleted, failure = _init(processor, time_mode, spark, static=static)
    settings = {name: value for name in _SETTINGS if (value := spark.conf.get(name, None)) is not None}
    settings[MOST_BYTES] = str(spark._jsparkSession.sessionState().conf().arrowMaxBytesPerBatch())
    process = StatefulProcess(
        processor, shape, time_mode, declared, settings, pandas=pandas, static=static, output_mode=output_mode, deleted=deleted
    )
    gone = frozenset(table_names(deleted.keys() - declared.keys(), process.taken_names).values())
    return Source(rows, process, gone, states, initial_keys, failure)


def _init(
    processor: StatefulProcessor, time_mode: str, spark: SparkSession, *, static: bool
) -> tuple[dict[str, Declared], dict[str, Declared | None], FloodplainError | None]:
    """The states that ``init`` declares and deletes. What it raises, or what is wrong with them, ends a streaming query with its
    first batch, as in Spark; where all is static it is raised at once."""
    try:
        declared, deleted = declared_by(processor, time_mode, lambda text: parsed_type(spark, text), static=static)
    except Exception as error:
        failure = UserError(f"{'' if static else _DRIVER_CRASHED}{type(error).__name__} in init: {error}")
        failure.__cause__ = error
        return {}, {}, failure
    return declared, deleted, None if static else _not_nullable(declared, spark)


def _not_nullable(declared: Mapping[str, Declared], spark: SparkSession) -> FloodplainError | None:
    """Spark looks at the fields of a value, a list's element or a map's value; what a time to live is kept with passes."""
    if (spark.conf.get(ENCODING, None) or "").lower() != AVRO:
        return None
    for name, state in declared.items():
        schema = state.schemas[-1]
        if not state.ttl_ms and not all(field.nullable for field in schema):
            jvm: Any = spark._jvm
            return BadInput(must_be_nullable(name, jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toString()))
    return None


def parsed_type(spark: SparkSession, text: str) -> StructType:
    jvm: Any = spark._jvm
    return StructType.fromJson(msgspec.json.decode(jvm.org.apache.spark.sql.types.StructType.fromDDL(text).json()))
