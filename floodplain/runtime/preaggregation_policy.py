"""Whether rows are put together before they are exchanged: a decision on what the epoch before has shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from floodplain.operators.kernel.late_rows import LATE
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import Combiner, traits_of
from floodplain.runtime.task import TaskReport

LEAST_ROWS = 50_000
"""In smaller epochs the stage that Spark adds costs more than it saves."""
SKEW = 2
"""How many times the rows of an average slot the fullest one has."""
FADES = 0.95
"""How much of what is known of pieces is left after each epoch without them: they may have changed, and are tried again."""


@dataclass(frozen=True)
class Measured:
    """What an epoch has shown of an operator."""

    rows: int
    groups: float
    """What rows were put together to, or would have been."""
    skew: float
    row_bytes: float | None = None
    """Of a row as it came from Spark, if some came as they were."""
    pieces: float = 1.0
    """How many groups there were for each key when rows were last put together: a key has one in each place where rows of it are
    read, and in each pane. Without it the answer would be another one each time that it is followed."""

    @classmethod
    def of(cls, reports: Sequence[TaskReport], combiner: Combiner | None, before: "Measured | None") -> "Measured":
        """``combiner``: what has put rows together, if they were."""
        rows, received = [report.rows for report in reports], sum(report.received for report in reports)
        keys = sum(report.keys for report in reports)
        row_bytes, pieces = (None, 1.0) if before is None else (before.row_bytes, 1 + FADES * (before.pieces - 1))
        if combiner is not None and keys:
            pieces = received / (combiner.count * keys)
        elif received:
            row_bytes = sum(report.received_bytes for report in reports) / received
        return cls(sum(rows), keys * pieces, max(rows) * len(rows) / max(sum(rows), 1), row_bytes, pieces)


def pays(combiner: Combiner, last: Measured | None) -> bool:
    """As the user said; else, without an epoch to go by it does not."""
    if combiner.when != "auto":
        return bool(combiner.when)
    if last is None or last.rows < LEAST_ROWS:
        return False
    return last.rows >= combiner.rows_per_group * last.groups or last.skew >= SKEW


def combiner_of(process: Process, outputs: Sequence[str], last: Measured | None) -> Combiner | None:
    """How to put rows together now, if at all. Where late rows are read they must come as they are."""
    combiner = traits_of(process).combiner
    if combiner is None or LATE in outputs or not pays(combiner, last):
        return None
    return combiner
