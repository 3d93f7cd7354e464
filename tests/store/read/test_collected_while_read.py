"""Files that are collected while a snapshot is read: it goes on with others of the same epoch, or says that it has expired."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Corrupt, SnapshotExpired
from floodplain.store.compaction import policy
from floodplain.store.compaction.compactor import compact
from floodplain.store.read.snapshot import TableView
from floodplain.store.store import Store
from floodplain.tiers.blobs import Blobs
from tests.faults import clone, interleaved, remembered
from tests.store import world
from tests.store.scene import NAMES, Scene

EPOCHS = 8
DAY_MS = 86_400_000
KEYS = pa.table({"user": ["a", "b", "c", "d", ""]})


def rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


READS: dict[str, Callable[[TableView], Any]] = {
    "multi_get": lambda view: rows_of(view.multi_get(KEYS).rows),
    "pieces": lambda view: [row for n in range(len(KEYS)) for part in view.pieces(KEYS.slice(n, 1)) for row in rows_of(part)],
    "footprint": lambda view: view.footprint(view.multi_get(KEYS).hashes) is not None,
    "scan": lambda view: sorted(row for part in view.scan() for row in rows_of(part)),
    "to_arrow": lambda view: rows_of(view.to_arrow()),
    "count": lambda view: view.count(),
}


class Collected:
    """A store some runs of which were compacted after its last epoch, one that reads it, and one that collects."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.scene = Scene(5, epochs=EPOCHS + 6, window_bytes=1)
        self.blobs = self.scene.create(EPOCHS)
        for table in NAMES:
            self._compact_newest(self.scene.open(self.blobs), table)
        self.readers_clock = ManualClock(self.scene.clock.now_ms() - ahead_ms)

    @staticmethod
    def _compact_newest(store: Store, table: str) -> None:
        """No epoch retains what this makes, once that is compacted again."""
        groups = ((0, store.head.key_groups),)
        newest = policy.levels(store.head, table, groups)[:2]
        proposal = policy.Proposal(table, groups, tuple(run for level in newest for run in level), 1)
        compact(store.history, store.open_runs, proposal, store.head)

    def open(self, blobs: Blobs) -> Store:
        return world.open_store(blobs, self.readers_clock, self.scene.settings)

    def collect(self, blobs: Blobs, epochs: int) -> None:
        """All is compacted, also after each of so many epochs. Two are retained."""
        writer = self.scene.take(blobs)
        list(writer.store.compact(full=True))
        for _ in range(epochs):
            self.scene.commit(writer)
            list(writer.store.compact(full=True))
        writer.collect_garbage()

    def collector(self, epochs: int) -> Callable[[Blobs], None]:
        """``collect``, worked out once for readers that write nothing."""
        return remembered(lambda blobs: self.collect(blobs, epochs))


STANDING = {"newest": 0, "retained": 1, "forgotten": 3}
CLOCKS = {"collector behind": -DAY_MS, "collector ahead": DAY_MS}
WAYS = [*((read, False) for read in READS), ("multi_get", True), ("scan", True)]
CASES = [
    pytest.param(
        STANDING[standing],
        read,
        pinned,
        CLOCKS[clock],
        id=f"{standing}-{read}{'-pinned' if pinned else ''}-{clock}",
        marks=[pytest.mark.soak] if (row + column + other) % 2 else [],
    )
    for row, standing in enumerate(STANDING)
    for column, (read, pinned) in enumerate(WAYS)
    for other, clock in enumerate(CLOCKS)
]
"""Every second one here, all of them in ``make soak-tests``: each way to read meets each standing and both clocks."""


