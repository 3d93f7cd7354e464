"""Workers as Spark jobs of one task each: Spark finds them executors, shows them, and accounts for their cores."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from pyspark import SparkContext, TaskContext

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.runtime.resources import HERE, close_when_spark_ends
from floodplain.spark.session_conf import SPARKS
from floodplain.workers.coordinator import Coordinator
from floodplain.workers.kit import WorkerKit
from floodplain.workers.worker import Launch, work

END_S = 5.0
"""How long workers may take to end before their jobs are cancelled, and how long these may then."""


class SparkLauncher:
    """Launches the workers of one query. A thread waits for each job."""

    def __init__(self, context: SparkContext, name: str, kit: WorkerKit, coordinator: Coordinator) -> None:
        """``name``: what Spark's UI calls the query."""
        self._context, self._name, self._coordinator = context, name, coordinator
        self.kit = kit
        """What the next launch gives to its worker."""
        self._threads: list[threading.Thread] = []
        self._groups: set[str] = set()
        self._over = threading.Event()

    def launch(self, worker: int, job: int) -> None:
        if self._over.is_set():
            return
        thread = threading.Thread(target=self._run, args=(worker, job), name=f"floodplain-worker-{worker}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def cancel(self, worker: int, job: int) -> None:
        threading.Thread(target=self._cancel, args=(self._group(worker, job),), daemon=True).start()

    def close(self) -> None:
        """Wait for the workers, which have been told to end; cancel those that do not. Their cores are free then."""
        self._over.set()
        self._wait()
        for group in list(self._groups):
            self._cancel(group)
        self._wait()

    def _wait(self) -> None:
        clock = SystemClock()
        until_s = clock.monotonic_s() + END_S
        for thread in self._threads:
            thread.join(max(until_s - clock.monotonic_s(), 0.0))

    def _group(self, worker: int, job: int) -> str:
        return f"floodplain-{self.kit.address[1]}-{worker}-{job}"

    def _cancel(self, group: str) -> None:
        with suppress(*SPARKS, OSError):
            self._context.cancelJobGroup(group)

    def _run(self, worker: int, job: int) -> None:
        group, error = self._group(worker, job), ""
        self._groups.add(group)
        try:
            if self._over.is_set():
                return
            self._context.setJobGroup(group, f"Floodplain worker {worker} of {self._name}", interruptOnCancel=True)
            self._context.parallelize([worker], 1).mapPartitions(partial(_serve, self.kit, worker, job)).collect()
        except Exception as failure:
            error = str(failure).strip().partition("\n")[0]
        finally:
            self._groups.discard(group)
            self._coordinator.launch_ended(worker, job, error)


def _serve(kit: WorkerKit, worker: int, job: int, _: Iterator[Any]) -> Iterator[int]:
    """What the task runs."""
    context: Any = TaskContext.get()
    close_when_spark_ends()
    gc.freeze()
    try:
        work(kit, Launch(worker, job, context.taskAttemptId(), os.getpid()), SystemClock(), SystemRandomness(), _leave)
    finally:
        HERE.close()
    return iter(())


def _leave(_: int) -> None:
    """A worker that has lost its driver may be in the middle of user code, which nothing else stops."""
    os.kill(os.getpid(), signal.SIGKILL)
