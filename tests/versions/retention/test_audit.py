"""The audit of all metadata objects, also of those that nobody needs at this moment."""

import pytest

from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.retention.audit import audit
from floodplain.versions.retention.pins import pin
from tests.faults import clone
from tests.versions.world import long_store, names, next_epoch, positions, reopen

LAST, COMMON = 20, 5
"""Positions: of the newest edit, and of the newest that two histories have in common. Checkpoints are at 8 and 16."""


def forked() -> tuple[Blobs, Blobs]:
    """Two stores with the same first edits."""
    blobs, _ = long_store(COMMON - 1)
    both = blobs, clone(blobs)
    for each in both:
        history = reopen(each)
        while history.head.position < LAST:
            next_epoch(history)
            maybe_checkpoint(history)
        assert positions(each, paths.MANIFESTS) == [8, 16]
    return both


def named(blobs: Blobs) -> set[str]:
    return {damage.file for damage in audit(reopen(blobs))[0]}


def test_a_good_store() -> None:
    blobs, history = long_store()
    pin(history)
    damages, size_bytes = audit(reopen(blobs))
    assert not damages
    assert size_bytes == sum(info.size_bytes for info in blobs.list("") if not info.name.startswith(paths.RUNS))


@pytest.mark.parametrize("position", range(COMMON + 1, 16))
def test_an_edit_of_another_history_breaks_the_chain_also_where_nobody_reads_it(position: int) -> None:
    """It is whole, of this store and in its place, but does not follow the one before; or, if it does, nothing follows it."""
    blobs, other = forked()
    blobs.put(paths.log(position), other.get(paths.log(position)))
    assert named(blobs) == {paths.log(position if position > COMMON + 1 else position + 1)}


def test_a_checkpoint_of_another_history_is_not_of_this_log() -> None:
    blobs, other = forked()
    blobs.put(paths.manifest(8), other.get(paths.manifest(8)))
    assert named(blobs) == {paths.manifest(8)}


def test_a_pin_under_the_name_of_another() -> None:
    blobs, history = long_store(5)
    pins = [pin(history, epoch) for epoch in (4, 5)]
    first, second = names(blobs, paths.PINS)
    blobs.put(first, blobs.get(second))
    (damage,), _ = audit(reopen(blobs))
    assert (damage.file, len(pins)) == (first, 2)
    assert first in damage.expected
    assert second in damage.found
