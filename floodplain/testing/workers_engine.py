"""The engine of workers that stay, in processes of this machine and without Spark."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import Unavailable
from floodplain.plan.nodes import Node, Plan
from floodplain.runtime.binder import BoundPlan
from floodplain.runtime.pieces import Piece, PieceKey
from floodplain.runtime.staging import Staged
from floodplain.runtime.task import Job, TaskReport
from floodplain.store.store import Store
from floodplain.testing.local_engine import LocalEngine
from floodplain.testing.process_launcher import ProcessLauncher, Serve, serve
from floodplain.versions.records.edit import Assignment, RunRef
from floodplain.workers.channel import Credentials, new_secret
from floodplain.workers.coordinator import SILENT_S, Coordinator
from floodplain.workers.pool import Wiring, WorkerPool
from floodplain.workers.pushing import Pusher

PARTITIONS = 3
"""Into which the rows of an epoch are cut: each is pushed on its own, as by a task of the bridge."""
LOCAL = "127.0.0.1"


class WorkersEngine(LocalEngine):
    """Runs keyed operators in worker processes, all other steps in this one."""

    keeps_rows = True
    launcher: type[ProcessLauncher] = ProcessLauncher
    bind = LOCAL
    """Where the coordinator listens."""
    silent_s = SILENT_S

    def __init__(
        self,
        transforms: Sequence[Callable[[pa.Table], pa.Table]],
        plan: Plan,
        workers: int,
        dumps: Callable[[Any], bytes],
        load: Callable[[bytes], Any],
        run: Serve = serve,
    ) -> None:
        """``dumps`` and ``load``: how operators travel. ``run``: what the processes of workers run."""
        super().__init__(transforms, plan)
        self._workers, self._dumps, self._load, self._serve = workers, dumps, load, run
        self._credentials = Credentials(new_secret(SystemRandomness()))
        self.pool: WorkerPool | None = None
        self._store: Store | None = None

    def start(self, bound: BoundPlan) -> None:
        """Launch the workers. Requires: the state is at a place that other processes can open."""
        wiring = Wiring(self._credentials, (self.bind, 0), self._address, self._dumps, self._load, self.silent_s)
        launcher = partial(self.launcher, run=self._serve)
        self._store = bound.place.store
        self.pool = WorkerPool.launch(bound, wiring, self._workers, launcher, SystemClock(), SystemRandomness())

    @property
    def coordinator(self) -> Coordinator:
        return self._running.coordinator

    @property
    def _running(self) -> WorkerPool:
        assert self.pool is not None, "start comes first"
        return self.pool

    def successor(self, bound: BoundPlan, front: Node | None) -> Callable[[], None]:  # noqa: ARG002
        """As on Spark: workers are launched again with the new operators."""
        return self._running.successor(bound)

    def _address(self, port: int) -> tuple[str, int]:
        """Where workers reach the coordinator, which listens at this port."""
        return LOCAL, port

    def close(self) -> None:
        """End the workers. May be called again."""
        if self.pool is not None:
            self.pool.close()

    def run(
        self,
        rows: pa.Table | Staged,
        keys: Sequence[str],
        assignments: Mapping[str, Assignment],
        job: Job,
        row_bytes: float | None,  # noqa: ARG002
    ) -> list[TaskReport]:
        pool = self._running
        pool.begin(job, assignments)
        self.moved_slots = pool.moved_slots
        if isinstance(rows, Staged):
            return pool.run(job, rows.pieces, rows)
        try:
            pieces = self._push(pool, rows, keys, job)
        except Unavailable as error:
            raise pool.failed(error) from error
        return pool.run(job, pieces)

    def _push(self, pool: WorkerPool, rows: pa.Table, keys: Sequence[str], job: Job) -> list[Piece]:
        order = pool.bridge(job, keys)
        ends = [len(rows) * number // PARTITIONS for number in range(PARTITIONS + 1)]
        pieces = []
        # The last partition comes first: owners have to put them into their order.
        for partition, (start, end) in reversed(list(enumerate(pairwise(ends)))):
            key = PieceKey(order.exchange, partition, self._attempt(partition))
            pieces += Pusher(order, key, SystemRandomness()).push(rows.slice(start, end - start).to_batches())
        return pieces

    def prefetch(self, runs: Sequence[RunRef]) -> None:
        if self.pool is not None and self._store is not None:
            self.pool.prefetch(runs, self._store)

    def end_epoch(self) -> None:
        if self.pool is not None:
            self.pool.end_epoch()
