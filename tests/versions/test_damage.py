"""Opening a store when its checkpoints or its log are damaged: one kind of file at a time, the last good epoch known."""

import dataclasses

import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Corrupt
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.records.edit import DropTag
from floodplain.versions.retention.garbage import collect
from floodplain.versions.retention.pins import pin
from floodplain.versions.retention.tags import set_tag
from tests.faults import clone
from tests.versions.world import (
    SETTINGS,
    check_store,
    create,
    epochs,
    long_store,
    memory,
    names,
    next_epoch,
    positions,
    reopen,
)


def flip(blobs: Blobs, name: str, bit: int = 80 * 8) -> None:
    data = bytearray(blobs.get(name).to_pybytes())
    data[bit // 8] ^= 1 << bit % 8
    blobs.put(name, bytes(data))


def swap(blobs: Blobs, one: str, two: str) -> None:
    first, second = blobs.get(one), blobs.get(two)
    blobs.put(one, second)
    blobs.put(two, first)


def trimmed_store() -> tuple[Blobs, History]:
    """Forty epochs; the log before the last checkpoints is gone."""
    blobs = memory()
    history = create(blobs, ManualClock())
    for _ in range(4):
        epochs(history, 10)
        collect(history)
    return blobs, history


def test_the_format_file_flipped_at_every_bit() -> None:
    blobs = memory()
    history = create(blobs)
    epochs(history, 2)
    for bit in range(blobs.size(paths.FORMAT) * 8):
        copy = clone(blobs)
        flip(copy, paths.FORMAT, bit)
        with pytest.raises(Corrupt) as caught:
            reopen(copy)
        assert caught.value.file == paths.FORMAT


def test_an_edit_flipped_at_every_bit() -> None:
    blobs = memory()
    history = create(blobs)
    next_epoch(history)
    commit(history, [DropTag("x")])
    next_epoch(history)
    name = paths.log(3)
    for bit in range(blobs.size(name) * 8):
        copy = clone(blobs)
        flip(copy, name, bit)
        with pytest.raises(Corrupt) as caught:
            reopen(copy)
        assert (caught.value.file, caught.value.last_good_epoch) == (name, 1)
        salvaged = History.salvage(copy, settings=SETTINGS, clock=ManualClock(), randomness=SeededRandomness(1))
        assert salvaged.head == salvaged.at(1)
        assert salvaged.damage.file == name
        with pytest.raises(Corrupt):
            next_epoch(salvaged)


def test_a_checkpoint_flipped_at_every_bit_falls_back_to_the_log() -> None:
    blobs = memory()
    settings = dataclasses.replace(SETTINGS, checkpoint_every=2)
    history = create(blobs, settings=settings)
    next_epoch(history)
    maybe_checkpoint(history)
    next_epoch(history)
    assert positions(blobs, paths.MANIFESTS) == [2]
    for bit in range(blobs.size(paths.manifest(2)) * 8):
        copy = clone(blobs)
        flip(copy, paths.manifest(2), bit)
        assert reopen(copy).head == history.head


def test_a_pin_flipped_at_every_bit_stops_the_collection() -> None:
    blobs = memory()
    history = create(blobs)
    epochs(history, 3)
    pin(history, 1)
    (name,) = names(blobs, paths.PINS)
    for bit in range(blobs.size(name) * 8):
        copy = clone(blobs)
        flip(copy, name, bit)
        with pytest.raises(Corrupt) as caught:
            collect(reopen(copy))
        assert caught.value.file == name


def test_every_truncation_of_each_kind_of_file() -> None:
    blobs, history = long_store(10)
    with pin(history, 9):
        kinds = [paths.FORMAT, paths.log(11), names(blobs, paths.PINS)[0]]
        for name in kinds:
            for size in range(blobs.size(name)):
                copy = clone(blobs)
                copy.put(name, blobs.get(name).to_pybytes()[:size])
                with pytest.raises(Corrupt) as caught:
                    collect(reopen(copy))
                assert caught.value.file == name


def test_a_missing_edit_is_a_gap() -> None:
    blobs, history = long_store(20)
    for position in range(17, 21):
        copy = clone(blobs)
        copy.delete([paths.log(position)])
        with pytest.raises(Corrupt, match="no such file, while later ones exist") as caught:
            reopen(copy)
        assert (caught.value.file, caught.value.last_good_epoch) == (paths.log(position), position - 2)
    copy = clone(blobs)
    copy.delete([paths.log(15)])
    assert reopen(copy).head == history.head


def test_swapped_and_stale_edits() -> None:
    blobs, _ = long_store(20)
    copy = clone(blobs)
    swap(copy, paths.log(18), paths.log(19))
    with pytest.raises(Corrupt, match="expected position 18, found position 19") as caught:
        reopen(copy)
    assert caught.value.last_good_epoch == 16
    copy = clone(blobs)
    copy.put(paths.log(18), blobs.get(paths.manifest(16)))
    with pytest.raises(Corrupt, match="kind 2"):
        reopen(copy)
    other, _ = long_store(20)
    copy = clone(blobs)
    copy.put(paths.log(18), other.get(paths.log(18)))
    with pytest.raises(Corrupt, match="expected store"):
        reopen(copy)


def test_an_edit_from_another_future_breaks_the_chain() -> None:
    blobs, _ = long_store(18)
    fork = clone(blobs)
    next_epoch(reopen(fork))
    epochs(reopen(blobs), 2)
    blobs.put(paths.log(20), fork.get(paths.log(20)))
    with pytest.raises(Corrupt, match="expected predecessor") as caught:
        reopen(blobs)
    assert (caught.value.file, caught.value.last_good_epoch) == (paths.log(21), 19)


def test_a_damaged_checkpoint_falls_back_to_an_older_one() -> None:
    blobs, history = long_store(20)
    flip(blobs, paths.manifest(16))
    assert reopen(blobs).head == history.head
    flip(blobs, paths.manifest(8))
    assert reopen(blobs).head == history.head


def test_swapped_checkpoints_and_those_of_other_stores() -> None:
    blobs, history = long_store(20)
    copy = clone(blobs)
    swap(copy, paths.manifest(8), paths.manifest(16))
    assert reopen(copy).head == history.head
    other, _ = long_store(20)
    copy = clone(blobs)
    copy.put(paths.manifest(16), other.get(paths.manifest(16)))
    assert reopen(copy).head == history.head


def test_one_damaged_checkpoint_is_survived_even_after_trimming() -> None:
    blobs, history = trimmed_store()
    newest, older = positions(blobs, paths.MANIFESTS)[-1], positions(blobs, paths.MANIFESTS)[-2]
    flip(blobs, paths.manifest(newest))
    assert reopen(blobs).head == history.head
    flip(blobs, paths.manifest(older))
    with pytest.raises(Corrupt) as caught:
        reopen(blobs)
    assert caught.value.file == paths.manifest(newest)


def test_a_log_that_ends_before_a_damaged_checkpoint_is_not_believed() -> None:
    blobs, _ = trimmed_store()
    newest = paths.manifest(positions(blobs, paths.MANIFESTS)[-1])
    flip(blobs, newest)
    blobs.delete(names(blobs, paths.LOG))
    with pytest.raises(Corrupt) as caught:
        reopen(blobs)
    assert caught.value.file == newest


def test_all_checkpoints_damaged_and_the_log_trimmed() -> None:
    blobs, _ = trimmed_store()
    for position in positions(blobs, paths.MANIFESTS):
        flip(blobs, paths.manifest(position))
    with pytest.raises(Corrupt) as caught:
        reopen(blobs)
    assert caught.value.file == paths.manifest(positions(blobs, paths.MANIFESTS)[-1])
    assert caught.value.last_good_epoch == 0


def test_a_damaged_checkpoint_of_a_past_epoch_is_named() -> None:
    blobs = memory()
    clock = ManualClock()
    history = create(blobs, clock)
    epochs(history, 2)
    set_tag(history, "old", 2)
    for _ in range(3):
        epochs(history, 5)
        collect(history)
    mark = history.head.mark(2)
    assert paths.log(mark.position) not in names(blobs, paths.LOG)
    assert reopen(blobs).tagged("old").epoch == 2
    flip(blobs, paths.manifest(mark.position))
    history = reopen(blobs, clock)
    with pytest.raises(Corrupt) as caught:
        history.tagged("old")
    assert (caught.value.file, caught.value.last_good_epoch) == (paths.manifest(mark.position), history.head.epoch)
    assert history.at(history.head.epoch).epoch == history.head.epoch


def test_a_damaged_checkpoint_whose_log_is_there_is_repaired_by_the_collection() -> None:
    blobs, history = long_store(20)
    flip(blobs, paths.manifest(16))
    collect(reopen(blobs))
    history = check_store(blobs)
    collect(history)
    check_store(blobs)
