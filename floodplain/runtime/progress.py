"""What the last epochs did, and what was dropped since the state was made."""

from dataclasses import dataclass, field

from floodplain.runtime import dropped_rows
from floodplain.store.store import Store

KEPT_EPOCHS = 100


@dataclass
class EpochProgress:
    """What an epoch did."""

    epoch: int
    batch_id: int
    rows: int
    late: int
    dead: int
    """Rows and timers that became dead letters."""
    output_rows: int
    duration_ms: int
    watermark_ms: int | None
    """None as long as there is none."""
    slots: int
    late_by: dict[str, int] = field(default_factory=dict)
    """Operator → rows that came too late for it, if any did."""
    ignored_by: dict[str, int] = field(default_factory=dict)
    """Operator → rows that said nothing to it, if any did: of a pivot those of a kind that it does not list. ``input``:
    heartbeats that had other values, too, which are not processed."""
    early: int = 0
    """Rows of in-order operators that did not wait for the watermark, because no more could."""
    busy_ms: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class ProgressLog:
    """The progress of the last epochs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.epochs: list[EpochProgress] = []
        """Oldest first."""

    def add(self, progress: EpochProgress) -> None:
        self.epochs.append(progress)
        del self.epochs[:-KEPT_EPOCHS]

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Operator → how many rows it has dropped since the state was made, by reason: ``late`` or ``ignored``."""
        return dropped_rows.totals(self._store.head.counts)
