"""The drop-in for ``transformWithState``: a PySpark ``StatefulProcessor`` on Floodplain's kernel, unchanged."""

from collections.abc import Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from floodplain.errors import BadInput, FloodplainError, UserError
from floodplain.expressions.identifiers import quoted
from floodplain.scratch import Scratch
from floodplain.spark.transform_with_state.chunks import MOST_BYTES, MOST_ROWS
from floodplain.spark.transform_with_state.errors import must_be_nullable, worker_errors
from floodplain.spark.transform_with_state.frame import Source, StatefulFrame, names_of_keys
from floodplain.spark.transform_with_state.handle import Declared, table_names
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
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

_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_DRIVER_CRASHED = "TransformWithStateInPySpark driver worker exited unexpectedly (crashed): "

_outputs: list[Scratch] = []
"""What static runs have given, which DataFrames read: gone with the process."""


def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
) -> StatefulFrame | DataFrame:
    """``grouped.transformWithState(…)`` with the same arguments and results, on the state of Floodplain.

    Over a streaming DataFrame it returns a frame with ``writeStream``; over a static one it runs at once and returns a DataFrame.
    """
    arguments = (statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
    return _transformed(grouped, grouped.transformWithState(*arguments), arguments, pandas=False)


def transform_with_state_in_pandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
) -> StatefulFrame | DataFrame:
    """``grouped.transformWithStateInPandas(…)``, likewise."""
    arguments = (statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
    return _transformed(grouped, grouped.transformWithStateInPandas(*arguments), arguments, pandas=True)


def _transformed(grouped: Any, planned: DataFrame, arguments: tuple[Any, ...], *, pandas: bool) -> StatefulFrame | DataFrame:
    """``planned`` is Spark's own plan of the same call: it has checked the arguments, and is never run."""
    processor, output, output_mode, time_mode, initial, event_time = arguments
    rows: DataFrame = grouped._df
    spark = rows.sparkSession
    keys, initial_keys = names_of_keys(planned)
    for name in keys:
        if name not in rows.columns:
            raise BadInput(f"key {name} is not a column of the rows: add it with withColumn and group by that")
    output_type = output if isinstance(output, StructType) else _parse(spark, output)
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
    source = Source(rows, process, gone, states, initial_keys, failure)
    return _run_static(source, spark, output_type) if static else StatefulFrame(source, planned)


def _init(
    processor: StatefulProcessor, time_mode: str, spark: SparkSession, *, static: bool
) -> tuple[dict[str, Declared], dict[str, Declared | None], FloodplainError | None]:
    """The states that ``init`` declares and deletes. What it raises, or what is wrong with them, ends a streaming query with its
    first batch, as in Spark; where all is static it is raised at once."""
    try:
        declared, deleted = declared_by(processor, time_mode, lambda text: _parse(spark, text), static=static)
    except Exception as error:
        failure = UserError(f"{'' if static else _DRIVER_CRASHED}{type(error).__name__} in init: {error}")
        failure.__cause__ = error
        return {}, {}, failure
    return declared, deleted, None if static else _not_nullable(declared, spark)


def _not_nullable(declared: Mapping[str, Declared], spark: SparkSession) -> FloodplainError | None:
    """Spark looks at the fields of a value, a list's element or a map's value; what a time to live is kept with passes."""
    if (spark.conf.get(_ENCODING, None) or "").lower() != "avro":
        return None
    for name, state in declared.items():
        schema = state.schemas[-1]
        if not state.ttl_ms and not all(field.nullable for field in schema):
            jvm: Any = spark._jvm
            return BadInput(must_be_nullable(name, jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toString()))
    return None


def _parse(spark: SparkSession, text: str) -> StructType:
    jvm: Any = spark._jvm
    return StructType.fromJson(msgspec.json.decode(jvm.org.apache.spark.sql.types.StructType.fromDDL(text).json()))


def _run_static(source: Source, spark: SparkSession, output: StructType) -> DataFrame:
    """All rows as one epoch on a state that is thrown away. As in Spark there is no watermark, so no event-time timer fires."""
    state, output_folder = Scratch("static"), Scratch("output")
    _outputs.append(output_folder)
    plain = source.rows.select(*[F.col(quoted(name)).alias(name, metadata={}) for name in source.rows.columns])
    with worker_errors(), state as place:
        if source.failure is not None:
            raise source.failure
        store = Store.open(place, create=True)
        pipeline = Source(plain, source.process, source.deleted, source.initial, source.initial_keys).stream(store)
        pipeline.write("parquet", path=str(output_folder.path)).start(state=place, finish=False)
        store.close()
    return spark.read.schema(output).parquet(str(output_folder.path))
