"""Tags keep epochs, whoever collects."""

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import BadInput, BadName, SnapshotExpired
from floodplain.tiers.blobs import Blobs
from floodplain.versions.retention.garbage import collect
from floodplain.versions.retention.tags import drop_tag, set_tag
from tests.faults import interleaved
from tests.versions.world import check_manifest, check_store, compact, create, epochs, memory, reopen


def test_a_tagged_epoch_outlives_retention_and_trimming() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    epochs(history, 2)
    set_tag(history, "gold", 2)
    tagged = history.tagged("gold")
    for _ in range(3):
        epochs(history, 5)
        compact(history)
        collect(history, horizon=history.head.position)
    assert history.tagged("gold") == tagged == reopen(blobs).tagged("gold")
    check_store(blobs)
    drop_tag(history, "gold")
    collect(history)
    with pytest.raises(SnapshotExpired):
        history.at(2)


def test_a_tag_moves() -> None:
    history = create(memory())
    epochs(history, 3)
    set_tag(history, "x", 1)
    set_tag(history, "x", 3)
    assert history.tagged("x").epoch == 3


def test_what_cannot_be_tagged() -> None:
    history = create(memory())
    epochs(history, 8)
    collect(history)
    with pytest.raises(SnapshotExpired, match="cannot tag epoch 1 as 'x'"):
        set_tag(history, "x", 1)
    with pytest.raises(BadInput, match="epoch 9 is not committed yet"):
        set_tag(history, "x", 9)
    for name in ("", "a/b", "../x", "X", "x" * 65, "ä"):
        with pytest.raises(BadName):
            set_tag(history, name, 8)
        with pytest.raises(BadName):
            history.tagged(name)
    with pytest.raises(BadInput, match="no tag 'x'; there are: none"):
        history.tagged("x")
    set_tag(history, "y", 8)
    with pytest.raises(BadInput, match="no tag 'x'; there are: y"):
        drop_tag(history, "x")


def race() -> tuple[Blobs, ManualClock]:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    epochs(history, 6)
    compact(history)
    collect(history)
    epochs(history, 2)
    return blobs, clock


def test_a_tag_set_at_any_moment_of_a_collection() -> None:
    """Either the tag is refused or the epoch stays readable for good."""
    blobs, clock = race()
    outcomes = []

    def tag(blobs: Blobs) -> None:
        try:
            set_tag(reopen(blobs, clock), "x", 4)
            outcomes.append("tagged")
        except SnapshotExpired:
            outcomes.append("too late")

    for label, after, outcome in interleaved(blobs, lambda blobs: collect(reopen(blobs, clock)), tag):
        assert not isinstance(outcome, Exception), (label, outcome)
        history = check_store(after, clock)
        collect(history)
        history = check_store(after, clock)
        assert (4 in {mark.epoch for mark in history.head.epochs}) == (outcomes[-1] == "tagged"), label
    assert set(outcomes) == {"tagged", "too late"}


def test_a_collection_at_any_moment_of_setting_a_tag() -> None:
    blobs, clock = race()
    outcomes = set()

    def both(blobs: Blobs) -> None:
        set_tag(reopen(blobs, clock), "x", 4)

    for label, after, outcome in interleaved(blobs, both, lambda blobs: collect(reopen(blobs, clock))):
        history = check_store(after, clock)
        outcomes.add(type(outcome).__name__)
        assert ("x" in history.head.tags) == (outcome is None), label
        if outcome is None:
            check_manifest(history.tagged("x"), after)
    assert outcomes == {"NoneType", "SnapshotExpired"}
