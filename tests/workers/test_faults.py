"""Workers that are killed or stopped at a point of their work: nothing is lost, nothing doubled, and the order is kept."""

import os
import random
import signal
import threading
from dataclasses import replace

import pytest

from floodplain.errors import Unavailable
from floodplain.runtime.engine import MOST_TRIES
from floodplain.state.python_values import user_rows
from floodplain.testing.process_launcher import ProcessLauncher
from tests.waiting import wait_for
from tests.workers.frame_proxy import Delayed, Doubled, Dropped
from tests.workers.pipelines import ROWS, HoldsTheGil, batches, build, control, shown, state_of
from tests.workers.worker_kit import Damage, Fault, WorkersKit

EPOCHS = 3
SLOTS = 4


@pytest.fixture
def started(tmp_path):
    kits = []

    def start(run=None, **more):
        more = more if run is None else {**more, "run": run}
        kits.append(WorkersKit(tmp_path / "state", build, rows=ROWS, slots=SLOTS, **more))
        return kits[-1].ready()

    yield start
    for kit in kits:
        kit.close()


def _same_as_without(kit, epochs=EPOCHS):
    """Every epoch gives what it gives in one process without faults."""
    outputs, state = control(epochs, SLOTS)
    assert [shown(kit.epoch(rows)) for rows in batches(epochs)] == outputs
    assert state_of(kit) == state
    assert kit.store.head.epoch == epochs


KILLED = [("take", 2), ("serve", 7), ("pull", 1), ("process", 6), ("answer", 1)]
SOAKED = [("take", 5), ("serve", 2), ("pull", 3), ("process", 2), ("answer", 7)]


def _soak(*cases):
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak) for case in cases]


@pytest.mark.parametrize(("point", "nth"), [*KILLED, *_soak(*SOAKED)])
def test_a_worker_that_is_killed_at_a_point_of_its_work(started, tmp_path, point, nth):
    fault = Fault(point, tmp_path, nth)
    kit = started(fault)
    _same_as_without(kit)
    assert len(fault.met) == 1
    assert sum(progress.tries for progress in kit.progress) > EPOCHS
    assert kit.engine.coordinator.losses >= 1


@pytest.mark.parametrize("nth", [1, *_soak(6, 11)])
def test_rows_that_are_damaged_where_a_worker_keeps_them_are_made_anew(started, tmp_path, nth):
    damage = Damage(tmp_path, nth)
    kit = started(damage)
    _same_as_without(kit)
    assert len(damage.met) == 1
    assert [progress.tries for progress in kit.progress].count(2) == 1
    assert kit.engine.coordinator.losses == 0


@pytest.mark.parametrize(("point", "nth"), [("read", 2), *_soak(("read", 1), ("read", 5), ("pull", 2), ("answer", 1))])
def test_a_worker_that_is_killed_while_it_reads_its_input(started, tmp_path, point, nth):
    fault = Fault(point, tmp_path, nth)
    kit = started(fault, reads=True)
    _same_as_without(kit)
    assert len(fault.met) == 1
    assert sum(progress.tries for progress in kit.progress) > EPOCHS


def test_an_epoch_that_no_worker_survives_names_what_they_were_reading(started, tmp_path):
    kit = started(Fault("read", tmp_path, times=100), workers=1, reads=True)
    with pytest.raises(Unavailable, match=r"worker 0 is lost: .*; it was asked for ranges .*\.parquet from byte 0 to \d+, "):
        kit.epoch(batches(1)[0])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_several_workers_that_are_killed_somewhere(started, tmp_path, seed):
    chance = random.Random(seed)
    reads = chance.random() < 0.5
    point = chance.choice(["read" if reads else "take", "serve", "pull", "process", "answer"])
    fault = Fault(point, tmp_path, chance.randrange(1, 9), chance.randrange(1, MOST_TRIES), signal=signal.SIGKILL)
    kit = started(fault, workers=chance.choice([2, 3]), reads=reads)
    _same_as_without(kit)
    assert fault.met


