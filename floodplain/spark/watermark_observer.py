"""Measures event times of each source in the JVM, while the first job of an epoch reads the rows.

If no job reads them, as when a step of the user ignores its input, an extra job does.
"""

from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.types import AtomicType, DataType, TimestampNTZType, TimestampType

from floodplain.eventtime.measure import more_columns
from floodplain.eventtime.times import NONE_MS
from floodplain.eventtime.watermarks import SourceObservation, WatermarkRule
from floodplain.expressions.identifiers import Path, literal, quoted
from floodplain.pipeline.stream import SOURCE
from floodplain.plan.nodes import Plan

_LOOK_MS, _LOOKS = 20, 500
"""How often to look whether the metrics have come while Spark's listeners have work to do, and how many times."""
DELAY = "spark.watermarkDelayMs"
"""Where Spark notes a column's watermark delay, in the column's metadata."""


def with_event_time(plan: Plan, main: DataFrame) -> Plan:
    """The plan with the event-time column of ``withWatermark``, if the user has called that on the DataFrame."""
    if plan.event_time is not None:
        return plan
    marked = [field.name for field in main.schema.fields if DELAY in field.metadata]
    return Plan(plan.outlets, marked[0], plan.watermark) if marked else plan


def observed(rows: DataFrame, rule: WatermarkRule, now_ms: int) -> tuple[DataFrame, Callable[[], dict[str, SourceObservation]]]:
    """The rows for the operators, and a function that returns what was observed, to be called after the jobs of the epoch.

    The result is that of ``eventtime/measure.py``. If a job has read the rows, there is no extra pass: Spark computes observed
    metrics while the job runs.
    """
    if rule.ingestion:
        return rows.withColumn(rule.column, F.expr(f"timestamp_millis({_same_in_every_row(rows, now_ms)})")), dict
    observation = Observation()
    measured = [metric for number, source in enumerate(rule.sources) for metric in _metrics(rows, rule, number, source)]
    watched = kept = rows.observe(observation, *measured)
    if rule.heartbeat is not None:
        kept = kept.where(f"{_sql(rule.heartbeat)} is null")

    def seen() -> dict[str, SourceObservation]:
        metrics = _collected(observation, rows) or watched.agg(*measured).collect()[0].asDict()
        return {source: _seen(metrics, number) for number, source in enumerate(rule.sources)}

    return kept, seen


def _same_in_every_row(rows: DataFrame, number: int) -> str:
    """SQL for a number that changes with each epoch. A literal would be part of the code that Spark generates, and Spark would
    compile that again in each epoch; an element of an array is data."""
    hashed = next((field.name for field in rows.schema if isinstance(field.dataType, AtomicType)), None)
    return f"{number}L" if hashed is None else f"array({number}L, {number}L)[shiftrightunsigned(hash({quoted(hashed)}), 31)]"


def _collected(observation: Observation, rows: DataFrame) -> dict[str, Any]:
    """The metrics of the first job that read the rows; empty if none did, or if Spark has optimised them away.

    A listener of Spark delivers them shortly after the job. Once the listener bus is empty, they will not come any more, and
    ``Observation.get`` would wait for ever.
    """
    bridge: Any = observation._jo
    bus = rows.sparkSession.sparkContext._jsc.sc().listenerBus()
    for _ in range(_LOOKS):
        if bridge.future().isCompleted() or _idle(bus):
            break
    done = bridge.future().value()
    delivered = done.isDefined() and done.get().isSuccess() and done.get().get().size() > 0
    return observation.get if delivered else {}


def _idle(bus: Any) -> bool:
    try:
        bus.waitUntilEmpty(_LOOK_MS)
    except Py4JJavaError:
        return False
    return True


def _metrics(rows: DataFrame, rule: WatermarkRule, number: int, source: str) -> list[Column]:
    mine = "true" if source == "" else f"{SOURCE} = {literal(source)}"
    data = mine if rule.heartbeat is None else f"{mine} and {_sql(rule.heartbeat)} is null"
    event_ms = f"if({data}, {_ms(rows, (rule.column,))}, null)"
    kept = rule.sources[source].kept
    aggregates = {"rows": f"count(if({mine}, 1, null))"}
    if kept == 1:
        aggregates["newest"] = f"max({event_ms})"
    elif kept:
        aggregates["newest"] = f"max_by({event_ms}, {event_ms}, {kept})"
    promises = [_ms(rows, path) for path in (rule.punctuation, rule.heartbeat) if path is not None]
    if promises:
        latest = promises[0] if len(promises) == 1 else f"greatest({', '.join(promises)})"
        aggregates["promised"] = f"max(if({mine}, {latest}, null))"
    more = [f"{quoted(name)} is not null" for name in more_columns(rows.columns, rule, SOURCE)]
    if rule.heartbeat is not None and more:
        aggregates["ignored"] = f"count(if({mine} and {_sql(rule.heartbeat)} is not null and ({' or '.join(more)}), 1, null))"
    return [F.expr(sql).alias(f"{name}_{number}") for name, sql in aggregates.items()]


def _seen(metrics: dict[str, Any], number: int) -> SourceObservation:
    newest = metrics.get(f"newest_{number}")
    times = tuple(newest) if isinstance(newest, list) else () if newest is None else (newest,)
    promised = metrics.get(f"promised_{number}")
    return SourceObservation(
        metrics[f"rows_{number}"], times, NONE_MS if promised is None else promised, metrics.get(f"ignored_{number}", 0)
    )


def _ms(rows: DataFrame, path: Path) -> str:
    """SQL for a time as milliseconds, rounded down; integers are milliseconds already."""
    match _type(rows, path):
        case TimestampType():
            return f"unix_millis({_sql(path)})"
        case TimestampNTZType():
            return f"timestampdiff(MILLISECOND, timestamp_ntz'1970-01-01', {_sql(path)})"
        case _:
            return f"cast({_sql(path)} as bigint)"


def _type(rows: DataFrame, path: Path) -> DataType:
    type_: Any = rows.schema
    for name in path:
        type_ = type_[name].dataType
    return type_


def _sql(path: Path) -> str:
    return ".".join(map(quoted, path))
