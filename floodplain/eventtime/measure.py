"""Observes the event times of an epoch's rows by source, in Arrow. On Spark the JVM does the same."""

from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import NONE_MS, as_ms
from floodplain.eventtime.watermarks import SourceObservation, WatermarkRule
from floodplain.expressions.identifiers import Path
from floodplain.state.row_expressions import evaluate

INGESTED = pa.timestamp("us", "UTC")
"""The type of a column of ingestion times."""


def observe(rows: pa.Table, rule: WatermarkRule, source_column: str) -> dict[str, SourceObservation]:
    """The observation of each source. ``source_column`` has the source of a row, if there are several."""
    if rule.ingestion:
        return {}
    promised = _promised(rows, rule)
    event_ms = _numbers(as_ms(rows.column(rule.column)))
    data = is_data(rows, rule)
    observations: dict[str, SourceObservation] = {}
    for source, slack in rule.sources.items():
        mine = np.ones(len(rows), bool) if source == "" else _is(rows, source_column, source)
        times = np.sort(event_ms[mine & data & (event_ms > NONE_MS)])[::-1][: slack.kept]
        promises, ignored = promised[mine], int((mine & ~data & _with_more(rows, rule, source_column)).sum())
        observations[source] = SourceObservation(
            int(mine.sum()), tuple(times.tolist()), int(promises.max(initial=NONE_MS)), ignored
        )
    return observations


def more_columns(names: Iterable[str], rule: WatermarkRule, source_column: str) -> list[str]:
    """Columns that are null in a heartbeat: all except the heartbeat itself, its event time and its source."""
    own = {rule.column, source_column, *(rule.heartbeat or ())[:1]}
    return [name for name in names if name not in own]


def _with_more(rows: pa.Table, rule: WatermarkRule, source_column: str) -> np.ndarray:
    more = np.zeros(len(rows), bool)
    for name in more_columns(rows.column_names, rule, source_column):
        more |= np.asarray(rows.column(name).is_valid())
    return more


def is_data(rows: pa.Table, rule: WatermarkRule) -> np.ndarray:
    """For each row whether it is data: a heartbeat is not."""
    if rule.heartbeat is None:
        return np.ones(len(rows), bool)
    return np.asarray(evaluate(rule.heartbeat, rows).is_null())


def timed(rows: pa.Table, rule: WatermarkRule, now_ms: int) -> pa.Table:
    """The rows for the operators: without heartbeats, with the ingestion time if that is their event time."""
    kept = rows.filter(pa.array(is_data(rows, rule)))
    if not rule.ingestion:
        return kept
    at = pa.scalar(datetime.fromtimestamp(now_ms / 1000, UTC), INGESTED)
    return kept.append_column(rule.column, pa.array([at] * len(kept), INGESTED))


def _promised(rows: pa.Table, rule: WatermarkRule) -> np.ndarray:
    latest = np.full(len(rows), NONE_MS)
    for path in (rule.punctuation, rule.heartbeat):
        if path is not None:
            latest = np.maximum(latest, _times(rows, path))
    return latest


def _times(rows: pa.Table, path: Path) -> np.ndarray:
    return _numbers(as_ms(pa.chunked_array([evaluate(path, rows)])))


def _numbers(times_ms: pa.Array) -> np.ndarray:
    return pc.fill_null(times_ms, NONE_MS).to_numpy(zero_copy_only=False)


def _is(rows: pa.Table, source_column: str, source: str) -> np.ndarray:
    return np.asarray(pc.fill_null(pc.equal(rows.column(source_column), source), False))
