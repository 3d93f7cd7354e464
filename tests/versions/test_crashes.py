"""A crash at every blob operation, once and twice: the store opens at the last committed epoch and is cleaned up later."""

from collections.abc import Callable

import pytest

from floodplain.clock import ManualClock
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import lease
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.retention.garbage import collect
from floodplain.versions.retention.tags import drop_tag, set_tag
from tests.faults import crashed
from tests.versions.world import check_clean, check_store, compact, create, epochs, memory, next_epoch, reopen, restore, sweep

CLOCK = ManualClock()


def write(blobs: Blobs) -> None:
    history = reopen(blobs, CLOCK)
    token = lease.take(history, "w", force=True)
    next_epoch(history, token)
    lease.release(history, token)


def compaction(blobs: Blobs) -> None:
    compact(reopen(blobs, CLOCK))


def checkpoint(blobs: Blobs) -> None:
    history = reopen(blobs, CLOCK)
    assert maybe_checkpoint(history)


def collection(blobs: Blobs) -> None:
    history = reopen(blobs, CLOCK)
    collect(history, horizon=history.head.position)


def tagging(blobs: Blobs) -> None:
    history = reopen(blobs, CLOCK)
    set_tag(history, "b", history.head.epoch)
    drop_tag(history, "a")


def going_back(blobs: Blobs) -> None:
    history = reopen(blobs, CLOCK)
    token = lease.take(history, "w", force=True)
    restore(history, history.head.epochs[0].epoch, token)
    lease.release(history, token)


def everything(blobs: Blobs) -> None:
    write(blobs)
    collection(blobs)
    compaction(blobs)
    going_back(blobs)
    write(blobs)
    collection(blobs)


ACTS: dict[str, Callable[[Blobs], None]] = {
    act.__name__: act for act in (write, compaction, checkpoint, collection, tagging, going_back, everything)
}


def store() -> Blobs:
    blobs = memory()
    history = create(blobs, CLOCK)
    epochs(history, 4)
    set_tag(history, "a", 2)
    compact(history)
    collect(history, horizon=history.head.position)
    epochs(history, 5)
    compact(history)
    epochs(history, 4)
    return blobs


def check_after(blobs: Blobs, least_epoch: int) -> None:
    history = check_store(blobs, CLOCK)
    assert history.head.epoch >= least_epoch
    write(blobs)
    check_store(blobs, CLOCK)
    check_clean(blobs, sweep(blobs, CLOCK))


@pytest.mark.parametrize("act", ACTS)
def test_one_crash(act: str) -> None:
    blobs = store()
    before = reopen(blobs, CLOCK).head.epoch
    count = 0
    for _, after in crashed(blobs, ACTS[act], every_op=act == "write"):
        assert check_store(after, CLOCK).head.epoch - before in range(4)
        check_after(after, before)
        count += 1
    assert count >= 2


@pytest.mark.parametrize("second", ["write", "collection"])
@pytest.mark.parametrize("first", ["write", "compaction", "collection", "going_back"])
def test_a_crash_and_another_while_recovering(first: str, second: str) -> None:
    blobs = store()
    before = reopen(blobs, CLOCK).head.epoch
    for _, once in crashed(blobs, ACTS[first]):
        for _, twice in crashed(once, ACTS[second]):
            check_after(twice, before)


def test_a_crash_at_any_write_of_making_a_store() -> None:
    for _, after in crashed(memory(), lambda blobs: next_epoch(create(blobs, CLOCK))):
        history = create(after, CLOCK)
        next_epoch(history)
        check_store(after, CLOCK)
