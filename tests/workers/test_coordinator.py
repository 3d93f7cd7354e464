"""The coordinator with processes that speak the protocol by a script, each on a connection of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from floodplain.clock import ManualClock, SystemClock, SystemRandomness
from floodplain.errors import Unavailable
from floodplain.eventtime.times import EpochTimes
from floodplain.workers.answers import WorkerLost
from floodplain.workers.channel import Credentials, Disconnected, connect
from floodplain.workers.coordinator import PATIENCE_S, SILENT_S, Coordinator
from floodplain.workers.members import MOST_LAUNCHES, WAITING_S
from floodplain.workers.messages import Abandon, Beat, Begin, Done, End, Fenced, Peer, Register, Welcome
from tests.waiting import wait_for

SECRET = Credentials(b"s" * 32)


@dataclass
class Launches:
    """A launcher that notes what it is asked, and lets the test be the processes."""

    launched: list = field(default_factory=list)
    cancelled: list = field(default_factory=list)

    def launch(self, worker, job):
        self.launched.append((worker, job))

    def cancel(self, worker, job):
        self.cancelled.append((worker, job))


class Scripted:
    """One process."""

    def __init__(self, coordinator, worker=0, job=0, attempt=0):
        self.channel = connect(("127.0.0.1", coordinator.port), SECRET, SystemRandomness())
        self.channel.send(Register(job, attempt, 1, Peer(worker, "127.0.0.1", 1)))

    def next(self, kind):
        """The next message of this kind; beats are skipped."""
        while True:
            message, _ = self.channel.receive()
            if isinstance(message, kind):
                return message
            assert isinstance(message, Beat), message

    def keep_beating(self, seen=0, open_=()):
        def beat():
            while not self._over.wait(0.2):
                try:
                    self.channel.send(Beat(seen, open_))
                except Disconnected:
                    return

        self._over = threading.Event()
        threading.Thread(target=beat, daemon=True).start()
        return self


def _scene(workers=1, clock=None):
    coordinator, launches = Coordinator(SECRET, ("127.0.0.1", 0), clock or SystemClock(), SystemRandomness()), Launches()
    coordinator.launch(launches, workers)
    return coordinator, launches


@pytest.fixture
def scene():
    coordinator, launches = _scene()
    yield coordinator, launches
    coordinator.close()
    coordinator.disconnect()


def _begin(coordinator, filling=b""):
    return Begin(coordinator.next_id(), "one", b"", filling, EpochTimes(0, 0, 0), 0, {})


def _ask(coordinator, *commands):
    """As the engine's thread does."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(coordinator.ask, commands)
    finally:
        pool.shutdown(wait=False)


def test_the_newest_attempt_has_the_place_and_the_older_one_waits_without_it(scene):
    coordinator, launches = scene
    older = Scripted(coordinator, attempt=3)
    older.next(Welcome)
    asked = _ask(coordinator, (0, _begin(coordinator)))
    older.next(Begin)
    newer = Scripted(coordinator, attempt=4)
    newer.next(Welcome)
    assert older.next(Fenced)
    with pytest.raises(WorkerLost, match="another attempt"):
        asked.result(10)
    assert older.next(Beat)  # it stays, and hears that the query goes on
    older.channel.send(Done(1, b""))
    assert launches.launched == [(0, 0)]
    assert coordinator.losses == 0


def test_an_older_attempt_that_comes_late_is_fenced_off_and_hears_of_the_query(scene):
    coordinator, launches = scene
    newer = Scripted(coordinator, attempt=4).keep_beating()
    newer.next(Welcome)
    older = Scripted(coordinator, attempt=3)
    older.next(Fenced)
    older.next(Beat)
    newer.channel.close()
    assert older.next(End).at_once  # its launch is over: another is under way
    wait_for("another launch", lambda: launches.launched == [(0, 0), (0, 1)])
    assert launches.cancelled == [(0, 0)]


def _is_cut_off(process):
    with pytest.raises(Disconnected):
        process.next(End)
    return True


def test_a_duplicate_that_cannot_be_told_to_end_is_cut_off(scene):
    """Another thread is sending it something, such as a sign of life."""
    coordinator, launches = scene
    newer = Scripted(coordinator, attempt=4).keep_beating()
    newer.next(Welcome)
    older = Scripted(coordinator, attempt=3)
    older.next(Fenced)
    (channel,) = wait_for("the duplicate", lambda: list(coordinator._fenced))
    with channel._sending:
        newer.channel.close()
        assert _is_cut_off(older)
    wait_for("another launch", lambda: launches.launched == [(0, 0), (0, 1)])


def test_an_attempt_that_cannot_be_told_that_it_is_fenced_off_is_cut_off(scene):
    coordinator, _ = scene
    older = Scripted(coordinator, attempt=3)
    older.next(Welcome)
    place = wait_for("its place", lambda: coordinator._members[0].channel)
    with place._sending:
        newer = Scripted(coordinator, attempt=4)
        assert _is_cut_off(older)
    newer.next(Welcome)


def test_what_must_be_told_waits_for_what_is_being_sent(scene):
    coordinator, _ = scene
    newer = Scripted(coordinator, attempt=4).keep_beating()
    newer.next(Welcome)
    older = Scripted(coordinator, attempt=3)
    older.next(Fenced)
    (channel,) = wait_for("the duplicate", lambda: list(coordinator._fenced))
    channel._sending.acquire()
    thread = threading.Timer(PATIENCE_S / 3, channel._sending.release)
    thread.start()
    newer.channel.close()
    assert older.next(End).at_once
    thread.join()