@pytest.mark.soak
def test_a_worker_that_is_lost_again_and_again(started, tmp_path):
    """The fifth loss of a worker would end a job of Spark."""
    fault = Fault("process", tmp_path, nth=5, times=5, worker=0)
    kit = started(fault)
    _same_as_without(kit, 12)
    assert fault.met == [0] * 5


def test_a_worker_that_dies_in_every_try_ends_the_query_with_its_name_and_the_state_as_it_was(started, tmp_path):
    fault = Fault("process", tmp_path, nth=9, times=100)
    kit = started(fault, workers=1)
    script, (outputs, state) = batches(EPOCHS), control(EPOCHS, SLOTS)
    assert shown(kit.epoch(script[0])) == outputs[0]
    kit.run = replace(fault, nth=1)
    kit.restart()
    kit.ready()
    with pytest.raises(Unavailable, match=r"worker 0 is lost: .*; it was asked for slots (numbered|gathered) 0, .* 3$"):
        kit.epoch(script[1])
    assert kit.store.head.epoch == 1
    kit.run = Fault("process", tmp_path / "none", worker=99)
    kit.restart()
    kit.ready()
    assert kit.store.head.epoch == 2  # what the driver was at is replayed
    assert shown({name: _published(kit, name, 2) for name in kit.sinks}) == outputs[1]
    assert shown(kit.epoch(script[2])) == outputs[2]
    assert state_of(kit) == state


def _published(kit, name, epoch):
    return user_rows(kit.sinks[name].epochs[epoch])


class KeepsZombies(ProcessLauncher):
    """Cancels nothing, as a host that is cut off."""

    def cancel(self, worker, job):
        """It lives on."""


@pytest.mark.parametrize("point", ["process", *_soak("answer")])
def test_a_worker_that_is_stopped_past_every_time_out_and_goes_on_counts_no_more(started, tmp_path, point):
    fault = Fault(point, tmp_path, nth=2, signal=signal.SIGSTOP)
    kit = started(fault, launcher=KeepsZombies)
    pids = dict(kit.engine.coordinator.pids)

    def go_on():
        wait_for("the loss", lambda: kit.engine.coordinator.losses)
        os.kill(pids[fault.met[0]], signal.SIGCONT)

    waking = threading.Thread(target=go_on)
    waking.start()
    _same_as_without(kit)
    waking.join()
    assert sum(progress.tries for progress in kit.progress) > EPOCHS


@pytest.mark.parametrize(("seconds", "silent_s", "losses"), [(2.5, 1, 1), (2.5, 6, 0), *_soak((13, 3, 1), (13, 16, 0))])
def test_code_that_lets_no_other_thread_run_is_a_loss_only_beyond_the_limit(tmp_path, seconds, silent_s, losses):
    """Nor does the worker take its driver for gone, which it could not hear meanwhile."""

    def holding(stream):
        return stream.key_by("user").process(HoldsTheGil(tmp_path, seconds)).write("memory")

    kit = WorkersKit(tmp_path / "state", holding, rows="user string", slots=2, silent_s=silent_s).ready()
    try:
        (output,) = kit.epoch([{"user": f"u{number % 4}"} for number in range(20)]).values()
        assert sorted((row["user"], row["n"]) for row in output) == [(f"u{number}", 5) for number in range(4)]
        assert (tmp_path / "held").exists()
        assert kit.engine.coordinator.losses == losses
        assert [progress.tries for progress in kit.progress] == [1 + losses]
    finally:
        kit.close()


@pytest.mark.parametrize("plan", [Dropped(3), Doubled(), Delayed(2), *_soak(Dropped(9), Delayed(6))], ids=repr)
def test_answers_that_get_lost_or_come_twice_or_too_late(started, plan):
    kit = started(proxy=plan)
    _same_as_without(kit)
    assert plan.met
    assert (sum(progress.tries for progress in kit.progress) > EPOCHS) == (not isinstance(plan, Doubled))


@pytest.mark.parametrize("plan", [Dropped(4, to_worker=True), *_soak(Doubled(to_worker=True))], ids=repr)
def test_commands_that_get_lost_or_come_twice(started, plan):
    kit = started(proxy=plan)
    _same_as_without(kit)
    assert plan.met
