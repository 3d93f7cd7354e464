"""From Spark's analysed plan of a query to the steps of a pipeline."""

from collections.abc import Mapping
from typing import Any, Protocol

from pyspark.sql import DataFrame

from floodplain.spark import operator_names
from floodplain.spark.downstream.aggregation import aggregated
from floodplain.spark.downstream.deduplication import KINDS, deduplicated
from floodplain.spark.downstream.plans import ByPosition, Fragment, analyzed, items, kind_of
from floodplain.spark.downstream.refused import refused, refused_kind
from floodplain.spark.downstream.steps import Chain, First, Step, event_time_of, is_window

PROCESSOR = "TransformWithStateInPySpark"
_STATELESS = frozenset(
    (
        *("Project", "Filter", "SubqueryAlias", "Generate", "Expand", "UpdateEventTimeWatermarkColumn", "ResolvedHint"),
        *("MapInPandas", "MapInArrow", "Repartition", "RepartitionByExpression", "RebalancePartitions", "PythonMapInArrow"),
    )
)
_MODES = ("Append", "Update", "Complete")


class Processor(First, Protocol):
    """What Spark's plan has a node of ``transformWithState`` for."""

    @property
    def gives_watermark(self) -> bool:
        """Whether Spark tells steps downstream of it the watermark."""

    @property
    def needs_watermark(self) -> bool: ...

    def step(self, name: str, rows: Fragment, event_time: str | None, *, has_watermark: bool) -> Step:
        """As a step downstream of another."""


def compiled(planned: DataFrame, processors: Mapping[int, Processor]) -> Chain:
    """The steps of what Spark has planned. ``processors``: by the id of the first column of their output.

    Raises ``Refused`` for a step that has no equal here.
    """
    return _compiled(analyzed(planned), processors)


def _compiled(node: Any, processors: Mapping[int, Processor]) -> Chain:
    kind = kind_of(node)
    if kind == PROCESSOR:
        return _processed(node, processors)
    if kind == "Join":
        return _joined(node, processors)
    if kind == "Aggregate":
        return aggregated(node, _compiled(node.child(), processors))
    if kind in KINDS:
        return deduplicated(node, _compiled(node.child(), processors))
    if kind not in _STATELESS:
        raise refused_kind(kind)
    return _compiled(node.children().head(), processors).under(node)


def _processed(node: Any, processors: Mapping[int, Processor]) -> Chain:
    processor = processors.get(node.output().head().exprId().id())
    if processor is None:
        raise refused("a join or union with itself", "its rows would be needed twice: write the output, and read that")
    last = Fragment(ByPosition(tuple(items(node.output()))))
    # Spark puts the keys in front of the rows.
    upstream = node.left().child()
    if not _has_processor(upstream):
        return Chain(processor, operator_names.PROCESSOR, (), last, has_watermark=processor.gives_watermark)
    chain = _compiled(upstream, processors)
    if processor.needs_watermark and not chain.has_watermark:
        raise refused(
            "transformWithState of event time",
            "in Spark no watermark passes a step of processing time, so no timer would fire: use 'None' as its time mode",
        )
    time = event_time_of(upstream.output())
    named = None if time is None or is_window(time) else str(time.name())
    step = processor.step(chain.named(operator_names.PROCESSOR), chain.last, named, has_watermark=chain.has_watermark)
    return chain.then(step, last, has_watermark=chain.has_watermark and processor.gives_watermark)


def _has_processor(node: Any) -> bool:
    return kind_of(node) == PROCESSOR or any(_has_processor(child) for child in items(node.children()))


def _joined(node: Any, processors: Mapping[int, Processor]) -> Chain:
    """A join with a static side keeps no state: each batch is joined with what that side has then."""
    sides = list(items(node.children()))
    streaming = [at for at, side in enumerate(sides) if side.isStreaming()]
    if len(streaming) != 1:
        raise refused_kind("Join")
    (at,) = streaming
    return _compiled(sides[at], processors).under(node, at)


def refused_by_spark(planned: DataFrame) -> bool:
    """Whether Spark starts no query of this plan, whatever its output mode: then its own error says why."""
    jvm: Any = planned.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes
    for mode in _MODES:
        try:
            checker.checkForStreaming(analyzed(planned), modes.apply(mode))
        except Exception:  # noqa: S112 — of Spark, by the kind of what is wrong
            continue
        return False
    return True