def test_a_process_of_a_launch_that_was_given_up_is_told_to_end(scene):
    coordinator, launches = scene
    first = Scripted(coordinator)
    first.next(Welcome)
    first.channel.close()
    wait_for("another launch", lambda: (0, 1) in launches.launched)
    Scripted(coordinator, job=0, attempt=7).next(End)
    second = Scripted(coordinator, job=1)
    second.next(Welcome)
    coordinator.launch_ended(0, 0, "cancelled")
    assert coordinator.present().keys() == {0}


def test_an_answer_counts_once_and_only_from_who_owes_it():
    coordinator, _ = _scene(2)
    members = [Scripted(coordinator, worker) for worker in range(2)]
    for member in members:
        member.next(Welcome)
    commands = [(worker, _begin(coordinator)) for worker in range(2)]
    asked = _ask(coordinator, *commands)
    for member in members:
        member.next(Begin)
    one, two = commands[0][1].id, commands[1][1].id
    for number, report in ((two, b"not mine"), (99, b"nobody asked"), (one, b"first"), (one, b"again")):
        members[0].channel.send(Done(number, report))
    members[1].channel.send(Done(two, b"mine"))
    assert asked.result(10) == {one: Done(one, b"first"), two: Done(two, b"mine")}
    coordinator.close()
    coordinator.disconnect()


@pytest.mark.parametrize("comes", [True, False])
def test_a_command_or_an_answer_that_got_lost_fails_the_try(scene, comes):
    coordinator, _ = scene
    member = Scripted(coordinator)
    member.next(Welcome)
    command = _begin(coordinator)
    asked = _ask(coordinator, (0, command))
    if comes:
        member.next(Begin)
    member.channel.send(Beat(command.id, (command.id,)))
    member.channel.send(Beat(command.id - 1))
    with pytest.raises(TimeoutError):
        asked.result(0.6)  # it works at it, or does not know of it yet
    member.channel.send(Beat(command.id))
    with pytest.raises(WorkerLost, match="got lost"):
        asked.result(10)
    assert coordinator.losses == 0


def test_a_worker_that_neither_reads_nor_speaks_is_lost_although_a_command_waits_to_be_sent(scene):
    coordinator, launches = scene
    stuck = Scripted(coordinator)
    stuck.next(Welcome)
    asked = _ask(coordinator, (0, _begin(coordinator, bytes(100_000_000))))
    with pytest.raises(WorkerLost):
        asked.result(SILENT_S + 5)
    assert launches.launched == [(0, 0), (0, 1)]


class Watched(ManualClock):
    """Counts how often it is asked."""

    looks = 0

    def monotonic_s(self):
        self.looks += 1
        return super().monotonic_s()


def test_a_driver_that_was_stopped_blames_no_worker():
    clock = Watched()
    coordinator, _ = _scene(clock=clock)
    member = Scripted(coordinator)
    member.next(Welcome)
    clock.advance_ms(60_000)
    member.next(Beat)  # it has looked since
    assert coordinator.losses == 0
    for _ in range(8):
        seen = clock.looks
        wait_for("it to look", lambda seen=seen: clock.looks > seen + 1)
        clock.advance_ms(500)
    wait_for("the loss", lambda: coordinator.losses)
    coordinator.close()
    coordinator.disconnect()


def test_closing_waits_for_no_worker_that_is_stuck(scene):
    coordinator, _ = scene
    stuck = Scripted(coordinator)
    stuck.next(Welcome)
    asked = _ask(coordinator, (0, _begin(coordinator, bytes(100_000_000))))
    wait_for("the command to be under way", lambda: stuck.channel._socket.recv(1))
    coordinator.close()
    coordinator.disconnect()
    with pytest.raises(Unavailable):
        asked.result(10)


def test_workers_that_cannot_be_launched_are_named_with_the_reason():
    clock = ManualClock()
    coordinator, launches = _scene(2, clock)
    for job in range(MOST_LAUNCHES):
        coordinator.launch_ended(0, job, "no such Python")
    assert launches.launched == [(0, 0), (1, 0), *((0, job) for job in range(1, MOST_LAUNCHES))]
    assert "1 of 2 workers cannot be started" in coordinator.concern()
    assert "no such Python" in coordinator.concern()
    assert not coordinator.await_one(0)
    for job in range(MOST_LAUNCHES):
        coordinator.launch_ended(1, job, "no such Python")
    with pytest.raises(Unavailable, match="no such Python"):
        coordinator.await_one(10)
    coordinator.close()
    coordinator.disconnect()


def test_a_worker_that_waits_for_a_core_is_a_concern_after_a_while():
    clock = ManualClock()
    coordinator, _ = _scene(2, clock)
    other = Scripted(coordinator, 1)
    other.next(Welcome)
    assert coordinator.concern() is None
    clock.advance_ms(int(WAITING_S * 1000) + 1)
    assert "1 of 2 workers have waited up to 30 s for a core" in coordinator.concern()
    coordinator.close()
    coordinator.disconnect()


def test_messages_to_all_reach_those_that_are_there(scene):
    coordinator, _ = scene
    member = Scripted(coordinator)
    member.next(Welcome)
    coordinator.abandon("one")
    assert member.next(Abandon) == Abandon("one")
    member.channel.close()


def test_its_threads_end_with_it():
    before = threading.active_count()
    coordinator, _ = _scene()
    member = Scripted(coordinator)
    member.next(Welcome)
    duplicate = Scripted(coordinator, attempt=-1)
    duplicate.next(Fenced)
    coordinator.close()
    coordinator.disconnect()
    wait_for("its threads to end", lambda: threading.active_count() <= before, 10)
