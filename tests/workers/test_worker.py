"""One worker's process, and what it answers to commands that are not those of its try."""

import pickle

import pytest

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.eventtime.times import EpochTimes
from floodplain.settings import StoreSettings
from floodplain.testing.process_launcher import ProcessLauncher
from floodplain.workers.channel import Credentials
from floodplain.workers.coordinator import Coordinator
from floodplain.workers.kit import WorkerKit
from floodplain.workers.messages import Begin, Done, Run
from tests.waiting import wait_for

SECRET = Credentials(b"s" * 32)


@pytest.fixture
def coordinator():
    made = Coordinator(SECRET, ("127.0.0.1", 0), SystemClock(), SystemRandomness())
    kit = WorkerKit(
        address=("127.0.0.1", made.port),
        credentials=SECRET,
        location="/nowhere",
        settings=StoreSettings(),
        options={},
        operators={},
        checks={},
        load=pickle.loads,
    )
    launcher = ProcessLauncher(kit, made)
    made.launch(launcher, 1)
    wait_for("the worker", made.present)
    yield made
    made.close()
    launcher.close()
    made.disconnect()


def _begin(coordinator, nonce):
    return Begin(coordinator.next_id(), nonce, b"", b"", EpochTimes(0, 0, 0), 0)


def _run(coordinator, nonce):
    return Run(coordinator.next_id(), nonce, "unknown", 0, "0", b"", ((),), {})


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
