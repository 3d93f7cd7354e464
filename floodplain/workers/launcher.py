"""The contract of what starts the processes of workers: Spark, or the process launcher of the test kits."""

from typing import Protocol

from floodplain.workers.kit import WorkerKit


class Launcher(Protocol):
    """Starts workers in processes of their own."""

    kit: WorkerKit
    """What the next launch gives to its worker."""

    def launch(self, worker: int, job: int) -> None:
        """Start this worker for the ``job``-th time, and return at once. Once it has ended, or if it cannot start,
        ``Coordinator.launch_ended`` is called."""

    def cancel(self, worker: int, job: int) -> None:
        """End that launch, if it has not ended: nothing is waited for."""

    def close(self) -> None:
        """Wait for all workers, which have been told to end, and end those that do not."""
