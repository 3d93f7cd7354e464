"""The contract of what starts the processes of workers: Spark, or the process launcher of the test kits."""

from typing import Protocol


class Launcher(Protocol):
    """Starts workers in processes of their own. Every method returns at once."""

    def launch(self, worker: int, job: int) -> None:
        """Start this worker for the ``job``-th time. Once it has ended, or if it cannot start, ``Coordinator.launch_ended`` is
        called."""

    def cancel(self, worker: int, job: int) -> None:
        """End that launch, if it has not ended: nothing is waited for."""
