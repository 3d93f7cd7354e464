"""The benchmark ``counter``: source → count and sum per key → sink, on Spark.

Contenders are running queries in one Spark session, fed the same files in turn. In the end the published output of each is
compared with what DuckDB computes from its files; only then do times mean anything.
"""

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from floodplain.bench import worker_race
from floodplain.bench.contenders import stock_spark
from floodplain.bench.harness.frame import Bench, rounded
from floodplain.bench.harness.lanes import CompactionWait, Entry, Files, Lane, paired, race
from floodplain.bench.worker_race import TASK_SLOTS
from floodplain.bench.workloads.counting import OUTPUT, ROWS, Count, counted_right, events
from floodplain.clock import Clock
from floodplain.errors import BadInput
from floodplain.spark.runtime import stream

OURS = "floodplain"
STATELESS = "stateless"
ROCKSDB = "spark_rocksdb"
MEMORY = "spark_memory"
TRANSFORM = "transform_with_state"
LARGE = "floodplain_large"

SMALL_EPOCHS, SLOTS, GROWTH, WORKERS = "small_epochs", "slots", "growth", "workers"
CHOICES = (STATELESS, ROCKSDB, MEMORY, TRANSFORM, SMALL_EPOCHS, SLOTS, GROWTH, WORKERS)
"""Arguments of ``--only``: contenders and further measurements. Floodplain always takes part."""

