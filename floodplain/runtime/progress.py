"""What the last epochs did, and what was dropped since the state was made."""

from dataclasses import dataclass, field

from floodplain.operators.kernel.operator import DroppedRows, total_dropped
from floodplain.runtime import dropped_rows
from floodplain.store.store import Store
from floodplain.tier_use import TierUse, Uses, tiers_sum

KEPT_EPOCHS = 100


@dataclass(frozen=True)
class OperatorProgress:
    """What the tasks of a stateful operator did in an epoch, and its state after it."""

    slots: int
    busy_ms: int
    """Of all tasks together."""
    measures: dict[str, int]
    """What a caller of its own has counted, by name."""
    state_rows: int
    """Rows in the runs of its tables: those that newer ones replace or delete are counted until compaction drops them."""
    state_bytes: int
    """Of these runs."""


@dataclass
class EpochProgress:
    """What an epoch did."""

    epoch: int
    batch_id: int
    rows: int
    output_rows: int
    duration_ms: int
    watermark_ms: int | None
    """None as long as there is none."""
    slots: int
    """The most that an operator has; ``operators`` has those of each."""
    dropped_by: dict[str, DroppedRows] = field(default_factory=dict)
    """Operator → rows that it did not process as usual, by reason."""
    busy_ms: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    processing_ms: int = 0
    """Processing time of the epoch."""
    has_input: bool = True
    """Whether it processed a batch of the input; else it is for timers only."""
    commit_ms: int = 0
    """How long the commit took."""
    operators: dict[str, OperatorProgress] = field(default_factory=dict)
    """By name."""
    tries: int = 1
    """How often it was tried: more than once if workers were lost."""
    moved_slots: int | None = None
    """How many slots another worker had than in the epoch before, without a rescale. None with ``engine="tasks"``: there Spark
    places each task anew."""
    used: Uses = field(default_factory=dict)
    """An operator, or what the driver does (``driver.commit``, ``driver.publish``, ``driver.upkeep``, ``driver.other``) → tier →
    what it was asked for since the epoch before: requests by kind, bytes, waits, hits of caches. Without tasks whose result did
    not count."""
    cost: float = 0.0
    """Of these requests, by the prices of the settings. Storage is not in it."""

    @property
    def tiers(self) -> dict[str, TierUse]:
        """What each tier was asked for, over all of ``used``."""
        return tiers_sum(self.used)

    @property
    def late(self) -> int:
        """Rows that came too late."""
        return total_dropped(self.dropped_by.values()).late

    @property
    def dead(self) -> int:
        """Rows and timers that became dead letters."""
        return total_dropped(self.dropped_by.values()).dead

    @property
    def early(self) -> int:
        """Rows of in-order operators that did not wait for the watermark, because no more could."""
        return total_dropped(self.dropped_by.values()).early

    @property
    def late_by(self) -> dict[str, int]:
        """Operator → rows that came too late for it, if any did."""
        return dropped_rows.by_operator(self.dropped_by, "late")

    @property
    def ignored_by(self) -> dict[str, int]:
        """Operator → rows that said nothing to it, if any did: of a pivot those of a kind that it does not list. ``input``:
        heartbeats that had other values, too, which are not processed."""
        return dropped_rows.by_operator(self.dropped_by, "ignored")


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
