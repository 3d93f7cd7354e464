"""Tasks and executors that fail, die, are tried twice or come late: state and output are always of the same attempts."""

import os
import random
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from floodplain.cli.main import app
from floodplain.spark.java import java_home
from floodplain.store.store import Store
from tests.spark.cluster import Cluster
from tests.spark.fault_pipeline import check, write_input
from tests.spark.fault_processes import Fault
from tests.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def java(tmp_path_factory):
    found = java_home(tmp_path_factory.mktemp("java"))
    if found is None:
        pytest.skip("no Java 17 or newer: set JAVA_HOME, put java on the PATH or install the extra `java`")
    return found


@pytest.fixture(scope="module")
def cluster(java, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), java) as cluster:
        yield cluster


def fault(folder: Path, operator: str, epoch: int, act: str, **more) -> Fault:
    return Fault(str(folder / f"{operator}-{epoch}"), operator, epoch, act, **more)


def test_a_task_that_fails_or_dies_once_leaves_no_trace(cluster, tmp_path):
    write_input(tmp_path, 2)
    faults = [
        fault(tmp_path, "first", 1, "raise"),
        fault(tmp_path, "second", 1, "kill"),
        fault(tmp_path, "first", 2, "exit", point="staged"),
        fault(tmp_path, "second", 2, "raise", point="staged"),
    ]
    cluster.start(tmp_path, *faults)
    cluster.finish(tmp_path)
    for one in faults:
        slots = [arrival["slot"] for arrival in one.arrivals()]
        assert slots.count(slots[0]) == 2, f"{one.act} of {one.operator} in epoch {one.epoch}: tried twice"
    check(tmp_path, 2)


def objects(folder: Path, epoch: int) -> set[str]:
    """Run objects that the state of an epoch rests on."""
    store = Store.open(folder / "state")
    return store.history.at(epoch).objects()


def written(folder: Path, one: Fault, attempt: dict[str, int]) -> list[str]:
    """The files of an attempt that are there: its run object and its staged output."""
    part = f"{attempt['slot']}-{attempt['attempt']}"
    state = folder / "state"
    found = [*state.glob(f"runs/*-{one.operator}-{part}-*.run"), *state.glob(f"staged/*-{one.operator}-main-{part}.parquet")]
    return [str(path.relative_to(state)) for path in found]


def test_of_two_attempts_that_both_finish_one_counts_for_state_and_output(cluster, tmp_path):
    write_input(tmp_path, 2)
    faults = [
        fault(tmp_path, "first", 1, "meet", slot=0),
        fault(tmp_path, "second", 1, "meet", slot=1, point="staged"),
        fault(tmp_path, "first", 2, "meet", slot=1, point="staged"),
        fault(tmp_path, "second", 2, "meet", slot=0),
    ]
    cluster.start(tmp_path, *faults, speculation=True)
    cluster.finish(tmp_path)
    check(tmp_path, 2)
    # Spark may end the slower of two attempts before it has written.
    wait_for("the runs of both attempts of a task", lambda: any(both_wrote(tmp_path, one) for one in faults))
    for one in faults:
        attempts = one.arrivals()
        assert [attempt["slot"] for attempt in attempts] == [one.slot] * 2
        runs = [f"-{one.operator}-{one.slot}-{attempt['attempt']}-" for attempt in attempts]
        named = [run for run in runs if any(run in name for name in objects(tmp_path, one.epoch))]
        assert len(named) == 1, "of two attempts one counts"


def both_wrote(folder: Path, one: Fault) -> bool:
    return all(any(name.startswith("runs/") for name in written(folder, one, attempt)) for attempt in one.arrivals())


def test_an_attempt_that_comes_late_changes_nothing_and_is_cleared_away(cluster, tmp_path):
    """It writes after the epoch was committed with another attempt, and the next epoch too. One at a time: it keeps its core."""
    left: list[tuple[Fault, dict[str, int]]] = []
    for epochs, operator in ((2, "first"), (4, "second")):
        write_input(tmp_path, 2)
        late = fault(tmp_path, operator, epochs - 1, "hold", slot=0)
        cluster.start(tmp_path, late, speculation=True)
        cluster.finish(tmp_path)
        for other, gone in left:
            assert not any(name.startswith("staged/") for name in written(tmp_path, other, gone)), "cleared away at the start"
        zombie = late.arrivals()[0]
        assert written(tmp_path, late, zombie) == []
        late.release()
        wait_for("the files of the late attempt", lambda late=late, zombie=zombie: len(written(tmp_path, late, zombie)) == 2)
        left.append((late, zombie))
        check(tmp_path, epochs)
        assert verified(tmp_path)
    # The run of the first may have been collected by the second query; that of the second was written after its end.
    stray = [[name for name in written(tmp_path, late, zombie) if name.startswith("runs/")] for late, zombie in left]
    assert stray[-1]
    with Store.open(tmp_path / "state").writer("sweeper") as writer:
        assert writer.collect_garbage().runs >= sum(map(len, stray))
    assert not any(name.startswith("runs/") for late, zombie in left for name in written(tmp_path, late, zombie))
    check(tmp_path, 4)
    assert verified(tmp_path)


