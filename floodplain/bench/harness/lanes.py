"""Races of streaming queries: each contender is a running query with folders of its own, and all are fed the same files in turn.

Times come from Spark's progress reports, for all alike: a block of files lasts from the start of its first batch to the end of
its last one, an epoch as long as its trigger. The polling interval of an idle query is in neither.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.bench.harness.frame import Bench, rounded
from floodplain.clock import Clock
from floodplain.store.compaction.policy import TieredPolicy
from floodplain.store.store import Store

FIRST_MTIME_S = 1_700_000_000
GROUPS_PER_FILE = 4
"""Row groups per file: with a single one, only one of the two cores would read it."""
_TURNS_SEED = 11


class Running(Protocol):
    def stop(self) -> object: ...


Start = Callable[[Any, Path], Any]
"""Starts a contender on a streaming DataFrame. It writes Parquet files to ``out`` in the folder."""


class Files:
    """Input files in a folder, one per epoch. Spark reads them in the order in which they were written."""

    suffix = "parquet"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._count = 0

    def write(self, rows: pa.Table) -> Path:
        path = self._folder / f"{self._count:06d}.{self.suffix}"
        self._write(rows, path)
        os.utime(path, (FIRST_MTIME_S + self._count,) * 2)
        self._count += 1
        return path

    def _write(self, rows: pa.Table, path: Path) -> None:
        pq.write_table(rows, path, row_group_size=max(-(-len(rows) // GROUPS_PER_FILE), 1))


class JsonFiles(Files):
    """A JSON object in each line."""

    suffix = "json"

    def _write(self, rows: pa.Table, path: Path) -> None:
        frame: Any = polars.from_arrow(rows)
        frame.write_ndjson(path)


def _rows_in(path: Path) -> int:
    if path.suffix == ".json":
        with path.open("rb") as lines:
            return sum(1 for _ in lines)
    rows: int = pq.read_metadata(path).num_rows
    return rows


@dataclass(frozen=True, slots=True)
class Block:
    """The time it took to process some files, one after the other."""

    seconds: float
    epochs_ms: tuple[int, ...]
    phases_ms: Mapping[str, float]
    """Mean durations of the phases of an epoch, as Spark reports them."""


class Lane:
    """One contender in its own folder below ``home``."""

    def __init__(self, name: str, home: Path, rows: Callable[[Path], Any], start: Start) -> None:
        self.name = name
        self.folder = home / name
        self.output = self.folder / "out"
        self.fed: list[Path] = []
        self._input = self.folder / "in"
        self._input.mkdir(parents=True)
        self.output.mkdir()
        streaming = rows(self._input)
        before = {query.id for query in streaming.sparkSession.streams.active}
        self.running: Running = start(streaming, self.folder)
        (self._query,) = [query for query in streaming.sparkSession.streams.active if query.id not in before]

    def feed(self, files: Sequence[Path]) -> Block:
        """Adds these files to the input and waits until they are processed."""
        seen = max((progress.batchId for progress in self._batches()), default=-1)
        for path in files:
            os.link(path, self._input / path.name)
        self.fed += files
        self._query.processAllAvailable()
        return _block([progress for progress in self._batches() if progress.batchId > seen])

    def _batches(self) -> list[Any]:
        return [progress for progress in self._query.recentProgress if "addBatch" in progress.durationMs]

    def spark_state_bytes(self) -> int:
        """The memory of Spark's state stores, as Spark reports it; 0 for a contender without them."""
        operators = self._batches()[-1].stateOperators
        return sum(operator.memoryUsedBytes for operator in operators)

    def stop(self) -> None:
        self.running.stop()


class CompactionWait:
    """Waits until a state has no compaction due, and records how long that took."""

    def __init__(self, lane: Lane, clock: Clock, store: Store | None = None) -> None:
        """``store``: the state, if that is not in the lane's folder."""
        self._store = Store.open(lane.folder / "state") if store is None else store
        self._clock = clock
        self.waited_s: list[float] = []

    def __call__(self) -> float:
        began_s = self._clock.monotonic_s()
        while TieredPolicy().propose(self._store.history.refresh()):
            self._clock.sleep_s(0.02)
        self.waited_s.append(self._clock.monotonic_s() - began_s)
        return self.waited_s[-1]


def _block(batches: Sequence[Any]) -> Block:
    began = [datetime.fromisoformat(batch.timestamp).timestamp() for batch in batches]
    took_ms = [batch.durationMs["triggerExecution"] for batch in batches]
    phases = {name for batch in batches for name in batch.durationMs}
    return Block(
        seconds=began[-1] - began[0] + took_ms[-1] / 1000,
        epochs_ms=tuple(took_ms),
        phases_ms={name: statistics.fmean(batch.durationMs.get(name, 0) for batch in batches) for name in sorted(phases)},
    )


