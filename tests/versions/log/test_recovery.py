"""Opening a store: from checkpoints and the log."""

import dataclasses
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace as change

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import BadInput, Corrupt, Refused, SnapshotExpired, StoreNotFound
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import manifests
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.records.frame import Kind, decode, encode
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.retention.garbage import collect
from floodplain.versions.retention.tags import set_tag
from tests.faults import Answers, FaultyBlobs, Op, clone, contents, operations
from tests.versions.world import (
    SETTINGS,
    check_store,
    compact,
    create,
    epochs,
    long_store,
    memory,
    names,
    next_epoch,
    positions,
    reopen,
)


def test_no_store() -> None:
    with pytest.raises(StoreNotFound, match="no store at memory://test"):
        reopen(memory())


def test_creating_what_exists_opens_it() -> None:
    blobs = memory()
    first = create(blobs)
    second = History.create(blobs, 64, settings=SETTINGS, clock=ManualClock(), randomness=SeededRandomness(99))
    assert second.head == first.head
    assert second.format.key_groups == 16


@pytest.mark.parametrize("key_groups", [0, -1, 3, 1 << 17])
def test_impossible_key_groups(key_groups: int) -> None:
    blobs = memory()
    with pytest.raises(BadInput, match="power of two"):
        History.create(blobs, key_groups, settings=SETTINGS, clock=ManualClock(), randomness=SeededRandomness(1))
    assert contents(blobs) == {}


def test_opening_reads_the_newest_checkpoint_and_what_follows() -> None:
    blobs, history = long_store(20)
    assert positions(blobs, paths.MANIFESTS) == [8, 16]
    ops = operations(blobs, lambda blobs: reopen(blobs))
    read = [op.name for op in ops if op.method == "get"]
    assert sorted(read) == sorted([paths.FORMAT, paths.manifest(16), *(paths.log(n) for n in range(17, 22))])
    assert reopen(blobs).head == history.head


def test_the_cost_of_opening_does_not_grow_with_the_state() -> None:
    blobs = memory()
    history = create(blobs)
    costs = []
    for _ in range(6):
        for _ in range(16):
            next_epoch(history)
            compact(history)
            maybe_checkpoint(history)
        costs.append(len(operations(blobs, lambda blobs: reopen(blobs))))
    assert max(costs) <= SETTINGS.checkpoint_every + 8


def test_refresh_after_the_log_was_trimmed_past_this_process() -> None:
    blobs = memory()
    clock = ManualClock()
    create(blobs, clock)
    reader = reopen(blobs, clock)
    writer = reopen(blobs, clock)
    for _ in range(3):
        epochs(writer, 10)
        collect(writer)
    assert paths.log(reader.head.position + 1) not in names(blobs, paths.LOG)
    assert reader.refresh() == writer.head


def test_time_travel_before_and_after_trimming() -> None:
    blobs = memory()
    clock = ManualClock()
    history = create(blobs, clock)
    for _ in range(4):
        epochs(history, 3)
        compact(history)
    held = {epoch: history.at(epoch) for epoch in (10, 11, 12)}
    assert [manifest.epoch for manifest in held.values()] == [10, 11, 12]
    for _ in range(3):
        collect(history)
    for other in (history, reopen(blobs, clock)):
        for epoch, manifest in held.items():
            assert other.at(epoch) == manifest
        with pytest.raises(SnapshotExpired, match="epoch 9 is no longer retained; the newest retained epochs are 10, 11, 12"):
            other.at(9)
        with pytest.raises(BadInput, match="epoch 13 is not committed yet: the last one is 12"):
            other.at(13)


def test_a_stale_process_finds_that_an_epoch_expired() -> None:
    blobs = memory()
    clock = ManualClock()
    writer = create(blobs, clock)
    epochs(writer, 3)
    reader = reopen(blobs, clock)
    for _ in range(3):
        epochs(writer, 10)
        collect(writer)
    with pytest.raises(SnapshotExpired):
        reader.at(1)


def test_time_travel_is_not_fooled_by_a_stray_at_the_very_position() -> None:
    """Between our listing and our reading, the epoch's edit is trimmed and a writer that slept creates another there."""
    blobs = memory()
    clock = ManualClock()
    history = create(blobs, clock)
    epochs(history, 2)
    manifests.save(blobs, history.head, SETTINGS.retry, clock, SeededRandomness(1))
    fork = clone(blobs)
    next_epoch(reopen(fork, clock))
    next_epoch(history)
    expected, position = history.head, history.head.position
    set_tag(history, "x", 3)
    epochs(history, 5)
    faulty = FaultyBlobs(blobs)
    reader = reopen(faulty, clock)

    def trim_and_stray(op: Op) -> None:
        if op.name == paths.log(position) and op.method == "get" and not faulty.plan.done:
            faulty.plan.done = True
            for _ in range(2):
                collect(history)
                epochs(history, 2)
            collect(history)
            assert paths.log(position) not in names(blobs, paths.LOG)
            blobs.create(paths.log(position), fork.get(paths.log(position)))

    faulty.plan.done = False
    faulty.plan.before = trim_and_stray
    assert reader.at(3) == expected
    assert faulty.plan.done


