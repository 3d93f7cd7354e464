"""Workers as processes of this machine: what the test kits use where a query has jobs of Spark."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TypeAlias

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.workers.coordinator import Coordinator
from floodplain.workers.kit import WorkerKit
from floodplain.workers.worker import Launch, work

END_S = 5.0
"""How long workers may take to end before they are killed."""

Serve: TypeAlias = Callable[[WorkerKit, Launch], None]


def serve(kit: WorkerKit, launch: Launch) -> None:
    """What a worker's process runs."""
    work(kit, launch, SystemClock(), SystemRandomness(), os._exit)


class ProcessLauncher:
    """Launches the workers of one engine: forks of a process that has imported what they need and runs no threads."""

    def __init__(self, kit: WorkerKit, coordinator: Coordinator, run: Serve = serve) -> None:
        """``run``: what the processes run. It must be importable."""
        self._coordinator, self._serve = coordinator, run
        self.kit = kit
        """What the next launch gives to its worker."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", run.__module__, work.__module__])
        self._lock = threading.Lock()
        self._processes: dict[tuple[int, int], BaseProcess] = {}
        self._threads: list[threading.Thread] = []
        self._over = False

    def launch(self, worker: int, job: int) -> None:
        with self._lock:
            if self._over:
                return
            process = self._context.Process(target=partial(_run, self._serve, self.kit, worker, job), daemon=True)
            thread = threading.Thread(target=self._watch, args=(worker, job, process), name=f"worker-{worker}", daemon=True)
            self._processes[worker, job] = process
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            process.start()
            thread.start()

    def cancel(self, worker: int, job: int) -> None:
        with self._lock:
            process = self._processes.get((worker, job))
            if process is not None:
                process.kill()

    def close(self) -> None:
        """Wait for the workers, which have been told to end; kill those that do not."""
        with self._lock:
            self._over = True
            threads = self._threads
        until_s = SystemClock().monotonic_s() + END_S
        for thread in threads:
            thread.join(max(until_s - SystemClock().monotonic_s(), 0.1))
        with self._lock:
            for process in self._processes.values():
                process.kill()
        for thread in threads:
            thread.join()

    def _watch(self, worker: int, job: int, process: BaseProcess) -> None:
        process.join()
        code = process.exitcode
        with self._lock:
            self._processes.pop((worker, job), None)
        process.close()
        self._coordinator.launch_ended(worker, job, f"its process ended with {code}" if code else "")


def _run(run: Serve, kit: WorkerKit, worker: int, job: int) -> None:
    run(kit, Launch(worker, job, attempt=0, pid=os.getpid()))
