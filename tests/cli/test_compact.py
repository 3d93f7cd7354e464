import json
import signal
import subprocess
import sys

import pytest

from floodplain.cli.compact import _watched
from floodplain.cli.interrupt import Interrupt
from floodplain.clock import ManualClock
from floodplain.errors import BadInput, Unavailable
from floodplain.settings import CompactionSettings, size_of
from floodplain.store.compaction.budget import Budget
from floodplain.store.store import Store
from tests.cli.stores import SETTINGS, USERS, add_epochs, counts, rows, run, run_json


def live_runs(path) -> int:
    return len(Store.open(path).head.runs["counts"])


def test_runs_are_merged_and_the_content_stays(tmp_path):
    add_epochs(tmp_path, 8)
    before = counts(tmp_path)
    done = run_json("compact", tmp_path)
    assert done["steps"] == done["tables"]["counts"] >= 1
    assert done["rows_after"] < done["rows_before"]
    assert live_runs(tmp_path) < 8
    assert counts(tmp_path) == before == dict.fromkeys(USERS, 8)


def test_full_leaves_one_run_and_then_nothing_to_do(tmp_path):
    add_epochs(tmp_path, 3)
    assert run_json("compact", tmp_path, "--full")["runs_merged"] == 3
    assert live_runs(tmp_path) == 1
    assert run_json("compact", tmp_path, "--full")["steps"] == 0
    assert "nothing worth compacting" in run("compact", tmp_path).stdout


def test_small_steps_are_more_steps(tmp_path):
    add_epochs(tmp_path, 4)
    assert run_json("compact", tmp_path, "--full", "--step-bytes", "4kB")["steps"] > 1
    assert counts(tmp_path) == dict.fromkeys(USERS, 4)


def test_each_step_is_told_on_standard_error(tmp_path):
    add_epochs(tmp_path, 3)
    shown = run("compact", tmp_path, "--full")
    assert shown.stderr.startswith("counts: 3 runs, 60 → 20 rows")
    assert "compacted" in shown.stdout


def test_it_does_not_disturb_an_epoch_that_is_being_written(tmp_path):
    add_epochs(tmp_path, 4)
    store = Store.open(tmp_path, settings=SETTINGS)
    with store.writer("live") as writer:
        epoch = writer.epoch()
        epoch.merge("counts", rows())
        assert run_json("compact", tmp_path, "--full")["steps"] == 1
        epoch.commit()
    assert counts(tmp_path) == dict.fromkeys(USERS, 5)
    assert live_runs(tmp_path) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_goes_on_until_it_is_told_to_end_and_finishes_its_step(tmp_path, number):
    add_epochs(tmp_path, 4)
    command = [sys.executable, "-m", "floodplain", "compact", str(tmp_path), "--full", "--watch", "--every", "0.05", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stderr.readline() == f"watching {tmp_path} every 0.05 s until interrupted\n"
        assert json.loads(watch.stdout.readline())["step"]["runs"] == 4
        add_epochs(tmp_path, 2)
        assert json.loads(watch.stdout.readline())["step"]["table"] == "counts"
        watch.send_signal(number)
        out, err = watch.communicate(timeout=60)
    assert watch.returncode == 0, err
    done = json.loads(out.splitlines()[-1])
    assert done["interrupted"]
    assert done["steps"] >= 2
    assert counts(tmp_path) == dict.fromkeys(USERS, 6)


def test_a_watch_tells_people_of_its_steps_on_standard_error(tmp_path):
    add_epochs(tmp_path, 4)
    command = [sys.executable, "-m", "floodplain", "compact", str(tmp_path), "--full", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stderr.readline().startswith("watching ")
        assert watch.stderr.readline().startswith("counts: 4 runs")
        watch.send_signal(signal.SIGTERM)
        out, _ = watch.communicate(timeout=60)
    assert watch.returncode == 0 and "compacted" in out


def test_a_watch_survives_what_passes(tmp_path):
    add_epochs(tmp_path, 4)
    answers = [Unavailable("no answer"), None]

    class OnceInTwo(Interrupt):
        requested = property(lambda self: not answers)
        wait_s = lambda self, seconds: not answers  # noqa: E731

    store = Store.open(tmp_path, settings=SETTINGS)

    def work():
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return store.compact(full=True)

    assert [step.runs for step in _watched(store, work, 1, OnceInTwo())] == [4]


def test_a_budget_bounds_the_rate(tmp_path):
    clock = ManualClock()
    add_epochs(tmp_path, 8)
    store = Store.open(tmp_path, settings=SETTINGS)
    began_s = clock.monotonic_s()
    steps = list(store.compact(full=True, step_bytes=4000, budget=Budget(1000, clock)))
    moved_bytes = sum(step.bytes_before + step.bytes_after for step in steps)
    last = steps[-1].bytes_after
    assert len(steps) > 1
    assert moved_bytes - last == pytest.approx(1000 * (clock.monotonic_s() - began_s), rel=0.05)
    assert counts(tmp_path) == dict.fromkeys(USERS, 8)


def test_a_budget_is_not_saved_up_and_ends_when_told_to_hurry():
    clock, hurry = ManualClock(), []
    budget = Budget(1000, clock, lambda: bool(hurry))
    budget.spend(500)
    clock.advance_ms(60_000)
    budget.spend(1000)
    began_s = clock.monotonic_s()
    budget.spend(1000)
    assert clock.monotonic_s() - began_s == pytest.approx(1, abs=0.01)
    hurry.append(True)
    budget.spend(1000)
    assert clock.monotonic_s() - began_s == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("budget", ["20", "MB/s", "20 MB", "0 MB/s"])
def test_what_is_not_a_budget(tmp_path, budget):
    add_epochs(tmp_path, 1)
    assert run_json("compact", tmp_path, "--budget", budget, code=2)["kind"] == "BadInput"
    with pytest.raises(BadInput):
        CompactionSettings(budget=budget)


def test_no_store_is_an_error(tmp_path):
    assert run_json("compact", tmp_path / "nothing", code=2)["kind"] == "StoreNotFound"


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1", 1), ("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("2k", 2000), ("10 B", 10)]
)
def test_sizes(text, size_bytes):
    assert size_of(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "64 XB", "-1", "iB", "1iB", "MiB"])
def test_what_is_not_a_size(text):
    with pytest.raises(BadInput):
        size_of(text)
