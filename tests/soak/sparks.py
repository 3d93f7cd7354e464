"""Real processes on Spark: drivers and workers killed by SIGKILL, and checkpoints damaged between two runs."""

import atexit
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import duckdb
import pyarrow.parquet as pq

from floodplain.spark.java import java_home
from floodplain.store.store import Store
from tests.soak.checkpoints import damage_files
from tests.soak.outcome import Bag, Trial
from tests.spark import test_runtime
from tests.spark.cluster import Cluster
from tests.spark.driver_process import POINTS
from tests.spark.fault_pipeline import check, write_input
from tests.spark.test_faults import chaos
from tests.spark.test_kills import Drivers
from tests.spark_session import local_spark

COUNTED = "select user, count(*), sum(amount)::bigint from read_parquet('{folder}/in/*.parquet') group by user"


class NoSpark(Exception):
    """The harness could not start it; says nothing of the code under test."""


@cache
def java() -> Path:
    found = java_home(Path(mkdtemp(prefix="soak-java-")))
    if found is None:
        raise NoSpark("no Java 17 or newer: set JAVA_HOME, put java on the PATH or install the extra `java`")
    return found


@cache
def session() -> Any:
    """One Spark for all trials of this process."""
    running: Iterator[Any] = local_spark(Path(mkdtemp(prefix="soak-spark-")))
    atexit.register(running.close)  # type: ignore[attr-defined]
    return next(running)


@cache
def cluster() -> Cluster:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(Cluster(Path(mkdtemp(prefix="soak-cluster-")), java()))


def counted(folder: Path) -> Bag:
    """What a database makes of the input: user, rows, sum."""
    with duckdb.connect() as database:
        return Counter(database.execute(COUNTED.format(folder=folder)).fetchall())


def _compare(trial: Trial, folder: Path, epochs: int) -> None:
    """State and output of two operators; then that each epoch's state and output are of the same attempts."""
    with Store.open(folder / "state").snapshot() as snapshot:
        state = Counter((row["user"], row["n"], row["total"]) for row in snapshot.table("first").to_arrow().to_pylist())
    expected = counted(folder)
    trial.compare("state", expected, state)
    files = sorted((folder / "first").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    newest: dict[str, tuple[int, int]] = {}
    for row in sorted(rows, key=lambda row: row["n"]):
        newest[row["user"]] = (row["n"], row["total"])
    trial.compare("newest rows published", expected, Counter((user, *values) for user, values in newest.items()))
    trial.compare(
        "rows published", dict.fromkeys(((r["user"], r["n"]) for r in rows), 1), Counter((r["user"], r["n"]) for r in rows)
    )
    check(folder, epochs)


def kill_driver(trial: Trial) -> None:
    """At a point of an epoch between the first job and the note that Spark makes of the batch; the next one goes on."""
    rng, epochs = trial.rng, 3
    write_input(trial.folder, epochs)
    drivers = Drivers(trial.folder, java())
    if trial.faulty:
        point, before, slots = rng.choice(POINTS), rng.randrange(2), rng.randint(1, 3)
        trial.note(f"killed at {point} after {before} whole epochs, {slots} slots")
        process = drivers.start(point, epochs=before, slots=slots)
        _ended(drivers, process, -signal.SIGKILL)
        if point == "during_task":
            (trial.folder / "task-1" / "release").write_text("go on")
    _ended(drivers, drivers.start(slots=rng.randint(1, 3)), 0)
    _compare(trial, trial.folder, epochs)


def _ended(drivers: Drivers, process: Any, code: int) -> None:
    try:
        said = drivers.end(process, code)
    except AssertionError as error:
        raise RuntimeError(f"a driver did not end with {code}: {error}") from None
    if code == 0 and "exception: None" not in said:
        raise RuntimeError(f"a driver failed: {said[-1000:]}")


def kill_worker(trial: Trial) -> None:
    """Tasks of both operators killed, or failing, at their second key or once all is staged; tried again by Spark."""
    rng, epochs, slots = trial.rng, 2, trial.rng.randint(2, 3)
    write_input(trial.folder, epochs)
    faults = chaos(trial.folder, rng.randrange(10**6), epochs, slots) if trial.faulty else []
    trial.note(f"{[f'{one.operator} {one.epoch}/{one.slot}: {one.act} at {one.point}' for one in faults]}")
    running = cluster()
    options = {"slots": slots, "transform": rng.random() < 0.3, "inline_bytes": rng.choice((0, 64 << 10))}
    try:
        running.start(trial.folder, *faults, **options)
        running.finish(trial.folder)
    except AssertionError as error:
        raise RuntimeError(f"the query failed: {error}") from None
    _compare(trial, trial.folder, epochs)


def damage_checkpoint(trial: Trial) -> None:
    """Between two runs of a query, with input for the second one."""
    folder, spark = trial.folder, session()
    test_runtime.write_inputs(folder, trial.rng.randint(1, 3))
    test_runtime.run(spark, folder)
    test_runtime.write_inputs(folder, 2, first=3)
    checkpoint = folder / "state" / "checkpoint"
    if trial.faulty:
        damage_files(trial, checkpoint)
    with trial.may_refuse(str(checkpoint)):
        test_runtime.run(spark, folder)
    if trial.refused:
        for path in sorted(checkpoint.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        checkpoint.rmdir()
        test_runtime.run(spark, folder)
    state = Counter((user, *values) for user, values in test_runtime.state_of(folder).items())
    trial.compare("state", counted(folder), state)
    output = Counter((user, *values) for user, values in test_runtime.last_output(folder).items())
    trial.compare("output", counted(folder), output)
