"""Whether rows are put together before they are exchanged: a decision on what the epoch before has shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from floodplain.operators.combining import Combiner
from floodplain.operators.lateness import LATE
from floodplain.spark.worker import TaskReport

LEAST_ROWS = 50_000
"""In smaller epochs the stage that Spark adds costs more than it saves."""
ROWS_PER_GROUP = 4
SKEW = 2
"""How many times the rows of an average slot the fullest one has."""


@dataclass(frozen=True)
class Measured:
    """What an epoch has shown of an operator."""

    rows: int
    groups: int
    """Keys, or what rows were put together to."""
    skew: float
    row_bytes: float | None = None
    """Of a row as it came from Spark, if some came as they were."""

    @classmethod
    def of(cls, reports: Sequence[TaskReport], combined: bool, before: "Measured | None") -> "Measured":
        rows, received = [report.rows for report in reports], sum(report.received for report in reports)
        groups = received if combined else sum(report.keys for report in reports)
        bytes_ = sum(report.received_bytes for report in reports)
        row_bytes = None if before is None else before.row_bytes
        if received and not combined:
            row_bytes = bytes_ / received
        return cls(sum(rows), groups, max(rows) * len(rows) / max(sum(rows), 1), row_bytes)


def pays(when: object, last: Measured | None) -> bool:
    """``when``: what the user said. Without an epoch to go by it does not."""
    if when != "auto":
        return bool(when)
    if last is None or last.rows < LEAST_ROWS:
        return False
    return last.rows >= ROWS_PER_GROUP * last.groups or last.skew >= SKEW


def combiner_of(process: Any, outputs: Sequence[str], last: Measured | None) -> Combiner | None:
    """How to put rows together now, if at all. Where late rows are read they must come as they are."""
    combiner: Combiner | None = process.combiner
    if combiner is None or LATE in outputs or not pays(combiner.when, last):
        return None
    return combiner
