"""One worker's process, and what it answers to commands that are not those of its try."""

import pickle
import socket
import threading
from dataclasses import replace

import msgspec
import pytest

from floodplain.clock import ManualClock, SystemClock, SystemRandomness
from floodplain.eventtime.times import EpochTimes
from floodplain.settings import StoreSettings
from floodplain.testing.process_launcher import ProcessLauncher
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.manifest_delta import delta
from floodplain.workers.channel import Credentials, accept
from floodplain.workers.coordinator import Coordinator
from floodplain.workers.kit import WorkerKit
from floodplain.workers.messages import Beat, Begin, Done, End, Register, Run, Welcome
from floodplain.workers.worker import LOST, Launch, work
from tests.waiting import wait_for

SECRET = Credentials(b"s" * 32)
KIT = WorkerKit(
    address=("127.0.0.1", 0),
    credentials=SECRET,
    location="/nowhere",
    settings=StoreSettings(),
    options={},
    operators={},
    checks={},
    load=pickle.loads,
)


@pytest.fixture
def coordinator():
    made = Coordinator(SECRET, ("127.0.0.1", 0), SystemClock(), SystemRandomness())
    kit = replace(KIT, address=("127.0.0.1", made.port))
    launcher = ProcessLauncher(kit, made)
    made.launch(launcher, 1)
    wait_for("the worker", made.present)
    yield made
    made.close()
    launcher.close()
    made.disconnect()


FIRST, SECOND, THIRD = (Manifest("s", 1, position=position, chain=f"c{position}") for position in (1, 2, 3))


def _begin(coordinator, nonce, manifest=FIRST, since=None):
    """``since``: the manifest that the worker has, if it is sent what changed and not the whole of it."""
    whole = b"" if since else msgspec.msgpack.encode(manifest)
    change = msgspec.msgpack.encode(delta(since, manifest)) if since else b""
    times = EpochTimes(0, 0, 0)
    return Begin(coordinator.next_id(), nonce, b"", whole, times, 0, delta=change, chain=manifest.chain)


def _run(coordinator, nonce):
    return Run(coordinator.next_id(), nonce, "unknown", 0, "0", b"", {})


def test_a_worker_refuses_a_manifest_that_it_cannot_know(coordinator):
    """The one of the try is told by its chain, whether it is whole, a change, or the one that the worker has."""
    assert "does not have the manifest" in _failure(coordinator, _begin(coordinator, "one", SECOND, since=FIRST))
    for begin in (_begin(coordinator, "two"), _begin(coordinator, "three", SECOND, since=FIRST)):
        assert coordinator.ask([(0, begin)]) == {begin.id: Done(begin.id, b"")}
    assert "was sent one of c1" in _failure(coordinator, _begin(coordinator, "four", THIRD, since=FIRST))
    unchanged = msgspec.structs.replace(_begin(coordinator, "five", SECOND), manifest=b"")
    assert coordinator.ask([(0, unchanged)]) == {unchanged.id: Done(unchanged.id, b"")}
    stray = msgspec.structs.replace(_begin(coordinator, "six", THIRD), manifest=b"")
    assert "does not have the manifest with chain c3" in _failure(coordinator, stray)


def _failure(coordinator, command):
    return coordinator.ask([(0, command)])[command.id].failure.message


def test_a_command_of_a_try_that_it_does_not_know_is_answered(coordinator):
    assert "does not work at that try" in _failure(coordinator, _run(coordinator, "one"))


def test_a_command_of_an_abandoned_try_is_answered(coordinator):
    begin = _begin(coordinator, "one")
    assert coordinator.ask([(0, begin)]) == {begin.id: Done(begin.id, b"")}
    assert "unknown" in _failure(coordinator, _run(coordinator, "one"))
    coordinator.abandon("another")
    assert "unknown" in _failure(coordinator, _run(coordinator, "one"))
    coordinator.abandon("one")
    assert "does not work at that try" in _failure(coordinator, _run(coordinator, "one"))


def test_what_comes_late_of_another_try_ends_not_the_present_one(coordinator):
    late, present = _begin(coordinator, "one"), _begin(coordinator, "two")
    coordinator.ask([(0, present)])
    coordinator.tell_all(late)
    assert "unknown" in _failure(coordinator, _run(coordinator, "two"))


def test_what_comes_late_of_another_try_is_not_run(coordinator):
    coordinator.ask([(0, _begin(coordinator, "two"))])
    assert "does not work at that try" in _failure(coordinator, _run(coordinator, "one"))


def test_a_worker_whose_process_is_replaced_in_a_try_fails_it(coordinator):
    coordinator.ask([(0, _begin(coordinator, "one"))])
    before = coordinator.pids
    coordinator.lose([0], "the test has no use for it")
    wait_for("another process", lambda: coordinator.pids and coordinator.pids != before)
    assert "does not work at that try" in _failure(coordinator, _run(coordinator, "one"))


class Alone:
    """A worker whose coordinator is the test, which also is its clock."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr("floodplain.workers.worker.BEAT_S", 0.01)
        self.clock, self.left = ManualClock(0), []
        listening = socket.create_server(("127.0.0.1", 0))
        kit = replace(KIT, address=listening.getsockname())
        launch = Launch(0, 0, 0, 1)
        self._thread = threading.Thread(target=work, args=(kit, launch, self.clock, SystemRandomness(), self.left.append))
        self._thread.start()
        self._channel = accept(listening.accept()[0], SECRET, SystemRandomness())
        listening.close()
        assert isinstance(self._channel.receive()[0], Register)
        self._channel.send(Welcome())
        self.await_beats()

    def pass_time(self, seconds):
        self.clock.advance_ms(int(seconds * 1000))
        self.await_beats()

    def await_beats(self):
        """Two: the worker has looked at the clock in between."""
        for _ in range(2):
            assert isinstance(self._channel.receive()[0], Beat)

    def end(self):
        self._channel.send(End())
        self._thread.join()


def test_a_worker_that_was_stopped_itself_does_not_take_its_driver_for_gone(monkeypatch):
    alone = Alone(monkeypatch)
    for _ in range(3):
        alone.pass_time(KIT.alone_s * 3)
    assert alone.left == []
    for _ in range(int(KIT.alone_s)):
        alone.pass_time(0.5)
    assert alone.left == []
    for _ in range(int(KIT.alone_s) + 1):
        alone.pass_time(0.5)
    assert set(alone.left) == {LOST}
    alone.end()
