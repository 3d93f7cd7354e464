"""A driver in a process of its own, which ends itself by SIGKILL, or waits, at a chosen point of an epoch.

``python -m tests.spark.driver_process FOLDER PLAN``. The plan is JSON: ``point``, ``epochs`` (that it lets pass before), ``act``
(``kill``, or ``hold``, which leaves the file ``held`` and waits for the file ``go``), and what the pipeline is started with.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from floodplain.sinks.files import ParquetSink
from floodplain.spark.driver import Driver
from floodplain.spark.engine import SparkEngine
from floodplain.spark.workers_engine import WorkersEngine
from floodplain.store.write.epoch import Epoch
from tests.spark.fault_pipeline import start
from tests.spark.fault_processes import Fault
from tests.waiting import wait_for

POINTS = (
    *("before_first_job", "during_task", "before_second_job", "after_tasks", "after_commit"),
    *("during_publish", "between_sinks", "after_publish"),
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


def watch_jobs(plan: Plan, engine: type[SparkEngine]) -> None:
    inner = engine.run

    def run(self: Any, rows: Any, keys: Any, assignment: Any, job: Any, *args: Any) -> Any:
        plan.reach("before_first_job" if job.operator.name == "first" else "before_second_job")
        return inner(self, rows, keys, assignment, job, *args)

    engine.run = run  # type: ignore[method-assign]


def watch_commits(plan: Plan) -> None:
    inner = Epoch.commit

    def commit(self: Any, *args: Any, **options: Any) -> Any:
        plan.reach("after_tasks")
        done = inner(self, *args, **options)
        plan.reach("after_commit")
        return done

    Epoch.commit = commit  # type: ignore[method-assign]


def watch_publishing(plan: Plan) -> None:
    inner = ParquetSink.publish

    def publish(self: Any, epoch: int, staged: Any, blobs: Any, schema: Any) -> None:
        if plan.at("during_publish") and len(staged) > 1:
            inner(self, epoch, sorted(staged)[:1], blobs, schema)
            plan.reach("during_publish")
        inner(self, epoch, staged, blobs, schema)
        plan.reach("between_sinks")

    ParquetSink.publish = publish  # type: ignore[method-assign]


def watch_batches(plan: Plan) -> None:
    """What follows a batch is Spark's own commit log. A batch that was in the state already does not count."""
    inner = Driver.on_batch

    def on_batch(self: Any, *args: Any) -> None:
        before = self.store.head.epoch
        inner(self, *args)
        if self.store.head.epoch > before:
            plan.reach("after_publish")
            plan.epoch_done()

    Driver.on_batch = on_batch  # type: ignore[method-assign]


def kill_during(fault: Fault) -> None:
    """End this process once a task is held."""

    def watch() -> None:
        wait_for("a task", fault.arrivals)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(folder: Path, *, point: str, epochs: int, act: str, fault: dict[str, Any] | None, **options: Any) -> None:
    plan = Plan(folder, point, epochs, act)
    watch_jobs(plan, WorkersEngine if options.get("engine") == "workers" else SparkEngine)
    for watch in (watch_commits, watch_publishing, watch_batches):
        watch(plan)
    faults = [Fault(**fault)] if fault else []
    if faults and act == "kill":
        kill_during(faults[0])
    spark = (
        SparkSession.builder.master("local[4]" if options.get("engine") == "workers" else "local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    query = start(spark, folder, faults, **options)
    try:
        query.await_termination()
    except Exception as error:
        print(f"ended by {type(error).__name__}: {error}")
    print(f"exception: {query.exception}", flush=True)
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
