"""Verdicts: what is damaged, which epochs it touches, and which epoch is still good."""

from dataclasses import replace

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import StoreNotFound
from floodplain.settings import RetentionSettings
from floodplain.store.rows.definition import timer_table, value_table
from floodplain.store.store import Store
from floodplain.store.verify import Verdict, verify_blobs
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from tests.store import forge

SETTINGS = replace(forge.SETTINGS, checkpoint_every=100)


@pytest.fixture
def store() -> Store:
    """Three epochs, each with a run of its own."""
    store = forge.create(settings=SETTINGS)
    with store.writer("test") as writer:
        writer.define(value_table("t", {"k": pa.int64()}, {"v": pa.string()}))
        writer.define(timer_table("timers", {"k": pa.int64()}))
    for n in range(3):
        forge.write(store, "t", ("put", {"k": [n], "v": [str(n)]}))
    return store


def files(store: Store, prefix: str) -> list[str]:
    return [info.name for info in store.history.blobs.list(prefix)]


def damage(blobs: Blobs, name: str, byte: int = -1) -> None:
    data = bytearray(blobs.get(name).to_pybytes())
    data[byte] ^= 1
    blobs.put(name, bytes(data))


def salvaged(store: Store) -> Verdict:
    return verify_blobs(store.history.blobs, settings=SETTINGS, clock=ManualClock(), randomness=SeededRandomness(1))


def test_a_good_store(store: Store) -> None:
    verdict = store.verify()
    assert verdict.good
    assert (verdict.damages, verdict.epochs, verdict.runs, verdict.last_good_epoch) == ((), 3, 3, 3)
    assert verdict.size_bytes == sum(
        info.size_bytes for info in store.history.blobs.list("") if not info.name.startswith("probe")
    )


def test_an_empty_store() -> None:
    verdict = forge.create().verify()
    assert verdict.good
    assert verdict.runs == 0


@pytest.mark.parametrize(("run", "epochs", "last_good"), [(0, (1, 2, 3), None), (1, (2, 3), 1), (2, (3,), 2)])
def test_a_damaged_run_touches_the_epochs_that_read_it(
    store: Store, run: int, epochs: tuple[int, ...], last_good: int | None
) -> None:
    name = files(store, "runs/")[run]
    damage(store.history.blobs, name)
    verdict = forge.reopen(store.history.blobs, SETTINGS).verify()
    (found,) = verdict.damages
    assert (found.file, found.epochs, verdict.last_good_epoch) == (name, epochs, last_good)
    if last_good is not None:
        assert found.last_good_epoch == last_good
        fresh = forge.reopen(store.history.blobs, SETTINGS)
        assert len(fresh.at(last_good).table("t").to_arrow()) == last_good


def test_everything_wrong_is_told_at_once(store: Store) -> None:
    first, _, third = files(store, "runs/")
    damage(store.history.blobs, first)
    store.history.blobs.delete([third])
    verdict = forge.reopen(store.history.blobs, SETTINGS).verify()
    assert {found.file for found in verdict.damages} == {first, third}
    assert verdict.last_good_epoch is None
    assert "no such file" in {found.found for found in verdict.damages}


def test_a_run_that_a_compaction_replaced_still_counts_for_the_epochs_that_read_it(store: Store) -> None:
    names = files(store, "runs/")
    list(store.compact(full=True))
    forge.write(store, "t", ("put", {"k": [9], "v": ["9"]}))
    damage(store.history.blobs, names[1])
    (found,) = forge.reopen(store.history.blobs, SETTINGS).verify().damages
    assert found.file == names[1]
    assert found.epochs == (2, 3)
    assert len(forge.rows(forge.reopen(store.history.blobs, SETTINGS), "t")) == 4


def test_what_no_epoch_reads_any_more_is_not_asked_for(store: Store) -> None:
    names = files(store, "runs/")
    list(store.compact(full=True))
    forge.write(store, "t", ("put", {"k": [9], "v": ["9"]}))
    only_newest = replace(SETTINGS, retention=RetentionSettings(newest=1, every_ms=()))
    keeper = forge.reopen(store.history.blobs, only_newest)
    with keeper.writer("test") as writer:
        writer.collect_garbage()
    assert not set(names) & set(files(store, "runs/"))
    verdict = keeper.verify()
    assert verdict.good
    assert verdict.epochs == 1


def test_a_damaged_edit_stops_the_store_and_not_the_verdict(store: Store) -> None:
    name = paths.log(store.at(2).manifest.position)
    damage(store.history.blobs, name)
    verdict = salvaged(store)
    assert name in {found.file for found in verdict.damages}
    assert verdict.last_good_epoch == 1


def test_a_damaged_format_is_all_that_can_be_told(store: Store) -> None:
    damage(store.history.blobs, "format")
    (found,) = salvaged(store).damages
    assert found.file == "format"
    store.history.blobs.delete(["format"])
    with pytest.raises(StoreNotFound):
        salvaged(store)


def test_progress_is_told_after_each_run(store: Store) -> None:
    steps: list[tuple[int, int]] = []
    store.verify(lambda done, total, size_bytes: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_caches_of_this_process_are_not_believed(store: Store) -> None:
    """The store has read it all; then the file changes."""
    store.snapshot().table("t").to_arrow()
    name = files(store, "runs/")[2]
    damage(store.history.blobs, name, 700)
    assert [found.file for found in store.verify().damages] == [name]
