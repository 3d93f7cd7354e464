"""The part ``workers`` of the benchmark ``counter``: workers that stay, against a Spark task per slot and epoch."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from floodplain.bench.contenders import stock_spark
from floodplain.bench.harness.frame import Bench, rounded
from floodplain.bench.harness.lanes import CompactionWait, Entry, Files, JsonFiles, Lane, Laps, paired, race
from floodplain.bench.workloads.counting import OUTPUT, ROWS, Count, counted_right, events
from floodplain.settings import Workers
from floodplain.spark.runtime import stream

TASKS, WORKERS, BRIDGE = "tasks", "workers", "bridge"
TRANSFORM = "transform_with_state"
TASK_SLOTS = 6
"""Of the session: two for the workers of each contender that has some, the others for jobs of Spark. The machine has fewer cores:
contenders run one at a time, and a worker that waits takes none."""


@dataclass(frozen=True, slots=True)
class RaceSizes:
    keys: int = 1_000_000
    rows: int = 500_000
    block: int = 5
    rounds: int = 7
    slots: int = 2
    small_rows: int = 100
    small_block: int = 10
    small_rounds: int = 7
    resident_epochs: Sequence[int] = (400, 500, 1900, 2000)
    """The memory of a worker in the epochs of the last interval is divided by that in those of the first."""
    transform_rows: int = 500_000
    """In one epoch of transformWithState. 0: without it."""
    fill_rows: int = 1_000_000


FULL = RaceSizes()
QUICK = RaceSizes(rounds=3, small_rounds=3, resident_epochs=(40, 50, 190, 200), transform_rows=50_000)


def ours(slots: int, engine: Any) -> Callable[[Any, Path], Any]:
    """The contender, as a user writes it."""

    def start(rows: Any, folder: Path) -> Any:
        counted = stream(rows).key_by("key").process(Count())
        output = counted.write("parquet", path=str(folder / "out"))
        return output.start(state=str(folder / "state"), slots=slots, engine=engine)

    return start


def bridged(slots: int) -> Callable[[Any, Path], Any]:
    """The same input, but with a step that workers leave to Spark."""
    start = ours(slots, Workers(count=slots))
    return lambda rows, folder: start(rows.where("amount >= rand() - 1"), folder)


class WorkerRace:
    """Runs on a session that has ``TASK_SLOTS`` task slots."""

    def __init__(self, bench: Bench, sizes: RaceSizes, home: Path, session: Any) -> None:
        self._bench, self._sizes, self._home, self._session = bench, sizes, home, session
        self._rows = stock_spark.files(session, ROWS)
        self._files = Files(home / "worker-files")
        self._rng = np.random.default_rng(13)

    def run(self) -> None:
        sizes = self._sizes
        workers = Workers(count=sizes.slots)
        with ExitStack() as stack:
            starts = {TASKS: ours(sizes.slots, "tasks"), WORKERS: ours(sizes.slots, workers), BRIDGE: bridged(sizes.slots)}
            lanes = {name: self._lane(stack, name, start) for name, start in starts.items()}
            settle = self._fill(lanes)
            self._large_epochs(lanes, settle)
            self._small_epochs(lanes, settle)
            self._resident_memory(lanes[WORKERS])
            for lane in lanes.values():
                self._check(lane)
        self._json(workers)

    def _json(self, workers: Workers) -> None:
        """The same rows as JSON, which only Spark reads: with workers they come over the bridge."""
        sizes = self._sizes
        self._rows = stock_spark.files(self._session, ROWS, "json")
        self._files = JsonFiles(self._home / "worker-json-files")
        with ExitStack() as stack:
            starts = {TASKS: ours(sizes.slots, "tasks"), BRIDGE: ours(sizes.slots, workers)}
            lanes = {name: self._lane(stack, f"{name}_json", start) for name, start in starts.items()}
            settle = self._fill(lanes)
            laps = self._race("engines on JSON", lanes, settle, (sizes.block, sizes.rows), sizes.rounds)
            self._ratio("bridge_vs_tasks_json", laps[TASKS], laps[BRIDGE])
            self._bench.figures["engines_json"] = {name: lap.figures() for name, lap in laps.items()}
            for lane in lanes.values():
                self._check(lane)

    def _lane(self, stack: ExitStack, name: str, start: Callable[[Any, Path], Any]) -> Lane:
        lane = Lane(f"engine_{name}", self._home, self._rows, start)
        stack.callback(lane.stop)
        return lane

    def _fill(self, lanes: Mapping[str, Lane]) -> dict[str, CompactionWait]:
        ids = self._rng.permutation(self._sizes.keys)
        parts = np.array_split(ids, -(-len(ids) // self._sizes.fill_rows))
        files = [self._files.write(events(part, self._rng)) for part in parts]
        settle = {}
        for name, lane in lanes.items():
            lane.feed(files)
            settle[name] = CompactionWait(lane, self._bench.clock)
            settle[name]()
            self._bench.say(f"engine {name} has {self._sizes.keys} keys")
        return settle

    def _epochs(self, count: int, rows: int) -> list[Path]:
        return [self._files.write(events(self._rng.integers(0, self._sizes.keys, rows), self._rng)) for _ in range(count)]

    def _race(
        self, what: str, lanes: Mapping[str, Lane], settle: Mapping[str, CompactionWait], epochs: tuple[int, int], rounds: int
    ) -> dict[str, Laps]:
        """``epochs``: of a block, and the rows of each."""
        count, rows = epochs
        blocks = [self._epochs(1 + count, rows) for _ in range(rounds + 1)]
        entries = [
            Entry(name, lane, lambda n: blocks[n][1:], after=settle[name], warm=lambda n: blocks[n][:1])
            for name, lane in lanes.items()
        ]
        return race(self._bench, what, entries, rounds)

    def _large_epochs(self, lanes: Mapping[str, Lane], settle: Mapping[str, CompactionWait]) -> None:
        sizes, bench = self._sizes, self._bench
        laps = self._race("engines", lanes, settle, (sizes.block, sizes.rows), sizes.rounds)
        self._ratio("workers_vs_tasks", laps[TASKS], laps[WORKERS])
        self._ratio("bridge_vs_tasks", laps[TASKS], laps[BRIDGE])
        bench.figures["engines"] = {name: lap.figures() for name, lap in laps.items()}
        if sizes.transform_rows:
            self._transform(laps[WORKERS])

    def _ratio(self, name: str, theirs: Laps, mine: Laps) -> None:
        """The median of paired rounds, and its 95 % interval by resampling them."""
        self._bench.ratios[name] = rounded(paired(theirs, mine))
        pairs = np.array([a.seconds / b.seconds for a, b in zip(theirs.blocks, mine.blocks, strict=True)])
        drawn = np.median(np.random.default_rng(5).choice(pairs, (2000, len(pairs))), axis=1)
        self._bench.figures.setdefault("intervals", {})[name] = [rounded(float(q)) for q in np.quantile(drawn, [0.025, 0.975])]

    def _transform(self, mine: Laps) -> None:
        """Spark's own operator on one epoch of the same rows, on a state of as many keys."""
        sizes = self._sizes
        with ExitStack() as stack:
            lane = self._lane(stack, TRANSFORM, stock_spark.transform_with_state(stock_spark.CountProcessor, OUTPUT))
            lane.feed(self._epochs(1, max(sizes.transform_rows // 10, 1)))
            block = lane.feed(self._epochs(1, sizes.transform_rows))
            self._check(lane)
        theirs = sizes.transform_rows / block.seconds
        self._bench.ratios["workers_vs_transform_with_state"] = rounded(mine.rows_per_s / theirs)
        self._bench.figures["transform_with_state_rows_per_s"] = round(theirs)

    def _small_epochs(self, lanes: Mapping[str, Lane], settle: Mapping[str, CompactionWait]) -> None:
        sizes = self._sizes
        laps = self._race("small epochs of engines", lanes, settle, (sizes.small_block, sizes.small_rows), sizes.small_rounds)
        self._bench.ratios["small_epoch_tasks_vs_workers"] = rounded(laps[TASKS].epoch_ms / laps[WORKERS].epoch_ms)
        self._bench.figures["small_epochs_of_engines"] = {name: lap.figures() for name, lap in laps.items()}

    def _resident_memory(self, lane: Lane) -> None:
        """Whether a worker that stays grows."""
        first, first_end, last, last_end = self._sizes.resident_epochs
        seen: dict[int, float] = {}
        for number in range(0, last_end, 10):
            lane.feed(self._epochs(10, self._sizes.small_rows))
            seen[number] = _resident_mb(lane)
        early = statistics.median(mb for number, mb in seen.items() if first <= number < first_end)
        late = statistics.median(mb for number, mb in seen.items() if last <= number < last_end)
        self._bench.ratios["rss_growth"] = rounded(late / early)
        self._bench.figures["worker_rss_mb"] = {"early": rounded(early), "late": rounded(late)}

    def _check(self, lane: Lane) -> None:
        self._bench.check(f"{lane.name}_equals_duckdb", counted_right(lane.fed, lane.output, stateful=True))


def _resident_mb(lane: Lane) -> float:
    """Anonymous memory of the largest worker: mapped files are the page cache's."""
    running: Any = lane.running
    return max(_anonymous_mb(pid) for pid in running.worker_pids.values())


def _anonymous_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0
