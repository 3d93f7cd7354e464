"""Walking a store slowly, while everything else goes on."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.settings import RetentionSettings
from floodplain.store.compaction.compactor import compact
from floodplain.store.compaction.policy import Proposal
from floodplain.store.rows.definition import value_table
from floodplain.store.scrub import scrub
from floodplain.store.store import Store
from floodplain.store.verify import Verdict
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.paced import Paced
from floodplain.versions.records.edit import RunRef
from tests.store import forge

SETTINGS = replace(forge.SETTINGS, checkpoint_every=3, inline_bytes=0, retention=RetentionSettings(newest=2, every_ms=()))


class Meanwhile(ManualClock):
    """Something happens in a chosen sleep."""

    def __init__(self, at: int, what: Callable[[], object]) -> None:
        super().__init__(forge.NOW_MS)
        self._at = at
        self._what = what

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        if len(self.sleeps_s) == self._at:
            self._what()


@pytest.fixture
def store() -> Store:
    return made()


def made() -> Store:
    """Four epochs, two of them retained. The oldest two runs were compacted after the last epoch: only the head names the
    result."""
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": pa.int64()}), settings=SETTINGS)
    for n in range(4):
        write(store, n)
    head = store.head
    oldest = Proposal("t", ((0, head.key_groups),), head.runs["t"][-2:], 0)
    compact(store.history, store.open_runs, oldest, head)
    return store


def write(store: Store, n: int) -> None:
    forge.write(store, "t", ("put", {"k": list(range(30)), "v": [n] * 30}))


def scrubbed(blobs: Blobs, clock: ManualClock, bytes_per_s: int = 100) -> Verdict:
    return scrub(blobs, bytes_per_s, settings=SETTINGS, clock=clock, randomness=SeededRandomness(7))


def newest_compacted(store: Store) -> RunRef:
    return store.head.runs["t"][-1]


def compact_again(store: Store) -> None:
    """No epoch is forgotten, but the run that only the head named goes."""
    list(store.compact(full=True))


def go_on(store: Store) -> None:
    """All epochs that were retained are forgotten."""
    write(store, 5)
    list(store.compact(full=True))
    for n in range(2):
        write(store, n)


def collect(store: Store) -> None:
    with store.writer("gc") as writer:
        writer.collect_garbage()
        writer.collect_garbage()


@pytest.mark.parametrize("change", [compact_again, go_on])
def test_what_goes_meanwhile_is_not_damage_at_whatever_moment_it_goes(change: Callable[[Store], None]) -> None:
    moments = len(run_until_done(made(), lambda: None, 0).sleeps_s)
    assert moments > 10
    for at in range(1, moments + 1, 2):
        store = made()
        run = newest_compacted(store)

        def meanwhile(store: Store = store) -> None:
            change(store)
            collect(store)

        run_until_done(store, meanwhile, at)
        assert run.object not in {info.name for info in store.history.blobs.list("runs/")}


def run_until_done(store: Store, what: Callable[[], object], at: int) -> Meanwhile:
    clock = Meanwhile(at, what)
    verdict = scrubbed(store.history.blobs, clock)
    assert verdict.good, verdict.damages
    return clock


@pytest.mark.parametrize("at", [1, 5, 9])
def test_damage_is_found_although_the_head_moves_on(store: Store, at: int) -> None:
    """The run is named by the head alone when the walk begins, and by later epochs when it comes to it."""
    blobs = store.history.blobs
    run = newest_compacted(store)
    data = bytearray(blobs.get(run.object).to_pybytes())
    data[run.offset + 200] ^= 4
    blobs.put(run.object, bytes(data))
    verdict = scrubbed(blobs, Meanwhile(at, lambda: write(store, 5)))
    (damage,) = verdict.damages
    assert damage.file == run.object
    assert store.head.epoch in damage.epochs


def test_the_rate_is_kept(store: Store) -> None:
    blobs = store.history.blobs
    for bytes_per_s in (100, 1_000, 50_000):
        clock = ManualClock(forge.NOW_MS)
        verdict = scrubbed(blobs, clock, bytes_per_s)
        assert verdict.good
        largest = max(info.size_bytes for info in blobs.list(""))
        assert clock.monotonic_s() >= (verdict.size_bytes - largest) / bytes_per_s - 0.001 * (len(clock.sleeps_s) + 1)


def test_time_that_was_not_used_is_not_saved_up() -> None:
    blobs, clock = forge.memory(), ManualClock()
    blobs.create("runs/x", bytes(100))
    paced = Paced(blobs, 100, clock)
    paced.get("runs/x")
    clock.advance_ms(60_000)
    for _ in range(3):
        paced.get("runs/x")
    assert clock.sleeps_s == pytest.approx([1, 1])


def test_reads_are_told(store: Store) -> None:
    told: list[tuple[int, int, int]] = []
    blobs, clock = store.history.blobs, ManualClock(forge.NOW_MS)
    verdict = scrub(
        blobs, 1_000, settings=SETTINGS, clock=clock, randomness=SeededRandomness(7), progress=lambda *step: told.append(step)
    )
    assert told == sorted(told)
    assert told[0][1] == 0
    assert told[-1][:2] == (verdict.runs, verdict.runs)
    assert len(told) > verdict.runs
