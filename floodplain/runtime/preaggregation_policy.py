"""Decides whether rows are pre-aggregated before the shuffle, from measurements of the last epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

from floodplain.operators.kernel.late_rows import LATE
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import Combiner, traits_of
from floodplain.runtime.task import TaskReport

LEAST_ROWS = 50_000
"""In smaller epochs Spark's extra stage costs more than pre-aggregation saves."""
SKEW = 2
"""How many times the rows of an average slot the fullest one has."""
FADES = 0.95
"""Decay of ``pieces`` per epoch without pre-aggregation: data may have changed, so it is tried again after a while."""


@dataclass(frozen=True)
class Measured:
    """Measurements of one operator in an epoch."""

    rows: int
    groups: float
    """The rows after pre-aggregation, measured or estimated."""
    skew: float
    row_bytes: float | None = None
    """Of a row that was not pre-aggregated, as it came from Spark."""
    pieces: float = 1.0
    """Groups per key at the last pre-aggregation: a key has one in each task that reads some of its rows, and in each pane.
    Without it, the decision would flip with each epoch."""

    @classmethod
    def of(cls, reports: Sequence[TaskReport], combiner: Combiner | None, before: "Measured | None") -> "Measured":
        """``combiner``: the one that was used in this epoch, if any."""
        rows, received = [report.rows for report in reports], sum(report.received for report in reports)
        keys = sum(report.keys for report in reports)
        row_bytes, pieces = (None, 1.0) if before is None else (before.row_bytes, 1 + FADES * (before.pieces - 1))
        if combiner is not None and keys:
            pieces = received / (combiner.count * keys)
        elif received:
            row_bytes = sum(report.received_bytes for report in reports) / received
        return cls(sum(rows), keys * pieces, max(rows) * len(rows) / max(sum(rows), 1), row_bytes, pieces)


def pays(combiner: Combiner, last: Measured | None) -> bool:
    """Whether pre-aggregation is worth its cost. The user's choice decides; without one and without measurements, it is not."""
    if combiner.when != "auto":
        return bool(combiner.when)
    if last is None or last.rows < LEAST_ROWS:
        return False
    return last.rows >= combiner.rows_per_group * last.groups or last.skew >= SKEW


def combiner_of(process: Process, outputs: Sequence[str], last: Measured | None) -> Combiner | None:
    """The combiner to use in the next epoch, if any. Where the output of late rows is read, rows must not be combined."""
    combiner = traits_of(process).combiner
    if combiner is None or LATE in outputs or not pays(combiner, last):
        return None
    return combiner
