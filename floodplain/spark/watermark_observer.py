"""What the rows of an epoch show of their sources, measured in the JVM while the first job of the epoch reads them.

Where no job reads them, as when a step of the user's passes its input over, a job of its own does.
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

_LOOK_MS, _LOOKS = 20, 500
"""How often to look whether the metrics have come while Spark's listeners have work to do, and how many times."""


def observed(rows: DataFrame, rule: WatermarkRule, now_ms: int) -> tuple[DataFrame, Callable[[], dict[str, SourceObservation]]]:
    """The rows as operators get them, and what they show, to be asked once the jobs of the epoch have run.

    As ``eventtime/measure.py`` has it. It costs no pass of its own if a job has read them: Spark aggregates beside its work.
    """
    if rule.ingestion:
        return rows.withColumn(rule.column, F.expr(f"timestamp_millis({_same_in_every_row(rows, now_ms)})")), dict
    observation = Observation()
    measured = [metric for number, source in enumerate(rule.sources) for metric in _metrics(rows, rule, number, source)]
    watched = kept = rows.observe(observation, *measured)
    if rule.heartbeat is not None:
        kept = kept.where(f"{_sql(rule.heartbeat)} is null")

    def seen() -> dict[str, SourceObservation]:
        found = _collected(observation, rows) or watched.agg(*measured).collect()[0].asDict()
        return {source: _seen(found, number) for number, source in enumerate(rule.sources)}

    return kept, seen


def _same_in_every_row(rows: DataFrame, number: int) -> str:
    """SQL for a number that is another one in the next epoch. As a literal it would be part of the code that Spark generates,
    which would have to be compiled anew in each epoch; an element of an array is data."""
    hashed = next((field.name for field in rows.schema if isinstance(field.dataType, AtomicType)), None)
    return f"{number}L" if hashed is None else f"array({number}L, {number}L)[shiftrightunsigned(hash({quoted(hashed)}), 31)]"


def _collected(observation: Observation, rows: DataFrame) -> dict[str, Any]:
    """The metrics of the first job that read the rows; empty if none did, or if Spark left them out of its plan.

    Spark tells of them by a listener, a moment after the job has ended. Once its listeners have nothing left to do they will not
    come any more; ``Observation.get`` would wait for ever.
    """
    bridge: Any = observation._jo
    bus = rows.sparkSession.sparkContext._jsc.sc().listenerBus()
    for _ in range(_LOOKS):
        if bridge.future().isCompleted() or _idle(bus):
            break
    done = bridge.future().value()
    found = done.isDefined() and done.get().isSuccess() and done.get().get().size() > 0
    return observation.get if found else {}


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
    found = {"rows": f"count(if({mine}, 1, null))"}
    if kept == 1:
        found["newest"] = f"max({event_ms})"
    elif kept:
        found["newest"] = f"max_by({event_ms}, {event_ms}, {kept})"
    promises = [_ms(rows, path) for path in (rule.punctuation, rule.heartbeat) if path is not None]
    if promises:
        latest = promises[0] if len(promises) == 1 else f"greatest({', '.join(promises)})"
        found["promised"] = f"max(if({mine}, {latest}, null))"
    more = [f"{quoted(name)} is not null" for name in more_columns(rows.columns, rule, SOURCE)]
    if rule.heartbeat is not None and more:
        found["ignored"] = f"count(if({mine} and {_sql(rule.heartbeat)} is not null and ({' or '.join(more)}), 1, null))"
    return [F.expr(sql).alias(f"{name}_{number}") for name, sql in found.items()]


def _seen(found: dict[str, Any], number: int) -> SourceObservation:
    newest = found.get(f"newest_{number}")
    times = tuple(newest) if isinstance(newest, list) else () if newest is None else (newest,)
    promised = found.get(f"promised_{number}")
    return SourceObservation(
        found[f"rows_{number}"], times, NONE_MS if promised is None else promised, found.get(f"ignored_{number}", 0)
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
    found: Any = rows.schema
    for name in path:
        found = found[name].dataType
    return found


def _sql(path: Path) -> str:
    return ".".join(map(quoted, path))
