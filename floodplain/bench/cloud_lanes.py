"""Lanes of the benchmark ``cloud``: the counter with its state in a directory, or on an S3 server that answers late."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from floodplain.bench.contenders import stock_spark
from floodplain.bench.harness.frame import Bench
from floodplain.bench.harness.lanes import CompactionWait, Files, Lane
from floodplain.bench.harness.s3_server import S3Server
from floodplain.bench.harness.slow_s3 import SlowS3, slowed
from floodplain.bench.workloads.counting import ROWS, Count, counted_right, events
from floodplain.clock import Clock
from floodplain.runtime.progress import EpochProgress
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.spark.runtime import stream
from floodplain.store.store import Store


@dataclass(frozen=True)
class LaneState:
    """Where a lane has its state. ``cache_bytes``: of the cache on this machine; 0 for a state in a directory."""

    name: str
    keys: int
    cache_bytes: int = 0
    engine: Any = "tasks"
    hide_misses: bool = True


class CloudLane:
    """The counter, with a state for each of its keys."""

    def __init__(self, lane: Lane, state: LaneState, store: Store, slow: SlowS3 | None, clock: Clock) -> None:
        """``store``: its state, read without the proxy."""
        self.lane, self.state, self.slow = lane, state, slow
        self._store = store
        self.settle = CompactionWait(lane, clock, store)

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def state_bytes(self) -> int:
        """Of the runs of the newest epoch."""
        return sum(run.length for runs in self._store.history.refresh().runs.values() for run in runs)

    @property
    def progress(self) -> list[EpochProgress]:
        running: Any = self.lane.running
        epochs: list[EpochProgress] = running.progress
        return epochs

    def right(self) -> bool:
        """Whether all that it has published so far equals what DuckDB computes."""
        return counted_right(self.lane.fed, self.lane.output, stateful=True)


class CloudLanes:
    """Makes lanes and feeds them. They end with the block of ``stack``."""

    def __init__(self, bench: Bench, stack: ExitStack, home: Path, session: Any, server: S3Server, delay_ms: float) -> None:
        self._bench, self._stack, self._home, self._server, self._delay_ms = bench, stack, home, server, delay_ms
        self._rows = stock_spark.files(session, ROWS)
        self.files = Files(home / "files")
        self._rng = np.random.default_rng(17)
        self._filling: dict[int, list[Path]] = {}

    def filled(self, state: LaneState, slots: int, fill_rows: int, warm: Sequence[int]) -> CloudLane:
        """A lane with a state for every key, and with warm caches: it has read state for epochs of so many rows each.

        Its answers are checked before any of its times are taken.
        """
        slow = None
        if state.cache_bytes:
            slow = self._stack.enter_context(slowed(self._server, self._delay_ms, self._bench.clock))
        lane = Lane(state.name, self._home, self._rows, _start(state, slow, slots))
        self._stack.callback(lane.stop)
        if slow is None:
            store = Store.open(lane.folder / "state")
        else:
            store = Store.open(self._server.url(state.name), options=self._server.options)
        made = CloudLane(lane, state, store, slow, self._bench.clock)
        lane.feed(self._fill(state.keys, fill_rows))
        made.settle()
        for rows in warm:
            lane.feed(self.epochs(1, rows, state.keys))
            made.settle()
        self._bench.check(f"{state.name}_equals_duckdb", made.right())
        self._bench.say(f"{state.name}: {state.keys:,} keys, {made.state_bytes / 1e6:,.0f} MB of state")
        return made

    def _fill(self, keys: int, fill_rows: int) -> list[Path]:
        """The same files for all lanes with as many keys."""
        if keys not in self._filling:
            parts = np.array_split(self._rng.permutation(keys), -(-keys // fill_rows))
            self._filling[keys] = [self.files.write(events(part, self._rng)) for part in parts]
        return self._filling[keys]

    def epochs(self, count: int, rows: int, keys: int) -> list[Path]:
        """Files with rows of keys that are uniformly distributed."""
        return [self.files.write(events(self._rng.integers(0, keys, rows), self._rng)) for _ in range(count)]


def _start(state: LaneState, slow: SlowS3 | None, slots: int) -> Callable[[Any, Path], Any]:
    """The contender, as a user writes it."""

    def start(rows: Any, folder: Path) -> Any:
        counted = stream(rows).key_by("key").process(Count())
        output = counted.write("parquet", path=str(folder / "out"))
        if slow is None:
            return output.start(state=str(folder / "state"), slots=slots, engine=state.engine)
        cache = CacheSettings(str(folder / "cache"), state.cache_bytes)
        settings = StoreSettings(cache=cache, hide_misses=state.hide_misses)
        url = slow.slow.url(state.name)
        return output.start(state=url, slots=slots, engine=state.engine, settings=settings, options=slow.slow.options)

    return start