@dataclass(slots=True)
class Laps:
    """The blocks of one contender in one race."""

    rows: int = 0
    blocks: list[Block] = field(default_factory=list)

    def add(self, block: Block, rows: int) -> None:
        self.blocks.append(block)
        self.rows = rows

    @property
    def epochs_ms(self) -> list[int]:
        return [ms for block in self.blocks for ms in block.epochs_ms]

    @property
    def epoch_ms(self) -> float:
        """The median epoch."""
        return statistics.median(self.epochs_ms)

    @property
    def rows_per_s(self) -> float:
        """By the median block, including the compactions that it made due."""
        return self.rows / statistics.median(block.seconds for block in self.blocks)

    def figures(self) -> dict[str, Any]:
        ordered = sorted(self.epochs_ms)
        return {
            "rows_per_s": round(self.rows_per_s),
            "epochs": len(ordered),
            "blocks_s": [rounded(block.seconds) for block in self.blocks],
            "epoch_p50_ms": rounded(self.epoch_ms),
            "epoch_p99_ms": rounded(ordered[min(len(ordered) - 1, -(-len(ordered) * 99 // 100))]),
            "phases_ms": {
                name: rounded(statistics.fmean(block.phases_ms.get(name, 0.0) for block in self.blocks))
                for name in sorted({name for block in self.blocks for name in block.phases_ms})
            },
        }


def paired(one: Laps, other: Laps) -> float:
    """The time of ``one`` divided by that of ``other``: the median over rounds.

    A slow phase of the machine affects both blocks of a round. Requires: as many blocks of both, of equally many rows.
    """
    return statistics.median(a.seconds / b.seconds for a, b in zip(one.blocks, other.blocks, strict=True))


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender in a race. In round n it is fed ``files(n)``; without files it does not run."""

    name: str
    lane: Lane
    files: Callable[[int], Sequence[Path]]
    before: Callable[[], object] | None = None
    after: Callable[[], float] | None = None
    """Waits for background work, so that it does not disturb the next block. Its seconds count for this block."""
    warm: Callable[[int], Sequence[Path]] | None = None
    """Untimed files before the block: Spark ends Python workers that were idle for a minute, and must start new ones."""


def turns(entries: int, rounds: int) -> list[list[int]]:
    """The order of the entries in each round: shuffled by a fixed seed, and no entry runs twice in a row.

    An entry leaves caches and garbage to the next one, so no entry may always follow the same other one.
    """
    rng, orders = np.random.default_rng(_TURNS_SEED), list[list[int]]()
    while len(orders) < rounds:
        order = rng.permutation(entries).tolist()
        if entries < 2 or not orders or order[0] != orders[-1][-1]:
            orders.append(order)
    return orders


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Rounds that do not count: at least ``rounds``, then until each contender was busy for ``seconds``, at most ``most``.

    Java compiles hot code while it runs: that depends on how long a contender was busy, not on the number of its epochs.
    """

    rounds: int = 1
    seconds: float = 0.0
    most: int = 1

    def goes_on(self, number: int, busy_s: float) -> bool:
        """Whether round ``number`` is part of it. ``busy_s``: of the least busy contender so far."""
        return number < self.rounds or (number < self.most and busy_s < self.seconds)


ONE_ROUND = WarmUp()


def race(bench: Bench, what: str, entries: Sequence[Entry], rounds: int, *, warm_up: WarmUp = ONE_ROUND) -> dict[str, Laps]:
    """Feed the entries in turn, round by round, in the order of ``turns``, until ``rounds`` rounds have counted."""
    laps, busy_s = {entry.name: Laps() for entry in entries}, dict.fromkeys((entry.name for entry in entries), 0.0)
    counted, of = 0, max(warm_up.rounds, warm_up.most) + rounds
    for number, order in enumerate(turns(len(entries), of)):
        counts = counted > 0 or not warm_up.goes_on(number, min(busy_s.values()))
        for entry in [entries[turn] for turn in order]:
            files = entry.files(number)
            if not files:
                continue
            if entry.before is not None:
                entry.before()
            if entry.warm is not None:
                entry.lane.feed(entry.warm(number))
            block = entry.lane.feed(files)
            if entry.after is not None:
                block = replace(block, seconds=block.seconds + entry.after())
            busy_s[entry.name] += block.seconds
            if counts:
                laps[entry.name].add(block, sum(map(_rows_in, files)))
        counted += counts
        medians = ", ".join(f"{name} {lap.epoch_ms:g} ms" for name, lap in laps.items() if lap.blocks)
        bench.say(f"{what}, {f'round {counted} of {rounds}: {medians}' if counts else f'warm-up, round {number + 1}'}")
        if counted == rounds:
            break
    return laps
