"""Eight writers at once, as threads and as processes: one winner for each epoch, and every reader sees one history."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from floodplain.clock import SeededRandomness, SystemClock
from floodplain.errors import Conflict, SnapshotExpired
from floodplain.metrics import Counters
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.log import lease
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.records.edit import DropTag
from floodplain.versions.retention.garbage import collect
from floodplain.versions.retention.pins import pin
from tests.versions.world import check_clean, check_manifest, check_store, compact, create, memory, next_epoch, reopen, sweep

WRITERS = 8
CLOCK = SystemClock()


@pytest.fixture(params=["memory", "directory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "memory":
        return memory()
    return DirectoryBlobs(tmp_path, sync=False, randomness=SeededRandomness(0), counters=Counters())


def test_one_winner_for_each_epoch(blobs: Blobs) -> None:
    rounds = 30
    create(blobs, CLOCK)
    start = threading.Barrier(WRITERS)
    histories = [reopen(blobs, CLOCK) for _ in range(WRITERS)]

    def work(history: History) -> list[int]:
        won = []
        start.wait()
        while (epoch := history.refresh().epoch) < rounds:
            try:
                next_epoch(history)
            except Conflict:
                continue
            won.append(epoch + 1)
            maybe_checkpoint(history)
        return won

    with ThreadPoolExecutor(WRITERS) as pool:
        won = Counter(epoch for result in pool.map(work, histories) for epoch in result)
    assert won == Counter(range(1, rounds + 1))
    head = check_store(blobs, CLOCK).head
    assert all(history.refresh() == head for history in histories)


def test_threads_that_share_one_history(blobs: Blobs) -> None:
    history = create(blobs, CLOCK)
    start = threading.Barrier(WRITERS)

    def work(_: int) -> None:
        start.wait()
        for _ in range(10):
            commit(history, [DropTag("x")])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS)))
    assert history.head.position == 1 + WRITERS * 10
    assert reopen(blobs, CLOCK).head == history.head


def test_one_lease_at_a_time(blobs: Blobs) -> None:
    create(blobs, CLOCK)
    start = threading.Barrier(WRITERS)

    def work(number: int) -> int:
        history = reopen(blobs, CLOCK)
        start.wait()
        token = lease.take(history, f"w{number}", force=True)
        try:
            next_epoch(history, token)
        except Conflict:
            return 0
        return token

    with ThreadPoolExecutor(WRITERS) as pool:
        tokens = [token for token in pool.map(work, range(WRITERS)) if token]
    head = check_store(blobs, CLOCK).head
    assert head.lease.token == WRITERS
    assert head.epoch == len(tokens) >= 1
    assert len(set(tokens)) == len(tokens)


ROUNDS = 120


def busy(history: History) -> bool:
    return history.refresh().epoch < ROUNDS


def writing(history: History) -> None:
    while busy(history):
        with suppress(Conflict):
            next_epoch(history)
            maybe_checkpoint(history)


def compacting(history: History) -> None:
    while busy(history):
        with suppress(Conflict):
            compact(history)


def collecting(history: History) -> None:
    while busy(history):
        collect(history, horizon=max(0, history.head.position - 6))


def reading(history: History) -> None:
    while busy(history):
        with suppress(SnapshotExpired), pin(history) as held:
            check_manifest(held.manifest, history.blobs)


@pytest.fixture
def _many_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_many_switches")
def test_writers_compactors_collectors_and_readers_together(blobs: Blobs) -> None:
    """Everyone works on one store through a history of their own; nobody sees a manifest with a run missing."""
    next_epoch(create(blobs, CLOCK))
    actors = (writing, writing, compacting, collecting, collecting, reading)
    with ThreadPoolExecutor(len(actors)) as pool:
        for future in [pool.submit(act, reopen(blobs, CLOCK)) for act in actors]:
            future.result()
    check_store(blobs, CLOCK)
    check_clean(blobs, sweep(blobs, CLOCK))


PROCESS = """
import sys
from floodplain.clock import SystemRandomness, SystemClock
from floodplain.errors import Conflict
from floodplain.metrics import Counters
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.retention.garbage import collect
from floodplain.versions.log.history import History
from tests.versions.world import SETTINGS, next_epoch

directory, rounds, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
blobs = DirectoryBlobs(directory, sync=False, randomness=SystemRandomness(), counters=Counters())
history = History.open(blobs, settings=SETTINGS, clock=SystemClock(), randomness=SystemRandomness())
print("ready", flush=True)
sys.stdin.readline()
while (epoch := history.refresh().epoch) < rounds:
    try:
        next_epoch(history)
    except Conflict:
        continue
    print(epoch + 1, flush=True)
    maybe_checkpoint(history)
    if number == 0:
        collect(history)
"""


def test_one_winner_for_each_epoch_among_processes(tmp_path: Path) -> None:
    rounds = 40
    blobs = DirectoryBlobs(tmp_path, sync=False, randomness=SeededRandomness(0), counters=Counters())
    create(blobs, CLOCK)
    command = [sys.executable, "-c", PROCESS, str(tmp_path), str(rounds)]
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen([*command, str(n)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = Counter(int(line) for writer in writers for line in writer.communicate()[0].split())
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    assert won == Counter(range(1, rounds + 1))
    assert check_store(blobs, CLOCK).head.epoch == rounds
