"""Many actors under random schedules that a seed repeats: the invariants hold at every step and at the end."""

import random

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Conflict, SnapshotExpired, Unavailable
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import lease, replay
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.retention.garbage import collect
from floodplain.versions.retention.pins import pin
from floodplain.versions.retention.tags import drop_tag, set_tag
from tests.faults import Crash, simulate
from tests.versions.world import (
    SETTINGS,
    check_clean,
    check_manifest,
    check_store,
    compact,
    create,
    epochs,
    lineage,
    memory,
    next_epoch,
    reopen,
    restore,
    sweep,
)

EXPECTED = (Conflict, SnapshotExpired, Unavailable)


class Actors:
    """Each method is one process. ``wins`` records who believes to have committed which epoch."""

    def __init__(self, blobs: Blobs, clock: ManualClock, rng: random.Random) -> None:
        self.truth = blobs
        self.clock = clock
        self.rng = rng
        self.wins: dict[int, list[str]] = {}

    def writer(self, blobs: Blobs) -> None:
        history = reopen(blobs, self.clock)
        name = f"w{self.rng.randrange(3)}"
        token = lease.take(history, name, force=True)
        for _ in range(self.rng.randrange(1, 9)):
            epoch = history.head.epoch + 1
            next_epoch(history, token)
            self.wins.setdefault(epoch, []).append(f"{name}:{token}")
            maybe_checkpoint(history)

    def restorer(self, blobs: Blobs) -> None:
        history = reopen(blobs, self.clock)
        name = f"w{self.rng.randrange(3)}"
        token = lease.take(history, name, force=True)
        for _ in range(self.rng.randrange(1, 3)):
            past = self.rng.choice(history.refresh().epochs).epoch
            expected, epoch = lineage(history.at(past)), history.head.epoch + 1
            restore(history, past, token)
            self.wins.setdefault(epoch, []).append(f"{name}:{token}")
            assert lineage(history.at(epoch)) == expected

    def compactor(self, blobs: Blobs) -> None:
        history = reopen(blobs, self.clock)
        for _ in range(3):
            try:
                compact(history)
            except Conflict:
                history.refresh()

    def collector(self, blobs: Blobs) -> None:
        history = reopen(blobs, self.clock)
        for _ in range(3):
            collect(history, horizon=max(0, history.refresh().position - self.rng.choice((0, 0, 3, 9))))
            self.clock.advance_ms(self.rng.choice((0, 1000, SETTINGS.lease_ms)))

    def reader(self, blobs: Blobs) -> None:
        history = reopen(blobs, self.clock)
        for _ in range(3):
            head = history.refresh()
            with pin(history, self.rng.choice(head.epochs).epoch) as held:
                try:
                    check_manifest(held.manifest, blobs)
                finally:
                    held.check()

    def tagger(self, blobs: Blobs) -> None:
        history = reopen(blobs, self.clock)
        name = f"x{self.rng.randrange(10**9)}"
        set_tag(history, name, self.rng.choice(history.head.epochs).epoch)
        check_manifest(history.tagged(name), blobs)
        drop_tag(history, name)

    def traveller(self, blobs: Blobs) -> None:
        history = reopen(blobs, self.clock)
        for _ in range(5):
            epoch = self.rng.choice(history.refresh().epochs).epoch
            assert history.at(epoch).epoch == epoch


def run(seed: int, crashes: float, losses: float = 0.0) -> None:
    rng = random.Random(seed)
    blobs, clock = memory(), ManualClock()
    epochs(create(blobs, clock, log_segment=rng.choice((1, 1, 2, 5))), 4)
    actors = Actors(blobs, clock, rng)
    kinds = [actors.writer, actors.restorer, actors.compactor, actors.collector, actors.reader, actors.tagger, actors.traveller]
    cast = [actors.writer, actors.collector, *rng.choices(kinds, k=rng.randrange(2, 6))]
    for result in simulate(blobs, cast, rng, crashes, losses):
        if result is not None and not isinstance(result, (*EXPECTED, Crash)):
            raise AssertionError(f"seed {seed}") from result
    history = check_store(blobs, clock)
    assert all(len(winners) == 1 for winners in actors.wins.values()), actors.wins
    assert max(actors.wins, default=0) <= history.head.epoch
    clock.advance_ms(SETTINGS.pin_ms + SETTINGS.lease_ms)
    for tag in history.head.tags:
        drop_tag(history, tag)
    next_epoch(history)
    check_clean(blobs, sweep(blobs, clock))


@pytest.fixture(autouse=True)
def _one_thread_for_each_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_fetched", lambda blobs, positions: ((p, replay.edit_at(blobs, p)) for p in positions))


@pytest.mark.parametrize(("crashes", "losses"), [(0.0, 0.0), (0.4, 0.0), (0.2, 0.05)])
def test_random_schedules(crashes: float, losses: float) -> None:
    for seed in range(150):
        run(seed, crashes, losses)


@pytest.mark.soak
@pytest.mark.parametrize(("crashes", "losses"), [(0.0, 0.0), (0.4, 0.0), (0.2, 0.05), (0.0, 0.2)])
def test_many_random_schedules(crashes: float, losses: float) -> None:
    for seed in range(1_000, 11_000):
        run(seed, crashes, losses)
