"""A pipeline whose operators run in worker processes, on a state in a directory; and the faults that these processes meet."""

import os
import pickle
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.operators.kernel.traits import Combiner
from floodplain.runtime.pieces import Piece
from floodplain.runtime.task import Job
from floodplain.sources.parquet import InputFile, file_ranges
from floodplain.sources.scan import ParquetScan, encoded_schema
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_launcher import ProcessLauncher, Serve, serve
from floodplain.testing.workers_engine import PARTITIONS, WorkersEngine
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.open import open_blobs
from floodplain.workers import pieces
from floodplain.workers.coordinator import SILENT_S
from floodplain.workers.kit import Point, WorkerKit
from floodplain.workers.pool import WorkerPool
from floodplain.workers.worker import Launch
from tests.waiting import wait_for
from tests.workers.frame_proxy import FrameProxy, Plan


class ProxiedEngine(WorkersEngine):
    """Its workers may reach the coordinator through a proxy."""

    proxy_plan: Plan | None = None
    _proxy: FrameProxy | None = None

    def _address(self, port: int) -> tuple[str, int]:
        if self.proxy_plan is not None:
            self._proxy = FrameProxy(port, self.proxy_plan)
            port = self._proxy.port
        return super()._address(port)

    def close(self) -> None:
        super().close()
        if self._proxy is not None:
            self._proxy.close()


@dataclass(frozen=True)
class Uncombined:
    """Rows that the workers are to combine. ``schema``: of what comes of them."""

    rows: pa.Table
    schema: pa.Schema


class ReadingEngine(ProxiedEngine):
    """Its workers read the rows of an epoch from Parquet files, and combine them, as those on Spark do where the source is
    Parquet."""

    folder: Path

    def combined(self, rows: pa.Table, combiner: Combiner, slots: int) -> Uncombined:
        return Uncombined(rows, combiner.schema(rows.schema))

    def _push(self, pool: WorkerPool, given: pa.Table | Uncombined, keys: Sequence[str], job: Job) -> list[Piece]:
        rows = given.rows if isinstance(given, Uncombined) else given
        names = tuple(rows.column_names)
        schema = encoded_schema(rows.schema)
        scan = ParquetScan(schema, names, (), names, schema)
        ends = [len(rows) * number // PARTITIONS for number in range(PARTITIONS + 1)]
        files = [self._written(rows.slice(start, end - start)) for start, end in pairwise(ends)]
        made = pool.read(job, keys, scan, file_ranges(files, PARTITIONS), combine=given is not rows)
        assert sum(each.rows for each in made) == len(rows)
        return [piece for each in made for piece in each.pieces]

    def _written(self, rows: pa.Table) -> InputFile:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{len(list(self.folder.iterdir()))}.parquet"
        pq.write_table(rows, path)
        found = path.stat()
        return InputFile(str(path), found.st_size, found.st_mtime_ns // 1_000_000)


class WorkersKit(PipelineKit):
    """``run``: what the processes run. ``workers``: how many there are. ``proxy``: what becomes of messages on their way.
    ``reads``: whether they read their input from files, instead of getting it as from tasks of the bridge."""

    engine_type = ProxiedEngine

    def __init__(
        self,
        folder: Path,
        *args: Any,
        workers: int = 2,
        run: Serve = serve,
        proxy: Plan | None = None,
        launcher: type[ProcessLauncher] = ProcessLauncher,
        silent_s: float = SILENT_S,
        reads: bool = False,
        **more: Any,
    ) -> None:
        self._proxy, self._launcher, self._silent_s = proxy, launcher, silent_s
        self._engine_type = ReadingEngine if reads else self.engine_type
        self.folder, self._location = folder, str(folder)
        self._workers, self.run = workers, run
        super().__init__(*args, **more)

    def _blobs(self) -> Blobs:
        return open_blobs(self._location, self._settings, clock=self._clock, randomness=self._randomness, counters=self._counters)

    def _new_engine(self) -> WorkersEngine:
        self.engine = self._engine_type(self._transforms, self._plan, self._workers, pickle.dumps, pickle.loads, self.run)
        self.engine.launcher, self.engine.proxy_plan, self.engine.silent_s = self._launcher, self._proxy, self._silent_s
        if isinstance(self.engine, ReadingEngine):
            self.engine.folder = self.folder.with_name(f"{self.folder.name}-input")
        return self.engine

    def ready(self) -> "WorkersKit":
        """Once all workers have come."""
        wait_for("workers", lambda: len(self.engine.coordinator.present()) == self._workers)
        return self

    def wipe(self) -> None:
        self.close()
        super().wipe()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Damage:
    """A bit of the ``nth`` rows that a worker's process keeps, of worker 0, is another than was written, once."""

    folder: Path
    nth: int = 1

    def __call__(self, kit: WorkerKit, launch: Launch) -> None:
        """What the processes run: see ``ProcessLauncher``."""
        if launch.worker == 0:
            pieces._write = partial(self._write, pieces._write, [0])
        serve(kit, launch)

    def _write(self, write: Callable[[int, Any, int], None], count: list[int], fd: int, data: Any, at: int) -> None:
        count[0] += 1
        if count[0] == self.nth and not self.met:
            (self.folder / "damaged").touch()
            data = bytearray(data)
            data[len(data) // 2] ^= 1
        write(fd, data, at)

    @property
    def met(self) -> list[Path]:
        return list(self.folder.glob("damaged"))


@dataclass(frozen=True)
class Fault:
    """A signal to itself that a worker's process sends where it comes to a point for the ``nth`` time, at most ``times`` in all.

    Which processes met it stands in ``folder``.
    """

    point: Point
    folder: Path
    nth: int = 1
    times: int = 1
    worker: int | None = None
    """Any, if it is None."""
    signal: int = signal.SIGKILL

    def __call__(self, kit: WorkerKit, launch: Launch) -> None:
        """What the processes run: see ``ProcessLauncher``."""
        reached = partial(self._reach, launch.worker, [0]) if self.worker in (None, launch.worker) else kit.reach
        serve(replace(kit, reach=reached), launch)

    def _reach(self, worker: int, count: list[int], point: Point) -> None:
        count[0] += point == self.point
        if point == self.point and count[0] >= self.nth and self._is_next(worker):
            os.kill(os.getpid(), self.signal)

    def _is_next(self, worker: int) -> bool:
        for number in range(self.times):
            try:
                (self.folder / f"{self.point}-{number}").open("x").write(str(worker))
            except FileExistsError:
                continue
            return True
        return False

    @property
    def met(self) -> list[int]:
        """The workers that met it, in their order."""
        return [int(path.read_text()) for path in sorted(self.folder.glob(f"{self.point}-*"))]
