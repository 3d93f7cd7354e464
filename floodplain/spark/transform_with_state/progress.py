"""``lastProgress`` and ``recentProgress`` of the drop-in: Spark's own reports of its batches, with what our epochs did."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from floodplain.errors import FloodplainError
from floodplain.operators.kernel import traits
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.ranking.deduplicate import Dedup
from floodplain.runtime.progress import EpochProgress, OperatorProgress
from floodplain.spark.operator_names import in_spark
from floodplain.spark.runtime import Query
from floodplain.spark.transform_with_state.failing import FailingQuery
from floodplain.spark.transform_with_state.metrics import CUSTOM, DELETED_VARS, NOT_EVICTED, REMOVED, TTL_EXPIRED, UPDATED, VARS
from floodplain.spark.transform_with_state.pandas import PandasFlavour
from floodplain.spark.transform_with_state.process import PANDAS_OPERATOR, ROW_OPERATOR, StatefulProcess
from floodplain.spark.transform_with_state.state_count import COUNTED_ROWS, StateCount, count_expired, count_rows
from floodplain.versions.records.schema import PROCESSING_TIME

_KEPT = "spark.sql.streaming.numRecentProgressUpdates"
_DUPLICATES = "numDroppedDuplicateRows"
_LASTING = frozenset((*VARS.values(), DELETED_VARS))
"""Metrics that an idle query still shows: they tell what it consists of, not what it did."""
_NO_SOURCE_ROWS = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}

_NO_SINK = {"description": "ForeachBatchSink", "numOutputRows": 0}
_RAN = "addBatch"
"""The duration that every batch has."""

Report = dict[str, Any]
"""A progress as Spark has it in JSON."""
_About = tuple[Report, EpochProgress | None, bool]
"""A report, the epoch that it is about, and whether nothing was done since but to wait."""


class ProgressReports:
    """The reports of one query. Epochs that Spark does not know of, which fire timers, have reports of their own."""

    def __init__(self, query: Query | FailingQuery) -> None:
        self._query: Any = query
        self._counted: dict[tuple[int, str], StateCount] = {}

    def last(self) -> StreamingQueryProgress | None:
        reports = self._reports()
        return StreamingQueryProgress.fromJson(self._filled(*reports[-1])) if reports else None

    def recent(self) -> list[StreamingQueryProgress]:
        return [StreamingQueryProgress.fromJson(self._filled(*report)) for report in self._reports()]

    def settle(self) -> None:
        """Count what is to be told of the last epoch, before its state is gone."""
        self.last()

    def _reports(self) -> list[_About]:
        """By time."""
        spark = self._query._query
        assert spark is not None
        batches = [json.loads(report.json()) for report in spark._jsq.recentProgress()]
        epochs = self._query.progress
        empty = {"id": str(spark.id), "runId": str(spark.runId), "name": spark.name, "sources": [], "sink": _NO_SINK}
        reports = [*_of_batches(batches, epochs), *_of_timers(batches or [empty], epochs)]
        reports.sort(key=lambda report: str(report[0]["timestamp"]))
        return reports[-int(spark._jsq.sparkSession().conf().get(_KEPT)) :]

    def _filled(self, report: Report, epoch: EpochProgress | None, idle: bool) -> Report:
        if epoch is None:
            return report
        sink = {**report["sink"], "numOutputRows": 0 if idle else epoch.output_rows}
        operators = self._query._driver.epochs.bound.operators
        # Spark begins with the operator that is nearest to the sink.
        states = [self._state(operators[name], done, epoch, idle) for name, done in reversed(epoch.operators.items())]
        return {**report, "batchId": epoch.epoch - 1, "stateOperators": states, "sink": sink}

    def _state(self, operator: KeyedOperator, done: OperatorProgress, epoch: EpochProgress, idle: bool) -> Report:
        count = self._count(operator, done, epoch)
        processor = isinstance(operator.process, StatefulProcess)
        measures = {} if idle else {**done.measures, TTL_EXPIRED: max(count.expired - done.measures.get(NOT_EVICTED, 0), 0)}
        lasting = {name: value for name, value in done.measures.items() if name in _LASTING}
        shown = {**lasting, **measures}
        return {
            "operatorName": _operator_name(operator),
            "numRowsTotal": count.rows,
            "numRowsUpdated": measures.get(UPDATED if processor else traits.UPDATED, 0),
            "allUpdatesTimeMs": 0 if idle else done.busy_ms,
            "numRowsRemoved": measures.get(REMOVED if processor else traits.REMOVED, 0) + measures.get(TTL_EXPIRED, 0),
            "allRemovalsTimeMs": 0,
            "commitTimeMs": 0 if idle else epoch.commit_ms,
            "memoryUsedBytes": done.state_bytes,
            "numRowsDroppedByWatermark": 0 if idle else epoch.dropped_by[operator.name].late,
            "numShufflePartitions": done.slots,
            "numStateStoreInstances": done.slots,
            "customMetrics": {name: shown.get(name, 0) for name in sorted(CUSTOM)} if processor else _duplicates(operator, shown),
        }

    def _count(self, operator: KeyedOperator, done: OperatorProgress, epoch: EpochProgress) -> StateCount:
        key = (epoch.epoch, operator.name)
        if key not in self._counted:
            counted = self._counted_now(operator, epoch) if done.state_rows <= COUNTED_ROWS else None
            self._counted[key] = counted or StateCount(done.state_rows)
            oldest = self._query.progress[0].epoch
            self._counted = {key: counted for key, counted in self._counted.items() if key[0] >= oldest}
        return self._counted[key]

    def _counted_now(self, operator: KeyedOperator, epoch: EpochProgress) -> StateCount | None:
        """None if the epoch is no longer retained, or its state cannot be read."""
        store = self._query._driver.store
        try:
            after = store.at(epoch.epoch)
            built_in = not isinstance(operator.process, StatefulProcess)
            rows = count_rows(after, operator, epoch.processing_ms, one_per_key=built_in)
            if epoch.epoch == 1:
                return StateCount(rows)
            before = store.at(epoch.epoch - 1)
            times_ms = before.manifest.watermarks[PROCESSING_TIME], epoch.processing_ms
            return StateCount(rows, count_expired(before, after, operator, times_ms))
        except (FloodplainError, OSError):
            return None


def _of_batches(batches: Sequence[Report], epochs: Sequence[EpochProgress]) -> Iterator[_About]:
    """Spark reports a batch, and from time to time that there was none since."""
    by_batch = {epoch.batch_id: epoch for epoch in epochs if epoch.has_input}
    for report in batches:
        if _RAN in report["durationMs"]:
            yield report, by_batch.get(report["batchId"]), False
        else:
            before = [epoch for epoch in epochs if _time(epoch.processing_ms) <= report["timestamp"]]
            yield report, before[-1] if before else None, True


def _of_timers(batches: Sequence[Report], epochs: Sequence[EpochProgress]) -> Iterator[_About]:
    """Reports of epochs without input, made from the last one that Spark has made by then."""
    for epoch in epochs:
        if epoch.has_input:
            continue
        at = _time(epoch.processing_ms)
        before = [report for report in batches if report.get("timestamp", "") <= at]
        yield _without_input((before or batches[:1])[-1], epoch, at), epoch, False


def _without_input(batch: Report, epoch: EpochProgress, at: str) -> Report:
    watermark = {} if epoch.watermark_ms is None else {"watermark": _time(epoch.watermark_ms)}
    return {
        **{name: batch[name] for name in ("id", "runId", "name", "sink")},
        **_NO_SOURCE_ROWS,
        "timestamp": at,
        "batchDuration": epoch.duration_ms,
        "durationMs": {"triggerExecution": epoch.duration_ms},
        "eventTime": watermark,
        "sources": [{**source, "startOffset": source["endOffset"], **_NO_SOURCE_ROWS} for source in batch["sources"]],
    }


def _operator_name(operator: KeyedOperator) -> str:
    process = operator.process
    if not isinstance(process, StatefulProcess):
        return in_spark(operator.name)
    return PANDAS_OPERATOR if process.flavour is PandasFlavour else ROW_OPERATOR


def _duplicates(operator: KeyedOperator, measures: Mapping[str, int]) -> dict[str, int]:
    return {_DUPLICATES: measures.get(traits.DUPLICATES, 0)} if isinstance(operator.process, Dedup) else {}


def _time(at_ms: int) -> str:
    """As Spark writes times."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