def verified(folder: Path) -> bool:
    done = CliRunner().invoke(app, ["verify", str(folder / "state")])
    return done.exit_code == 0


def kill_executor(cluster: Cluster, one: Fault, whose: str) -> None:
    """Once one of two tasks has reported and the other is held: kill the executor of either."""
    wait_for(f"both tasks of {one.operator}", lambda: len(one.arrivals()) >= 2)
    wait_for("the report of one of them", lambda: 1 in cluster.tasks_done())
    held, reported = one.arrivals()
    assert held["slot"] != reported["slot"] and held["executor"] != reported["executor"]
    os.kill((held if whose == "held" else reported)["executor"], signal.SIGKILL)
    one.release("raise")


@pytest.mark.parametrize("transform", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["shuffled", "direct"])
def test_an_executor_killed_between_two_result_tasks(cluster, tmp_path, transform):
    """Shuffle files die with it: what the task that is left would read again is made again, by other attempts."""
    write_input(tmp_path, 3)
    kills = {
        "first": (fault(tmp_path, "first", 1, "hold"), "reported"),
        "second": (fault(tmp_path, "second", 2, "hold"), "reported"),
        "held": (fault(tmp_path, "first", 3, "hold"), "held"),
    }
    cluster.start(tmp_path, *[one for one, _ in kills.values()], transform=transform)
    for one, whose in kills.values():
        kill_executor(cluster, one, whose)
    cluster.finish(tmp_path)
    for one, _ in kills.values():
        assert [arrival["slot"] for arrival in one.arrivals()].count(one.arrivals()[0]["slot"]) >= 2, "tried again"
    check(tmp_path, 3)


def chaos(folder: Path, seed: int, epochs: int, slots: int) -> list[Fault]:
    """For each task of each epoch, perhaps a fault."""
    rng = random.Random(seed)
    found = []
    for epoch in range(1, epochs + 1):
        for operator in ("first", "second"):
            for slot in range(slots):
                act, point = rng.choice(["raise", "raise", "exit", "kill", "none"]), rng.choice(["key", "staged"])
                found.append(Fault(str(folder / f"{operator}-{epoch}-{slot}"), operator, epoch, act, slot, point))
    return found


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 10))
def test_a_function_that_gives_something_else_each_time_and_fails_now_and_then(cluster, tmp_path, seed):
    epochs, slots = 2, 2 + seed % 3
    write_input(tmp_path, epochs)
    inline_bytes = (0, 64 << 10)[seed % 2]
    faults = chaos(tmp_path, seed, epochs, slots)
    cluster.start(tmp_path, *faults, slots=slots, transform=seed % 4 == 2, inline_bytes=inline_bytes)
    cluster.finish(tmp_path)
    assert sum(len(one.arrivals()) > 1 for one in faults) > epochs
    check(tmp_path, epochs)


def test_workers_that_die_with_their_process_or_their_executor_leave_no_trace(cluster, tmp_path):
    """One worker on each executor. What Spark starts in the place of a worker that is lost takes its slots over."""
    write_input(tmp_path, 3)
    kills = [fault(tmp_path, "first", 1, "kill"), fault(tmp_path, "second", 2, "exit", point="staged")]
    held = fault(tmp_path, "second", 3, "hold")
    cluster.start(tmp_path, *kills, held, engine="workers")
    wait_for("a worker to be held", held.arrivals)
    os.kill(held.arrivals()[0]["executor"], signal.SIGKILL)
    cluster.finish(tmp_path)
    for one in (*kills, held):
        arrived = one.arrivals()
        assert arrived[0]["worker"] not in {other["worker"] for other in arrived[1:]}, "its process is gone"
        assert len(arrived) >= 2, f"{one.act} of {one.operator} in epoch {one.epoch}: tried again"
    assert held.arrivals()[0]["executor"] not in {other["executor"] for other in held.arrivals()[1:]}
    check(tmp_path, 3)


ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.scheduler.minRegisteredResourcesRatio": "0",
}


@pytest.mark.soak
def test_under_dynamic_allocation_workers_bring_executors_and_give_them_back(java, tmp_path):
    write_input(tmp_path, 2)
    held = fault(tmp_path, "first", 2, "hold")
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster", java, executors=0, settings=ALLOCATION) as cluster:
        with pytest.raises(AssertionError, match=r"needs 3 free .* may have 2 \(.*maxExecutors=2, 1 .* use .*maxExecutors=3"):
            cluster.start(tmp_path, engine="workers", slots=3)
        cluster.start(tmp_path, held, engine="workers")
        wait_for("a worker to be held", held.arrivals, 120)
        wait_for("an executor for each worker", lambda: cluster.executors() == 2, 60)
        held.release()
        cluster.finish(tmp_path)
        wait_for("the executors to be gone", lambda: cluster.executors() == 0, 60)
    check(tmp_path, 2)
