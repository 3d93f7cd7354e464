"""Spark's deduplication as a step: ``dropDuplicates``, ``distinct`` and ``dropDuplicatesWithinWatermark``."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.expressions.identifiers import quoted
from floodplain.operators.kernel.process import Process
from floodplain.operators.ranking.deduplicate import Dedup
from floodplain.operators.ranking.deduplicate_expiring import ExpiringDedup
from floodplain.pipeline.stream import Stream
from floodplain.spark.downstream.plans import DELAY, ByPosition, Fragment, items, kind_of, unique_names
from floodplain.spark.downstream.refused import refused
from floodplain.spark.downstream.steps import BuiltIn, Chain, event_time_of, is_window, keyed
from floodplain.spark.operator_names import DEDUPLICATE, DEDUPLICATE_WITHIN
from floodplain.store.store import Store

KINDS = {"Deduplicate": DEDUPLICATE, "DeduplicateWithinWatermark": DEDUPLICATE_WITHIN}
"""Node of Spark's plan → what its step is called."""
_EVENT_TIME, _UNTIL = "_event_time", "_until"
"""Columns that are added to the rows."""


@dataclass(frozen=True)
class Deduplicate(BuiltIn):
    """The first row of each key. Its state expires by the watermark, if the event time is a key, or a delay after it."""

    name: str
    input: Fragment
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    time: str | None = None
    """The event-time column."""
    of_window: bool = False
    """Whether that is a window, whose end is its time."""
    until: bool = False
    """Whether that is a key."""
    delay_ms: int | None = None

    def applied(self, stream: Stream, store: Store, mode: str) -> Stream:  # noqa: ARG002
        process: Process = Dedup() if self.time is None else ExpiringDedup(until=self._until)
        return keyed(stream, self._rows, self.name, self.keys, process, None if self.time is None else _EVENT_TIME)

    @property
    def _until(self) -> str | None:
        return _UNTIL if self.delay_ms is not None else _EVENT_TIME if self.until else None

    def _rows(self, rows: DataFrame) -> DataFrame:
        made = self.input(rows).toDF(*self.columns)
        if self.time is None:
            return made
        time = F.col(quoted(self.time))
        made = made.withColumn(_EVENT_TIME, time.getField("end") if self.of_window else time)
        if self.delay_ms is None:
            return made
        micros = F.expr(f"timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01 00:00:00', {_EVENT_TIME})")
        if made.schema[_EVENT_TIME].dataType.typeName() == "timestamp":
            micros = F.unix_micros(_EVENT_TIME)
        return made.withColumn(_UNTIL, F.ceil(F.coalesce(micros, F.lit(0)) / 1000).cast("long") + self.delay_ms)


def deduplicated(node: Any, chain: Chain) -> Chain:
    """The chain with a node of Spark's plan that deduplicates."""
    attributes = tuple(items(node.child().output()))
    columns = unique_names([_EVENT_TIME, _UNTIL, *(each.name() for each in attributes)])[2:]
    ids = {each.exprId().id(): name for each, name in zip(attributes, columns, strict=True)}
    keys = {each.exprId().id(): each for each in items(node.keys())}
    time, within = event_time_of(node.child().output()), kind_of(node) == "DeduplicateWithinWatermark"
    name = chain.named(KINDS[kind_of(node)])
    if time is not None and not chain.has_watermark:
        raise refused(
            "deduplication by event time", "in Spark no watermark passes a step of processing time: leave the column out"
        )
    step = Deduplicate(name, chain.last, tuple(columns), tuple(dict.fromkeys(ids[key] for key in keys)))
    if time is not None:
        delay_ms = time.metadata().getLong(DELAY) if within else None
        step = Deduplicate(
            *(step.name, step.input, step.columns, step.keys, ids[time.exprId().id()]),
            of_window=is_window(time),
            until=time.exprId().id() in keys,
            delay_ms=delay_ms,
        )
    return chain.then(step, Fragment(ByPosition(attributes, is_plain=False)))
