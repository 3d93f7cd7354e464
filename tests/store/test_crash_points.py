"""A crash, or an error, at every blob operation of a commit, compaction, collection or rollback, and of the recovery after it.

The store opens at the last committed epoch, the old or the new one, with exactly its content; every retained epoch reads
right; the next writer goes on; and its next collection leaves no orphans. A crash at a read leaves what a crash at the write
before or after it leaves, so the quick form and pairs of crashes try writes only.
"""

from collections.abc import Callable
from functools import cache

import pytest

from floodplain.errors import FloodplainError, Unavailable
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.memory import MemoryBlobs
from tests.faults import At, Crash, FaultyBlobs, When, clone, crash, crash_points, crashed, operations
from tests.store.scene import Scene

EPOCHS = 7
SCENES = {
    "inline": {},
    "objects": {"inline_bytes": 0, "tasks": 2},
    "mixed": {"inline_bytes": 6000, "tasks": 2, "checkpoint_every": 1},
    "checkpoints": {"checkpoint_every": 1},
}
Act = Callable[[Scene, Blobs], object]


@cache
def scene(name: str) -> tuple[Scene, Blobs]:
    chosen = Scene(7, **SCENES[name])
    return chosen, chosen.create(EPOCHS)


def commit(scene: Scene, blobs: Blobs) -> None:
    scene.commit(scene.take(blobs))


def compaction(scene: Scene, blobs: Blobs) -> None:
    assert list(scene.open(blobs).compact(full=True, step_bytes=20_000))


def collection(scene: Scene, blobs: Blobs) -> None:
    """Forgets an epoch, deletes runs and trims the log."""
    writer = scene.take(blobs)
    collected = writer.collect_garbage()
    assert collected.epochs and collected.runs and collected.edits


def rollback(scene: Scene, blobs: Blobs) -> None:
    scene.go_back(scene.take(blobs))


def recovery(scene: Scene, blobs: Blobs) -> None:
    writer = scene.take(blobs)
    scene.commit(writer)
    list(writer.store.compact(full=True))
    writer.collect_garbage()


ACTS: dict[str, Act] = {act.__name__: act for act in (commit, compaction, collection, rollback)}
CASES = [("commit", name) for name in SCENES] + [
    ("compaction", "objects"),
    ("collection", "objects"),
    ("rollback", "objects"),
    ("rollback", "checkpoints"),
]
EPOCH_MADE = ("commit", "rollback")


def crash_at(blobs: Blobs, act: Callable[[Blobs], object], index: int, when: When) -> MemoryBlobs:
    """What a crash at this operation of ``act`` leaves behind."""
    copy = clone(blobs)
    with pytest.raises(Crash):
        act(FaultyBlobs(copy, At(index, when, crash)))
    return copy


def check_recovered(scene_: Scene, blobs: Blobs, least: int) -> None:
    recovery(scene_, blobs)
    assert scene_.check(blobs) > least
    scene_.check_clean(blobs)


def crash_once(act: str, name: str, *, every_op: bool) -> int:
    """Returns how many crashes were tried."""
    scene_, blobs = scene(name)
    last, crashes = EPOCHS, 0
    for label, left in crashed(blobs, lambda on: ACTS[act](scene_, on), every_op=every_op):
        epoch = scene_.check(left)
        assert last <= epoch <= EPOCHS + (act in EPOCH_MADE), label
        last, crashes = epoch, crashes + 1
        check_recovered(scene_, left, epoch)
    assert last == EPOCHS + (act in EPOCH_MADE)
    return crashes


@pytest.mark.parametrize(("act", "name"), CASES)
def test_a_crash_at_any_write_leaves_the_old_epoch_or_the_new(act: str, name: str) -> None:
    assert crash_once(act, name, every_op=False) > 2


def crash_twice(act: str, name: str, *, take_each: int = 1) -> int:
    """A second crash during the recovery from the first. Takes every so many of both; returns how many pairs were tried."""
    scene_, blobs = scene(name)
    pairs = 0
    points = crash_points(operations(blobs, lambda on: ACTS[act](scene_, on)))
    for number, (index, when) in enumerate(points[::take_each]):
        left = crash_at(blobs, lambda on: ACTS[act](scene_, on), index, when)
        epoch = scene_.check(left)
        seconds = crash_points(operations(left, lambda on: recovery(scene_, on)))
        for second_index, second_when in seconds[number % take_each :: take_each]:
            pairs += 1
            again = crash_at(left, lambda on: recovery(scene_, on), second_index, second_when)
            assert scene_.check(again) in (epoch, epoch + 1), (index, when, second_index, second_when)
            check_recovered(scene_, again, epoch)
    return pairs


@pytest.mark.parametrize(("act", "name"), CASES)
def test_a_second_crash_during_recovery_is_as_harmless(act: str, name: str) -> None:
    assert crash_twice(act, name, take_each=7) >= 3


def survive_errors(act: str, name: str, take_each: int) -> None:
    """The process lives on after an error of its blobs, and goes on with what it has in memory."""
    scene_, blobs = scene(name)
    for index, when in crash_points(operations(blobs, lambda on: ACTS[act](scene_, on)), every_op=True)[::take_each]:

        def fail() -> None:
            raise Unavailable("once")

        copy = clone(blobs)
        faulty = FaultyBlobs(copy, At(index, when, fail))
        try:
            ACTS[act](scene_, faulty)
        except FloodplainError:
            assert scene_.check(copy) in (EPOCHS, EPOCHS + 1)
        writer = scene_.take(faulty)
        scene_.commit(writer)
        writer.collect_garbage()
        assert scene_.check(copy) > EPOCHS
        scene_.check_clean(copy)


@pytest.mark.parametrize(("act", "name"), CASES)
def test_an_error_at_any_operation_is_survived(act: str, name: str) -> None:
    survive_errors(act, name, take_each=9)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("act", "name"), CASES)
def test_crashes_and_errors_everywhere(act: str, name: str) -> None:
    survive_errors(act, name, take_each=1)
    crashes, pairs = crash_once(act, name, every_op=True), crash_twice(act, name)
    print(f"crash points: {act} of {name}: whole after each of {crashes} crashes and {pairs} pairs of crashes", flush=True)
