"""Pipelines on real worker processes, without Spark: what they give is what one process gives."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import floodplain as fp
from floodplain.errors import UserError
from floodplain.settings import StoreSettings
from floodplain.testing.pipeline_kit import PipelineKit
from tests.processes import Count, Picky, Priced
from tests.waiting import wait_for
from tests.workers.pipelines import ROWS, batches, build, control, shown, state_of
from tests.workers.worker_kit import WorkersKit

EPOCHS = 4
AMOUNTS = "user string, amount long"


def _open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def kits(tmp_path):
    made = []

    def kit(*arguments, **more):
        made.append(WorkersKit(tmp_path / "state", *arguments, **more))
        return made[-1].ready()

    yield kit
    for each in made:
        each.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_what_workers_give_is_what_one_process_gives(kits, workers):
    kit = kits(build, rows=ROWS, slots=4, workers=workers)
    outputs, state = control(EPOCHS)
    assert [shown(kit.epoch(rows)) for rows in batches(EPOCHS)] == outputs
    assert state_of(kit) == state
    assert [(progress.tries, progress.moved_slots) for progress in kit.progress] == [(1, 0)] * EPOCHS


def test_workers_combine_the_rows_that_they_read(kits):
    def summed(stream):
        return stream.key_by("user").agg(n=fp.count(), total=fp.sum("number"), partial=True).write("memory")

    kit, one = kits(summed, rows=ROWS, slots=4, reads=True), PipelineKit(summed, rows=ROWS, slots=4)
    for rows in batches(2):
        assert shown(kit.epoch(rows)) == shown(one.epoch(rows))
        assert kit.progress[-1].rows == len(rows)
    assert kit.state("aggregate") and sorted(map(repr, kit.state("aggregate"))) == sorted(map(repr, one.state("aggregate")))


def test_rows_between_workers_that_do_not_fit_into_memory_go_over_the_disk(kits):
    kit = kits(build, rows=ROWS, slots=4, settings=StoreSettings(key_groups=16, epoch_bytes=1))
    assert [shown(kit.epoch(rows)) for rows in batches(2)] == control(2)[0]


def test_slots_spread_and_stay_where_they_are(kits):
    kit = kits(build, rows=ROWS, slots=4)
    for rows in batches(2):
        kit.epoch(rows)
    before = dict(kit.engine.pool.placements["numbered"])
    kit.rescale(2)
    kit.epoch(batches(3)[2])
    assert sorted(before.values()) == [0, 0, 1, 1]
    assert sorted(kit.engine.pool.placements["numbered"].values()) == [0, 1]
    assert kit.progress[-1].moved_slots == 0  # another assignment has moved them


def test_an_error_of_the_user_ends_the_query_at_once_and_nobody_is_lost(kits):
    kit = kits(lambda stream: stream.key_by("user").process(Picky()).write("memory"), rows=AMOUNTS, slots=4)
    with pytest.raises(UserError, match="negative amount"):
        kit.epoch([{"user": f"u{number}", "amount": 5 - number} for number in range(20)])
    assert kit.engine.coordinator.losses == 0


def test_what_a_try_that_failed_leaves_undone_is_answered_for(kits):
    kit = kits(lambda stream: stream.key_by("user").process(Picky()).write("memory"), rows=AMOUNTS, slots=16)
    with pytest.raises(UserError):
        kit.epoch([{"user": f"u{number}", "amount": -1} for number in range(50)])
    assert kit.engine.coordinator.await_idle(0.5) == set()


def test_broadcast_rows_and_task_values_reach_workers(kits):
    def priced(stream, prices):
        return stream.key_by("user").process(Priced(), broadcast=prices).write("memory")

    kit = kits(priced, rows="user string, item string, amount long", broadcasts={"prices": "item string, price long"})
    rows = [{"user": f"u{number}", "item": "tea", "amount": number} for number in range(9)]
    (output,) = kit.epoch(rows, broadcast={"prices": [{"item": "tea", "price": 3}]}).values()
    assert sorted((row["user"], row["spent"]) for row in output) == [(f"u{number}", 3 * number) for number in range(9)]


def test_epochs_leave_no_files_and_no_threads_behind(kits):
    kit = kits(build, rows=ROWS, slots=4)
    script = batches(12)
    for rows in script[:3]:
        kit.epoch(rows)
    held = _settled(kit)
    threads, files = threading.active_count(), _open_files()
    for rows in script[3:]:
        kit.epoch(rows)
    wait_for("files of workers", lambda: _settled(kit) == held, 10)
    wait_for("threads", lambda: threading.active_count() <= threads, 10)
    wait_for("files", lambda: _open_files() <= files, 10)


def _settled(kit):
    """Process of a worker → its sockets, once it has heard that the epoch is over and keeps no rows any more. Runs of the state
    are opened and closed as the state changes."""
    pids = list(kit.engine.coordinator.pids.values())
    wait_for("rows to be dropped", lambda: not any(_files_of(pid, "/memfd:", "/tmp/floodplain-rows") for pid in pids), 10)
    return {pid: _files_of(pid, "socket:") for pid in pids}


def _files_of(pid, *kinds):
    return sum(_target(path).startswith(kinds) for path in Path(f"/proc/{pid}/fd").iterdir())


def _target(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_workers_end_with_the_query(kits):
    kit = kits(lambda stream: stream.key_by("user").process(Count()).write("memory"), rows=AMOUNTS)
    pids = kit.engine.coordinator.pids.values()
    kit.close()
    assert not any(_lives(pid) for pid in pids)


def _lives(pid):
    """A process that has ended, and that nobody has asked for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


DRIVER = """
import sys
from functools import partial
from pathlib import Path
from tests.workers.pipelines import Endless
from tests.workers.worker_kit import WorkersKit

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    build = lambda stream: stream.key_by("user").process(Endless(folder)).write("memory")
    kit = WorkersKit(folder / "state", build, rows="user string", slots=2).ready()
    print(*kit.engine.coordinator.pids.values(), flush=True)
    kit.epoch([{"user": f"u{number}"} for number in range(20)])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)])
def test_workers_end_without_their_driver_also_in_the_middle_of_user_code(tmp_path, how):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        wait_for("both workers to be in user code", lambda: len(list(tmp_path.glob("u*"))) == 2)
        assert len(pids) == 2
        assert all(map(_lives, pids))
        driver.send_signal(how)
        wait_for("the workers to end", lambda: not any(map(_lives, pids)), 12)
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