@pytest.mark.parametrize(("epochs", "read", "pinned", "ahead_ms"), CASES)
def test_a_snapshot_reads_its_epoch_or_has_expired(epochs: int, read: str, pinned: bool, ahead_ms: int) -> None:
    made = Collected(ahead_ms)

    def act(blobs: Blobs) -> tuple[int, Any]:
        snapshot = made.open(blobs).snapshot(pinned=pinned)
        return snapshot.epoch, READS[read](snapshot.table("items"))

    expected = act(clone(made.blobs))
    outcomes = []
    for label, after, outcome in interleaved(made.blobs, act, made.collector(epochs)):
        outcomes.append(type(outcome))
        if isinstance(outcome, tuple) and outcome[0] != EPOCHS:
            view = made.scene.open(after).at(outcome[0]).table("items")
            assert outcome[1] == READS[read](view), label
        elif isinstance(outcome, SnapshotExpired):
            assert epochs == 3, (label, outcome)
        else:
            assert outcome == expected, (label, outcome)
    assert epochs < 3 or pinned or SnapshotExpired in outcomes


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, 0, DAY_MS], ids=["collector behind", "one clock", "collector ahead"])
def test_two_epochs_are_compared_or_have_expired(ahead_ms: int) -> None:
    made = Collected(ahead_ms)

    def act(blobs: Blobs) -> list[list[str]]:
        found = made.open(blobs).diff("items", EPOCHS - 1, EPOCHS)
        return [rows_of(part) for change in found for part in (change.added, change.before, change.after, change.deleted)]

    expected = act(clone(made.blobs))
    outcomes = []
    for label, _, outcome in interleaved(made.blobs, act, made.collector(3)):
        assert outcome == expected or isinstance(outcome, SnapshotExpired), (label, outcome)
        outcomes.append(type(outcome))
    assert SnapshotExpired in outcomes


def test_what_is_collected_while_it_is_verified_is_no_damage() -> None:
    made = Collected()
    for label, _, outcome in interleaved(made.blobs, lambda blobs: made.open(blobs).verify().damages, made.collector(3)):
        assert outcome == (), (label, outcome)


@pytest.mark.parametrize("moved", [False, True], ids=["head", "head moved on"])
@pytest.mark.parametrize("read", sorted(READS))
def test_a_file_that_the_newest_manifest_names_is_damage_if_it_is_gone(read: str, moved: bool) -> None:
    made = Collected()
    blobs = clone(made.blobs)
    snapshot = made.open(blobs).snapshot()
    if moved:
        made.scene.commit(made.scene.take(blobs))
    lost = [run.object for run in snapshot.manifest.runs["items"]]
    blobs.delete(lost)
    with pytest.raises(Corrupt, match="no such file") as raised:
        READS[read](snapshot.table("items"))
    assert raised.value.file in lost


def test_a_file_that_a_retained_epoch_names_is_damage_if_it_is_gone() -> None:
    made = Collected()
    blobs = clone(made.blobs)
    snapshot = made.open(blobs).at(EPOCHS - 1)
    lost = snapshot.manifest.objects() - made.open(blobs).head.objects()
    assert lost
    blobs.delete(lost)
    with pytest.raises(Corrupt, match="no such file"):
        snapshot.table("items").to_arrow()


def test_one_that_has_expired_says_what_to_do() -> None:
    made = Collected()
    blobs = clone(made.blobs)
    view = made.open(blobs).snapshot().table("items")
    made.collect(blobs, 3)
    with pytest.raises(SnapshotExpired, match=r"epoch 8 was forgotten .* take a new snapshot, and pin it \(pinned=True\)"):
        view.to_arrow()


def test_one_of_a_table_that_was_redefined_since_has_expired_and_is_not_empty() -> None:
    """What an epoch retains has tables as they were defined then, perhaps under another name."""
    made = Collected()
    blobs = clone(made.blobs)
    writer = made.scene.take(blobs)
    new = world.zoo()["counts"].table.schema()
    writer.define(new)
    view = made.open(blobs).snapshot().table("items")
    made.collect(blobs, 1)
    with pytest.raises(SnapshotExpired):
        view.to_arrow()
