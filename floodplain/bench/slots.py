"""The benchmark ``slots``: what an epoch costs the driver per slot, from a hundred slots to thousands, with tiny data.

Tasks run one after the other in this process, in the engine of the test kits. Their time is taken apart from that of the driver:
the plan, the commit, the compaction policy, publishing. So nothing is measured but what Floodplain itself does for a slot.
"""

import gc
import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from floodplain.bench.harness.frame import Bench, cycle_collector_off, rounded
from floodplain.bench.workloads.counting import OUTPUT_SCHEMA, ROWS, Count, events
from floodplain.clock import Clock
from floodplain.pipeline.stream import Output, Stream
from floodplain.runtime.task import Job, TaskReport
from floodplain.settings import StoreSettings
from floodplain.store.compaction.policy import TieredPolicy
from floodplain.testing.local_engine import LocalEngine
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.versions.records.manifest_delta import delta, for_tasks

CHOICES: tuple[str, ...] = ()
"""There is only Floodplain."""
TARGETS = {"driver_ms_per_slot": ("at most", 0.3), "slots_growth": ("at most", 1.3)}


@dataclass(frozen=True, slots=True)
class Sizes:
    slot_counts: tuple[int, ...] = (128, 512, 2048)
    """Ratios compare the last with the first."""
    key_groups: int = 4096
    keys_per_slot: int = 4
    rows_per_slot: int = 2
    """In each epoch."""
    rounds: int = 10
    warm_up: int = 2
    only: tuple[str, ...] = ()


FULL = Sizes()
QUICK = Sizes(rounds=4, warm_up=1)


def run(sizes: Sizes, clock: Clock) -> dict[str, Any]:
    """State and output are in memory."""
    bench = Bench("slots", clock)
    with ExitStack() as stack:
        lanes = [stack.enter_context(closing(Lane(slots, sizes, clock))) for slots in sizes.slot_counts]
        with cycle_collector_off():
            for number in range(sizes.warm_up + sizes.rounds):
                for lane in lanes if number % 2 else reversed(lanes):
                    lane.epoch(counted=number >= sizes.warm_up)
                    gc.collect()
                shown = [f"{lane.slots} slots {lane.driver_s[-1] * 1000:.0f} ms" for lane in lanes if lane.driver_s]
                bench.say(f"epoch {number + 1}, the driver's part: {', '.join(shown) or 'not counted yet'}")
        for lane in lanes:
            bench.check(f"{lane.slots}_slots_equal_duckdb", lane.right())
    figures = {str(lane.slots): lane.figures() for lane in lanes}
    first, last = figures[str(sizes.slot_counts[0])], figures[str(sizes.slot_counts[-1])]
    bench.ratios["driver_ms_per_slot"] = last["driver_ms_per_slot"]
    bench.ratios["slots_growth"] = rounded(last["driver_ms_per_slot"] / first["driver_ms_per_slot"])
    bench.ratios["tasks_growth"] = rounded(last["task_ms_per_slot"] / first["task_ms_per_slot"])
    bench.ratios["increment_vs_manifest"] = rounded(last["increment_bytes"] / last["manifest_bytes"])
    bench.judge(TARGETS)
    bench.figures["slots"] = figures
    bench.figures["sizes"] = asdict(sizes)
    bench.figures["machine"] = {"cores": os.cpu_count(), **{name: version(name) for name in ("duckdb", "pyarrow", "msgspec")}}
    return bench.result()


class TimedEngine(LocalEngine):
    """Notes how long tasks ran."""

    clock: Clock
    tasks_s = 0.0

    def _task(self, job: Job, slot: int, batches: Sequence[pa.RecordBatch]) -> TaskReport:
        began_s = self.clock.monotonic_s()
        try:
            return super()._task(job, slot, batches)
        finally:
            self.tasks_s += self.clock.monotonic_s() - began_s


class TimedKit(PipelineKit):
    timing: TimedEngine

    def _new_engine(self) -> LocalEngine:
        self.timing = TimedEngine(self._transforms, self._plan)
        return self.timing


class Lane:
    """The workload with one number of slots."""

    def __init__(self, slots: int, sizes: Sizes, clock: Clock) -> None:
        self.slots = slots
        self._sizes, self._clock, self._rng = sizes, clock, np.random.default_rng(slots)
        self._kit = TimedKit(_pipeline, rows=ROWS, slots=slots, settings=StoreSettings(key_groups=sizes.key_groups))
        self._kit.timing.clock = clock
        self._fed: list[pa.Table] = []
        self._out: list[dict[str, Any]] = []
        self.driver_s: list[float] = []
        self._task_s: list[float] = []
        self._policy_s: list[float] = []
        self._increments: list[int] = []

    def epoch(self, *, counted: bool) -> None:
        """An epoch, and a look at whether to compact, timed; then compactions, which no epoch waits for."""
        kit, clock, sizes = self._kit, self._clock, self._sizes
        rows = events(self._rng.integers(0, self.slots * sizes.keys_per_slot, self.slots * sizes.rows_per_slot), self._rng)
        before, tasks_s, began_s = kit.store.head, kit.timing.tasks_s, clock.monotonic_s()
        made = kit.epoch(rows)
        epoch_s = clock.monotonic_s() - began_s
        tasks_s = kit.timing.tasks_s - tasks_s
        began_s = clock.monotonic_s()
        TieredPolicy().propose(kit.store.head)
        policy_s = clock.monotonic_s() - began_s
        self._fed.append(rows)
        self._out += next(iter(made.values()))
        if counted:
            self.driver_s.append(epoch_s - tasks_s + policy_s)
            self._task_s.append(tasks_s)
            self._policy_s.append(policy_s)
            self._increments.append(len(msgspec.msgpack.encode(delta(for_tasks(before), for_tasks(kit.store.head)))))
        for _ in kit.store.compact():
            pass

    def right(self) -> bool:
        """Whether the state and the newest output row of each key are the count and the sum that DuckDB makes of the rows."""
        snapshot = self._kit.store.snapshot()
        state = snapshot.table(snapshot.tables[0])
        tables = {
            "fed": pa.concat_tables(self._fed),
            "state": state.to_arrow().select(OUTPUT_SCHEMA.names),
            "out": pa.Table.from_pylist(self._out, OUTPUT_SCHEMA),
        }
        with duckdb.connect() as connection:
            for name, rows in tables.items():
                connection.register(name, rows)
            wanted = connection.sql(
                "select key, count(*) as n, sum(amount) as total from fed group by key order by key"
            ).fetchall()
            newest = connection.sql("select key, max(n), arg_max(total, n) from out group by key order by key").fetchall()
            return wanted == newest == connection.sql("select key, n, total from state order by key").fetchall()

    def figures(self) -> dict[str, Any]:
        whole = len(msgspec.msgpack.encode(for_tasks(self._kit.store.head)))

        def per_slot_ms(seconds: Sequence[float]) -> float:
            return rounded(statistics.median(seconds) * 1000 / self.slots)

        return {
            "driver_ms_per_slot": per_slot_ms(self.driver_s),
            "task_ms_per_slot": per_slot_ms(self._task_s),
            "policy_ms": rounded(statistics.median(self._policy_s) * 1000),
            "manifest_bytes": whole,
            "increment_bytes": int(statistics.median(self._increments)),
        }

    def close(self) -> None:
        self._kit.stop()
        self._kit.close()


def _pipeline(stream: Stream) -> Output:
    return stream.key_by("key").process(Count()).write("memory")
