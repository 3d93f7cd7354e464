"""A driver in a process of its own, which ends itself by SIGKILL, or waits, at a chosen point of an epoch.

``python -m tests.spark.driver_process FOLDER PLAN``, the plan being JSON: ``slots``, ``operators``, ``point``, ``epochs`` (that it
lets pass before) and ``act``: ``kill``, or ``hold``, which leaves the file ``held`` and waits for the file ``go``.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from floodplain.spark import epochs
from floodplain.spark.driver import Driver
from floodplain.spark.engine import SparkEngine
from floodplain.spark.sinks import ParquetSink
from floodplain.store.epoch import Epoch
from floodplain.versions.edit import AdvancePublished
from tests.spark.fault_pipeline import start
from tests.spark.fault_processes import Fault, wait_for

POINTS = (
    *("before_first_job", "during_task", "before_second_job", "after_tasks", "after_commit"),
    *("during_publish", "between_sinks", "before_noted", "after_noted", "after_publish"),
)


class Plan:
    """Where this process ends."""

    def __init__(self, folder: Path, point: str, epochs: int, act: str) -> None:
        self._folder, self._point, self._left, self._act = folder, point, epochs, act

    def epoch_done(self) -> None:
        self._left -= 1

    def at(self, point: str) -> bool:
        return point == self._point and self._left <= 0

    def reach(self, point: str) -> None:
        if not self.at(point):
            return
        if self._act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._point = ""
        (self._folder / "held").touch()
        wait_for("go", (self._folder / "go").exists)


def around(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def place_points(plan: Plan) -> None:
    def run(inner: Any) -> Any:
        def run(self: Any, rows: Any, keys: Any, assignment: Any, job: Any) -> Any:
            plan.reach("before_first_job" if job.operator.name == "first" else "before_second_job")
            return inner(self, rows, keys, assignment, job)

        return run

    def commit_epoch(inner: Any) -> Any:
        def commit(self: Any, *args: Any, **options: Any) -> Any:
            plan.reach("after_tasks")
            done = inner(self, *args, **options)
            plan.reach("after_commit")
            return done

        return commit

    def publish(inner: Any) -> Any:
        def publish(self: Any, epoch: int, staged: Any, blobs: Any, schema: Any) -> None:
            if plan.at("during_publish") and len(staged) > 1:
                inner(self, epoch, sorted(staged)[:1], blobs, schema)
                plan.reach("during_publish")
            inner(self, epoch, staged, blobs, schema)
            plan.reach("between_sinks")

        return publish

    def note(inner: Any) -> Any:
        def commit(history: Any, updates: Any, *args: Any, **options: Any) -> Any:
            noting = any(isinstance(one, AdvancePublished) and one.epoch > history.head.published for one in updates)
            if noting:
                plan.reach("before_noted")
            done = inner(history, updates, *args, **options)
            if noting:
                plan.reach("after_noted")
            return done

        return commit

    def on_batch(inner: Any) -> Any:
        def on_batch(self: Any, *args: Any) -> None:
            inner(self, *args)
            plan.reach("after_publish")
            plan.epoch_done()

        return on_batch

    around(SparkEngine, "run", run)
    around(Epoch, "commit", commit_epoch)
    around(ParquetSink, "publish", publish)
    around(epochs, "commit", note)
    around(Driver, "on_batch", on_batch)


def kill_during(fault: Fault) -> None:
    """End this process once a task is held."""

    def watch() -> None:
        wait_for("a task", fault.arrivals)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(folder: Path, *, slots: int, operators: int, point: str, epochs: int, act: str, fault: dict[str, Any] | None, **options: Any) -> None:
    place_points(Plan(folder, point, epochs, act))
    faults = [Fault(**fault)] if fault else []
    if faults and act == "kill":
        kill_during(faults[0])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    query = start(spark, folder, faults, slots=slots, operators=operators, **options)
    try:
        query.await_termination()
    except Exception as error:
        print(f"ended by {type(error).__name__}: {error}")
    print(f"exception: {query.exception}", flush=True)
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