TARGETS = {
    "vs_transform_with_state": ("at least", 100.0),
    "vs_spark_rocksdb": ("at least", 3.0),
    "vs_spark_memory": ("at least", 2.0),
    "vs_stateless": ("at least", 0.85),
    "small_epoch_vs_stateless": ("at most", 1.3),
    "epoch_growth": ("at most", 1.3),
    "workers_vs_tasks": ("at least", 1.6),
    "workers_vs_transform_with_state": ("at least", 220.0),
    "bridge_vs_tasks": ("at least", 0.95),
    "bridge_vs_tasks_json": ("at least", 0.95),
    "small_epoch_tasks_vs_workers": ("at least", 1.8),
    "rss_growth": ("at most", 1.05),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    keys: int = 1_000_000
    rows: int = 500_000
    """Rows per epoch."""
    block: int = 5
    """Epochs per block of Floodplain and of the pipeline without state: enough to trigger a compaction."""
    their_block: int = 2
    """Epochs per block of Spark's aggregations."""
    rounds: int = 7
    their_rounds: int = 7
    """Rounds of the race with Spark's state stores."""
    slots: int = 2
    transform_keys: int = 1_000_000
    transform_rows: int = 500_000
    """Rows per epoch of transformWithState, which takes minutes for 500k rows."""
    transform_epochs: int = 2
    """0: without transformWithState."""
    small_rows: int = 100
    small_block: int = 10
    small_rounds: int = 6
    other_slots: tuple[int, ...] = (1, 2, 4, 8)
    slot_rounds: int = 5
    factor: int = 10
    """How many times larger the large state is."""
    growth_rounds: int = 5
    fill_rows: int = 1_000_000
    """Rows per epoch while a state is filled."""
    workers: worker_race.RaceSizes = worker_race.FULL
    races_workers: bool = True
    """Whether the race of the engines is part of it without being named."""
    only: tuple[str, ...] = ()
    """Some of ``CHOICES``; empty for all."""

    def includes(self, choice: str) -> bool:
        if choice == WORKERS and not self.only:
            return self.races_workers
        return not self.only or choice in self.only

    @property
    def disk_bytes(self) -> int:
        return 1000 * self.keys * (self.factor + 4)


FULL = Sizes()
QUICK = Sizes(
    their_rounds=2,
    transform_keys=100_000,
    transform_rows=100_000,
    transform_epochs=1,
    small_block=8,
    small_rounds=3,
    other_slots=(2, 4),
    slot_rounds=2,
    growth_rounds=2,
    workers=worker_race.QUICK,
    races_workers=False,
)
"""As many rounds as the full form against the pipeline without state, because that ratio is near 1; fewer against the others. The
race of the engines would take it beyond five minutes: ``--only workers`` runs it by itself."""


def run(sizes: Sizes, clock: Clock, spark: Any = None) -> dict[str, Any]:
    """Runs on ``spark``, or on a local Spark of its own. Temporary files are removed at the end."""
    bench = Bench("counter", clock)
    with tempfile.TemporaryDirectory(prefix="floodplain-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        if shutil.disk_usage(home).free < sizes.disk_bytes:
            raise BadInput(f"{home} has less than {sizes.disk_bytes >> 20} MB free: set TMPDIR to a directory with more space")
        if sizes.only != (WORKERS,):
            with nullcontext(spark) if spark is not None else stock_spark.local_session(home) as session:
                _Counter(bench, sizes, home, session).run()
        if sizes.includes(WORKERS):
            with nullcontext(spark) if spark is not None else stock_spark.local_session(home, TASK_SLOTS) as session:
                worker_race.WorkerRace(bench, sizes.workers, home, session).run()
    bench.judge({name: target for name, target in TARGETS.items() if name in bench.ratios})
    bench.figures["sizes"] = msgspec.json.decode(msgspec.json.encode(sizes))
    bench.figures["machine"] = {"cores": os.cpu_count(), **{name: version(name) for name in ("pyspark", "duckdb", "pyarrow")}}
    return bench.result()


def ours(slots: int) -> Callable[[Any, Path], Any]:
    """Floodplain's contender, as a user writes it."""

    def start(rows: Any, folder: Path) -> Any:
        counted = stream(rows).key_by("key").process(Count())
        return counted.write("parquet", path=str(folder / "out")).start(state=str(folder / "state"), slots=slots)

    return start


class _Counter:
    """The phases of the benchmark."""

    def __init__(self, bench: Bench, sizes: Sizes, home: Path, session: Any) -> None:
        self._bench, self._sizes, self._home = bench, sizes, home
        self._rows = stock_spark.files(session, ROWS)
        self._files = Files(home / "files")
        self._rng = np.random.default_rng(7)

    def run(self) -> None:
        with ExitStack() as stack:
            mine = self._lane(stack, OURS, ours(self._sizes.slots))
            plain = self._lane(stack, STATELESS, stock_spark.stateless(self._sizes.slots))
            settle = self._fill(mine, self._sizes.keys)
            plain.feed(mine.fed)
            self._race_stateless(mine, plain, settle)
            with ExitStack() as theirs:
                self._race_spark(mine, settle, theirs)
            if self._sizes.includes(SMALL_EPOCHS):
                self._small_epochs(mine, plain, settle)
            self._check(plain)
            if self._sizes.includes(SLOTS):
                self._slots(mine, settle)
            if self._sizes.includes(GROWTH):
                self._growth(stack, mine, settle)
            self._check(mine)

    def _lane(self, stack: ExitStack, name: str, start: Callable[[Any, Path], Any]) -> Lane:
        lane = Lane(name, self._home, self._rows, start)
        stack.callback(lane.stop)
        return lane

    def _fill(self, lane: Lane, keys: int) -> CompactionWait:
        """Writes a state for every key."""
        ids = self._rng.permutation(keys)
        lane.feed([self._files.write(events(part, self._rng)) for part in _parts(ids, self._sizes.fill_rows)])
        settle = CompactionWait(lane, self._bench.clock)
        settle()
        self._bench.say(f"{lane.name} has {keys} keys")
        return settle

    def _epochs(self, count: int, rows: int, keys: int) -> list[Path]:
        return [self._files.write(events(self._rng.integers(0, keys, rows), self._rng)) for _ in range(count)]

    def _race_stateless(self, mine: Lane, plain: Lane, settle: CompactionWait) -> None:
        """Floodplain against the pipeline without state, before any other query exists.

        Spark's state stores leave garbage, dirty pages and uploads that slow the next contender: a block by up to 40 %.
        """
        sizes = self._sizes
        blocks = self._blocks(sizes.rounds)
        entries = [_fed(mine, blocks, sizes.block, settle), _fed(plain, blocks, sizes.block)]
        settle.waited_s.clear()
        laps = race(self._bench, "counter", entries, sizes.rounds)
        self._bench.ratios[f"vs_{STATELESS}"] = rounded(paired(laps[STATELESS], laps[OURS]))
        self._bench.figures["counter"] = {name: lap.figures() for name, lap in laps.items()}
        self._bench.figures["our_compaction_after_a_block_ms"] = rounded(statistics.fmean(settle.waited_s) * 1000)

    def _race_spark(self, mine: Lane, settle: CompactionWait, stack: ExitStack) -> None:
        """Floodplain against Spark's state stores, on epochs of the full size."""
        sizes, bench = self._sizes, self._bench
        stores = {ROCKSDB: stock_spark.ROCKSDB, MEMORY: stock_spark.MEMORY}
        others = [
            self._lane(stack, name, stock_spark.aggregation(store)) for name, store in stores.items() if sizes.includes(name)
        ]
        for lane in others:
            lane.feed(mine.fed)
            bench.say(f"{lane.name} has {sizes.keys} keys")
        blocks = self._blocks(sizes.their_rounds)
        entries = [_fed(mine, blocks, sizes.block, settle), *(_fed(lane, blocks, sizes.their_block) for lane in others)]
        if sizes.transform_epochs and sizes.includes(TRANSFORM):
            entries.append(self._transform(stack, blocks))
        if len(entries) == 1:
            return
        laps = race(bench, "counter", entries, sizes.their_rounds)
        for entry in entries[1:]:
            bench.ratios[f"vs_{entry.name}"] = rounded(laps[OURS].rows_per_s / laps[entry.name].rows_per_s)
            self._check(entry.lane)
        bench.figures["counter"] |= {entry.name: laps[entry.name].figures() for entry in entries[1:]}
        bench.figures["floodplain_beside_spark"] = laps[OURS].figures()

    def _blocks(self, rounds: int) -> list[list[Path]]:
        """For each round, one epoch to warm up and a block; one round more, which does not count."""
        return [self._epochs(1 + self._sizes.block, self._sizes.rows, self._sizes.keys) for _ in range(rounds + 1)]

    def _transform(self, stack: ExitStack, blocks: Sequence[Sequence[Path]]) -> Entry:
        """transformWithState, on the first files of the blocks if its epochs are as large as the others'."""
        sizes = self._sizes
        lane = self._lane(stack, TRANSFORM, stock_spark.transform_with_state(stock_spark.CountProcessor, OUTPUT))
        ids = self._rng.permutation(sizes.transform_keys)
        lane.feed([self._files.write(events(part, self._rng)) for part in _parts(ids, sizes.fill_rows)])
        self._bench.say(f"{lane.name} has {sizes.transform_keys} keys")
        if (sizes.transform_keys, sizes.transform_rows) == (sizes.keys, sizes.rows):
            epochs = [block[0] for block in blocks[1 : sizes.transform_epochs + 1]]
        else:
            epochs = self._epochs(sizes.transform_epochs, sizes.transform_rows, sizes.transform_keys)
        return Entry(TRANSFORM, lane, lambda number: epochs[number - 1 : number] if number else [])

    def _small_epochs(self, mine: Lane, plain: Lane, settle: CompactionWait) -> None:
        sizes = self._sizes
        blocks = [self._epochs(sizes.small_block, sizes.small_rows, sizes.keys) for _ in range(sizes.small_rounds + 1)]
        entries = [
            Entry(OURS, mine, lambda number: blocks[number], after=settle),
            Entry(STATELESS, plain, lambda number: blocks[number]),
        ]
        laps = race(self._bench, "small epochs", entries, sizes.small_rounds)
        self._bench.ratios["small_epoch_vs_stateless"] = rounded(laps[OURS].epoch_ms / laps[STATELESS].epoch_ms)
        self._bench.figures["small_epoch"] = {name: lap.figures() for name, lap in laps.items()}

    def _slots(self, mine: Lane, settle: CompactionWait) -> None:
        """The same query, rescaled while it runs."""
        sizes = self._sizes
        running: Any = mine.running

        def entry(slots: int) -> Entry:
            def files(_: int) -> Sequence[Path]:
                return self._epochs(sizes.block, sizes.rows, sizes.keys)

            return Entry(str(slots), mine, files, before=lambda: running.rescale(slots), after=settle)

        laps = race(self._bench, "slots", [entry(slots) for slots in sizes.other_slots], sizes.slot_rounds)
        self._bench.figures["slots"] = {name: lap.figures() for name, lap in laps.items()}
        running.rescale(sizes.slots)

    def _growth(self, stack: ExitStack, mine: Lane, settle: CompactionWait) -> None:
        """The same epochs on a state that is ``factor`` times as large."""
        sizes = self._sizes
        large = self._lane(stack, LARGE, ours(sizes.slots))
        settle_large = self._fill(large, sizes.keys * sizes.factor)
        blocks = [self._epochs(sizes.block, sizes.rows, sizes.keys) for _ in range(sizes.growth_rounds + 1)]
        entries = [
            Entry(OURS, mine, lambda number: blocks[number], after=settle),
            Entry(LARGE, large, lambda number: blocks[number], after=settle_large),
        ]
        laps = race(self._bench, "growth", entries, sizes.growth_rounds)
        self._bench.ratios["epoch_growth"] = rounded(laps[LARGE].epoch_ms / laps[OURS].epoch_ms)
        self._bench.figures["growth"] = {name: lap.figures() for name, lap in laps.items()}
        self._check(large)

    def _check(self, lane: Lane) -> None:
        right = counted_right(lane.fed, lane.output, stateful=lane.name != STATELESS)
        self._bench.check(f"{lane.name}_equals_duckdb", right)


def _fed(lane: Lane, blocks: Sequence[Sequence[Path]], block: int, after: CompactionWait | None = None) -> Entry:
    return Entry(lane.name, lane, lambda n: blocks[n][1 : 1 + block], after=after, warm=lambda n: blocks[n][:1])


def _parts(ids: np.ndarray, size: int) -> list[np.ndarray]:
    return np.array_split(ids, -(-len(ids) // size))