def test_an_empty_store_is_at_epoch_0() -> None:
    history = create(memory())
    assert history.at(0) == history.head
    next_epoch(history)
    with pytest.raises(SnapshotExpired):
        history.at(0)


def test_a_checkpoint_that_cannot_be_written_does_not_fail_the_epoch() -> None:
    blobs = memory()
    create(blobs)
    history = reopen(FaultyBlobs(blobs, Answers("create", paths.MANIFESTS, [("before", Refused("no space"))])))
    epochs(history, 8)
    assert not maybe_checkpoint(history)
    assert isinstance(history.checkpoint_failure, Refused)
    next_epoch(history)
    assert maybe_checkpoint(history)
    assert history.checkpoint_failure is None
    assert check_store(blobs).checkpointed == history.head.position == 10


def test_a_checkpoint_that_reads_back_wrong_is_written_again() -> None:
    blobs = memory()
    create(blobs)
    epochs(reopen(blobs), 8)

    class Lossy(FaultyBlobs):
        def create(self, name, data) -> None:
            super().create(name, bytes(data)[:-1] if name.startswith(paths.MANIFESTS) else data)

    history = reopen(Lossy(blobs))
    assert maybe_checkpoint(history)
    assert reopen(blobs).checkpointed == history.head.position


def test_names_that_mean_nothing_are_ignored() -> None:
    blobs, history = long_store(5)
    for name in ("log/x", "log/00000000000000000009.tmp", "manifest/99999999999999999999.x", "manifest/1", "runs/odd"):
        blobs.create(name, b"?")
    assert reopen(blobs).head == history.head
    collect(history, horizon=history.head.position)
    assert "runs/odd" in names(blobs)


class Spoilt(FaultyBlobs):
    """Of a manifest checkpoint something else is stored, or nothing, as often as it is written."""

    def __init__(self, inner: Blobs, spoil: Callable[[Manifest], Manifest | None]) -> None:
        super().__init__(inner)
        self._spoil = spoil

    def create(self, name: str, data: Any) -> None:
        if not name.startswith(paths.MANIFESTS):
            super().create(name, data)
        elif (other := self._spoil(decode(Kind.MANIFEST, Manifest, data, name))) is not None:
            super().put(name, encode(Kind.MANIFEST, other))

    def put(self, name: str, data: Any) -> None:
        self.create(name, data)


@pytest.mark.parametrize(
    ("spoil", "expected", "found"),
    [
        (lambda whole: None, "the checkpoint just written", "no such file"),
        (lambda whole: change(whole, epochs=whole.epochs[1:]), "the fold of the log", "another manifest"),
        (lambda whole: change(whole, chain="other"), "chain [0-9a-f]{32}", "chain other"),
        (lambda whole: change(whole, position=whole.position + 1), "position 9", "position 10"),
        (lambda whole: change(whole, store="other"), "store .+", "store other"),
    ],
    ids=["nothing", "content", "chain", "position", "store"],
)
def test_a_checkpoint_that_never_reads_back_is_told_as_what_it_is(
    spoil: Callable[[Manifest], Manifest | None], expected: str, found: str
) -> None:
    blobs = memory()
    epochs(create(blobs), 8)
    history = reopen(Spoilt(blobs, spoil))
    assert not maybe_checkpoint(history)
    failure = history.checkpoint_failure
    assert isinstance(failure, Corrupt)
    assert failure.file == paths.manifest(9)
    assert re.fullmatch(expected, failure.expected)
    assert failure.found == found


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_checkpoint_is_written_as_soon_as_it_is_due(every: int) -> None:
    settings = dataclasses.replace(SETTINGS, checkpoint_every=every)
    history = create(memory(), settings=settings)
    written = []
    for _ in range(12):
        next_epoch(history)
        if maybe_checkpoint(history):
            written.append(history.head.position)
    assert written[0] == max(every, 2), "the first edit has the table"
    assert {later - sooner for sooner, later in pairwise(written)} == {every}
    assert positions(history.blobs, paths.MANIFESTS) == written
