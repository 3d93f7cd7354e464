"""One step of one actor in the middle of another's, at every operation: each stays whole, or gives up."""

from collections.abc import Callable

import pytest

from floodplain.errors import Conflict
from floodplain.tiers.blobs import Blobs
from tests.faults import At, FaultyBlobs, clone, operations
from tests.store.scene import Scene


def commit(scene: Scene, blobs: Blobs) -> None:
    scene.commit(scene.take(blobs))


def compaction(scene: Scene, blobs: Blobs) -> None:
    list(scene.open(blobs).compact(full=True, step_bytes=20_000))


def collection(scene: Scene, blobs: Blobs) -> None:
    scene.take(blobs).collect_garbage()


def unleased_collection(scene: Scene, blobs: Blobs) -> None:
    scene.open(blobs).collect_garbage()


def everything(scene: Scene, blobs: Blobs) -> None:
    """Another writer takes over for good: several epochs, everything compacted, the log trimmed."""
    writer = scene.take(blobs)
    for _ in range(3):
        scene.commit(writer)
        list(writer.store.compact(full=True))
        writer.collect_garbage()


STEPS = (commit, compaction, collection, unleased_collection, everything)


def interleave(act: Callable[[Scene, Blobs], None], other: Callable[[Scene, Blobs], None], take_each: int) -> int:
    """``other`` runs in full before an operation of ``act``; every so many operations are tried."""
    scene = Scene(3, inline_bytes=0, tasks=2, checkpoint_every=4)
    blobs = scene.create(7)
    ops = operations(blobs, lambda on: act(scene, on))[::take_each]
    for op in ops:
        copy = clone(blobs)
        try:
            act(scene, FaultyBlobs(copy, At(op.index, "before", lambda copy=copy: other(scene, copy))))
        except Conflict:
            assert act in (commit, collection, everything), op
        scene.check(copy)
        writer = scene.take(copy)
        scene.commit(writer)
        writer.collect_garbage()
        scene.check(copy)
        scene.check_clean(copy)
    return len(ops)


@pytest.mark.parametrize("act", STEPS[:4], ids=lambda step: step.__name__)
def test_another_taking_over_in_the_middle(act: Callable[[Scene, Blobs], None]) -> None:
    assert interleave(act, everything, take_each=5)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("other", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("act", STEPS, ids=lambda step: step.__name__)
def test_any_step_in_the_middle_of_any(act: Callable[[Scene, Blobs], None], other: Callable[[Scene, Blobs], None]) -> None:
    tried = interleave(act, other, take_each=1)
    print(f"races: {other.__name__} before each of {tried} operations of {act.__name__}", flush=True)
