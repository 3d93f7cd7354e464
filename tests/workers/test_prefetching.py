"""What a compaction writes is in the caches of its readers before it is committed."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SystemClock
from floodplain.keys import hash_columns, key_group
from floodplain.runtime import task_store
from floodplain.runtime.task_store import OpenStore
from floodplain.store.run import cached_run
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.store import Store
from floodplain.workers.answers import WorkerLost
from floodplain.workers.channel import Credentials
from floodplain.workers.kit import WorkerKit
from floodplain.workers.messages import Prefetch, Prefetched
from floodplain.workers.placement import of_owners
from floodplain.workers.prefetching import Prefetcher, Prefetches
from tests.store import forge
from tests.store.run.test_cached_run import COUNT, SETTINGS, Machine, columns, looked_up
from tests.tiers.conftest import files
from tests.waiting import wait_for
from tests.workers.pipelines import ROWS, batches, build
from tests.workers.worker_kit import WorkersKit


def worker_on(machine: Machine, store: Store, monkeypatch: pytest.MonkeyPatch) -> WorkerKit:
    """A kit for a worker on that machine, in this process."""
    blobs = machine.blobs()
    place = OpenStore(blobs, OpenRuns(blobs, store.head.store, 0), machine.clock)
    monkeypatch.setitem(task_store._opened, (str(machine.root), store.head.store), place)
    return WorkerKit(("", 0), Credentials(b"s" * 32), str(machine.root), SETTINGS, {}, {}, {}, lambda data: data)


@pytest.fixture(params=["small", "large"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    if request.param == "large":
        monkeypatch.setattr(cached_run, "SMALL_BYTES", 100)
        monkeypatch.setattr(cached_run, "SEGMENT_BYTES", 7_000)
    return Machine(tmp_path / "elsewhere")


@pytest.mark.parametrize("groups", [((0, 16),), ((0, 3), (9, 12))], ids=["all", "some"])
def test_the_first_read_after_a_compaction_asks_for_nothing(
    elsewhere: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: tuple[tuple[int, int], ...]
) -> None:
    driver = Machine(tmp_path / "driver")
    elsewhere.below = driver.below
    store = driver.create()
    for epoch in range(4):
        forge.write(store, "t", ("put", columns("value", epoch)))
    reader = elsewhere.process()
    own = [n for n in range(COUNT) if any(low <= group_of(n) < high for low, high in groups)]
    looked_up(reader, own)
    answered = threading.Event()
    prefetcher = Prefetcher(worker_on(elsewhere, store, monkeypatch), SystemClock(), lambda _: answered.set())

    def announce(runs: object) -> None:
        assert len(store.history.refresh().runs["t"]) == 4, "not committed yet"
        answered.clear()
        prefetcher.take(Prefetch(1, store.head.store, tuple(runs), groups, store.head.key_groups))
        assert answered.wait(30)

    (step,) = store.compact(full=True, announce=announce)
    assert step.runs == 4
    asked = driver.below.asked
    assert len(looked_up(reader, own)) == len(own)
    assert len(reader.head.runs["t"]) == 1
    assert driver.below.asked == asked
    prefetcher.close()


def group_of(key: int) -> int:
    return int(key_group(hash_columns([pa.array([key])]), forge.GROUPS)[0])


def test_what_cannot_be_fetched_is_answered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path / "a")
    store = machine.create()
    forge.write(store, "t", ("put", columns("value", 0)))
    (run,) = store.head.runs["t"]
    machine.below.delete([run.object])
    elsewhere = Machine(tmp_path / "b")
    elsewhere.below = machine.below
    answers = list[Prefetched]()
    prefetcher = Prefetcher(worker_on(elsewhere, store, monkeypatch), ManualClock(), answers.append)
    prefetcher.take(Prefetch(7, store.head.store, (run,), ((0, 16),), 16))
    wait_for("an answer", lambda: answers)
    assert answers == [Prefetched(7)] and not files(elsewhere.root)
    prefetcher.close()


def orders(*workers: int) -> object:
    return lambda number: {worker: Prefetch(number, "s", (), (), 16) for worker in workers}


def test_it_waits_for_those_that_answer_and_not_for_those_that_are_lost() -> None:
    prefetches = Prefetches(SystemClock())

    def tell(worker: int, order: Prefetch) -> None:
        if worker == 2:
            raise WorkerLost("gone", 2)
        if worker == 1:
            threading.Timer(0.05, prefetches.lose, [1]).start()
        else:
            prefetches.take(worker, Prefetched(order.id - 1))
            threading.Timer(0.05, prefetches.take, [worker, Prefetched(order.id)]).start()

    assert prefetches.ask(orders(0, 1, 2), tell)
    assert prefetches.ask(orders(), tell)


def test_it_ends_with_the_query() -> None:
    prefetches = Prefetches(SystemClock())
    assert not prefetches.ask(orders(0), lambda worker, order: prefetches.close())


def test_workers_answer_beside_their_epochs(tmp_path: Path) -> None:
    """Processes of their own. Their state is in a directory, so there is nothing to fetch."""
    kit = WorkersKit(tmp_path / "state", build, rows=ROWS, slots=4, workers=2).ready()
    try:
        for rows in batches(2):
            kit.epoch(rows)
        runs = [run for runs in kit.store.head.runs.values() for run in runs]
        assert {worker for slots in kit.engine.pool.placements.values() for worker in slots.values()} == {0, 1}
        assert kit.engine.pool.prefetch(runs, kit.store)
        kit.epoch(batches(3)[2])
    finally:
        kit.close()


def test_the_key_groups_of_owners() -> None:
    slots = (((0, 4),), ((4, 8), (12, 16)), ((8, 12),))
    assert of_owners(slots, {0: 5, 1: 5, 2: 7}) == {5: ((0, 4), (4, 8), (12, 16)), 7: ((8, 12),)}
