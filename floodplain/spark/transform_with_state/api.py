"""The drop-in for ``transformWithState``: a PySpark ``StatefulProcessor`` on Floodplain's kernel, unchanged."""

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from floodplain.expressions.identifiers import quoted
from floodplain.scratch import Scratch
from floodplain.spark import operator_names
from floodplain.spark.environment import check_classic
from floodplain.spark.transform_with_state.errors import worker_errors
from floodplain.spark.transform_with_state.frame import StatefulFrame, StatefulGroups, processed
from floodplain.spark.transform_with_state.source import Source, source_of
from floodplain.store.store import Store

_outputs: list[Scratch] = []
"""What static runs have given, which DataFrames read: gone with the process."""


def transform_with_state(
    grouped: GroupedData | StatefulGroups,
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
    return _transformed(grouped, arguments, pandas=False)


def transform_with_state_in_pandas(
    grouped: GroupedData | StatefulGroups,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
) -> StatefulFrame | DataFrame:
    """``grouped.transformWithStateInPandas(…)``, likewise."""
    arguments = (statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
    return _transformed(grouped, arguments, pandas=True)


def _transformed(grouped: GroupedData | StatefulGroups, arguments: tuple[Any, ...], *, pandas: bool) -> StatefulFrame | DataFrame:
    method = "transformWithStateInPandas" if pandas else "transformWithState"
    if isinstance(grouped, StatefulGroups):
        downstream: StatefulFrame = getattr(grouped, method)(*arguments)
        return downstream
    rows: DataFrame = grouped._df
    planned = getattr(grouped, method)(*arguments)
    check_classic((planned,))
    if rows.isStreaming:
        return processed(grouped, planned, arguments, {}, pandas=pandas)
    return _run_static(source_of(rows, planned, arguments, pandas=pandas))


def _run_static(source: Source) -> DataFrame:
    """All rows as one epoch on a state that is thrown away. As in Spark there is no watermark, so no event-time timer fires."""
    state, output_folder = Scratch("static"), Scratch("output")
    _outputs.append(output_folder)
    plain = source.rows.select(*[F.col(quoted(name)).alias(name, metadata={}) for name in source.rows.columns])
    with worker_errors(), state as place:
        if source.failure is not None:
            raise source.failure
        store = Store.open(place, create=True)
        pipeline = replace(source, rows=plain).begun(store, operator_names.PROCESSOR)
        pipeline.write("parquet", path=str(output_folder.path)).start(state=place, finish=False)
        store.close()
    return source.rows.sparkSession.read.schema(source.process.shape.output).parquet(str(output_folder.path))
