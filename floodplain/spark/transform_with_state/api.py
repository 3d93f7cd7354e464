"""The drop-in for ``transformWithState``: a PySpark ``StatefulProcessor`` on Floodplain's kernel, unchanged."""

from typing import Any

import msgspec
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from floodplain.errors import BadInput
from floodplain.expressions.identifiers import quoted
from floodplain.scratch import Scratch
from floodplain.spark.transform_with_state.frame import Source, StatefulFrame, names_of_keys
from floodplain.spark.transform_with_state.handle import table_names
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.store.store import Store

_SETTINGS = (
    "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
)
"""What Spark's own worker goes by."""

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
    processor, output, _, time_mode, initial, event_time = arguments
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
    declared, deleted = declared_by(processor, time_mode, lambda text: _parse(spark, text))
    settings = {name: value for name in _SETTINGS if (value := spark.conf.get(name, None)) is not None}
    static = not rows.isStreaming
    process = StatefulProcess(processor, shape, time_mode, declared, settings, pandas=pandas, static=static)
    gone = frozenset(table_names(deleted - set(declared), process.taken_names).values())
    source = Source(rows, process, gone, states, initial_keys)
    return _run_static(source, spark, output_type) if static else StatefulFrame(source, planned)


def _parse(spark: SparkSession, text: str) -> StructType:
    jvm: Any = spark._jvm
    return StructType.fromJson(msgspec.json.decode(jvm.org.apache.spark.sql.types.StructType.fromDDL(text).json()))


def _run_static(source: Source, spark: SparkSession, output: StructType) -> DataFrame:
    """All rows as one epoch on a state that is thrown away. As in Spark there is no watermark, so no event-time timer fires."""
    state, output_folder = Scratch("static"), Scratch("output")
    _outputs.append(output_folder)
    plain = source.rows.select(*[F.col(quoted(name)).alias(name, metadata={}) for name in source.rows.columns])
    with state as place:
        store = Store.open(place, create=True)
        pipeline = Source(plain, source.process, source.deleted, source.initial, source.initial_keys).stream(store)
        pipeline.write("parquet", path=str(output_folder.path)).start(state=place, finish=False)
        store.close()
    return spark.read.schema(output).parquet(str(output_folder.path))
