"""The benchmark ``nexmark``: the stateful queries in Floodplain and in Spark, on the same files in turn. Stateless queries are
only checked.

Generator, queries and answers are those of ``examples/nexmark``, so it runs from a checkout. Every contender's output is compared
with DuckDB's answer over all events that it was fed; only then do times mean anything. The figures also have DuckDB's time, on
one thread and with all events at once: it keeps no state, waits for no late rows and computes a single answer.
"""

import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.bench.contenders import stock_nexmark, stock_spark
from floodplain.bench.harness.frame import Bench, rounded, timed
from floodplain.bench.harness.lanes import CompactionWait, Entry, Lane, Laps, WarmUp, race
from floodplain.clock import Clock
from floodplain.errors import BadInput
from floodplain.settings import Workers
from floodplain.store.store import Store

OURS = "floodplain"
WORKERS = "workers"
"""Ours, on workers that stay."""
SPARK = "spark"
STATEFUL = ("q3", "q4", "q5", "q6", "q7", "q8", "q9", "q11", "q12", "q15", "q16", "q17", "q18", "q19", "q20")
STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
"""Both sides would run the same expressions in the same JVM, so there is no race; only Floodplain's answers are checked."""
CHOICES = (*STATEFUL, *STATELESS)
"""Arguments of ``--only``: queries."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted of one of our lanes, compared with Spark."""

    suffix: str
    """How the ratios of its queries end."""
    mean: str
    """What their geometric mean is called."""
    of_mean: float
    of_each: float


GOALS = {OURS: Goal("_vs_spark", "nexmark_vs_spark", 3.0, 1.0), WORKERS: Goal("_workers_vs_spark", "workers_vs_spark", 3.5, 1.4)}


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int = 500_000
    """Events per epoch."""
    small_events: int = 1_000
    small_epochs: int = 30
    """First epochs, which do not count: Java takes dozens of epochs to compile the hot code."""
    block: int = 1
    """Epochs per block."""
    rounds: int = 4
    warm_up: int = 2
    warm_up_s: float = 10.0
    most_warm_up: int = 8
    """Rounds that do not count: see ``WarmUp``."""
    rate: float = 10_000.0
    disorder_ms: int = 3_000
    slots: int = stock_spark.CORES
    queries: tuple[str, ...] = STATEFUL
    checked: tuple[str, ...] = STATELESS
    only: tuple[str, ...] = ()
    """Some of ``CHOICES``; empty for all."""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The queries that run: those of ``only`` if there are any, also if they are not in ``queries`` or ``checked``."""
        return self.only or (*self.queries, *self.checked)

    @property
    def task_slots(self) -> int:
        """Of the session: those that workers hold while a query runs, and one per core for all others."""
        return stock_spark.CORES + self.slots

    @property
    def epochs(self) -> int:
        """The largest number of epochs of full size."""
        return self.block * (self.rounds + max(self.warm_up, self.most_warm_up))


FULL = Sizes()
QUICK = Sizes(rounds=3, queries=("q3", "q8", "q11", "q20"), checked=())
"""Few queries (two joins, a windowed join, sessions), with the warm-up of the full form: without it, times depend on the JIT."""


def run(sizes: Sizes, clock: Clock, spark: Any = None) -> dict[str, Any]:
    """Runs on ``spark``, or on a local Spark of its own. Temporary files are removed at the end."""
    bench, parts = Bench("nexmark", clock), _NexmarkModules()
    with tempfile.TemporaryDirectory(prefix="floodplain-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with nullcontext(spark) if spark is not None else stock_spark.local_session(home, sizes.task_slots) as session:
            _Nexmark(bench, sizes, home, session, parts).run()
    _judge(bench)
    bench.figures["spark_cannot"] = {name: why for name, why in stock_nexmark.CANNOT.items() if name in sizes.chosen}
    bench.figures["sizes"] = asdict(sizes) | {
        "queries": list(sizes.queries),
        "checked": list(sizes.checked),
        "only": list(sizes.only),
    }
    bench.figures["machine"] = {"cores": os.cpu_count(), **{name: version(name) for name in ("pyspark", "duckdb", "pyarrow")}}
    return bench.result()


def _judge(bench: Bench) -> None:
    """Adds the means, and says which goals are met."""
    wanted: dict[str, tuple[str, float]] = {}
    for goal in GOALS.values():
        queries = [name for name in bench.ratios if re.fullmatch(rf"q\d+{goal.suffix}", name)]
        if queries:
            bench.ratios[goal.mean] = rounded(statistics.geometric_mean(bench.ratios[name] for name in queries))
            wanted |= {goal.mean: ("at least", goal.of_mean), **dict.fromkeys(queries, ("at least", goal.of_each))}
    bench.judge(wanted)


class _NexmarkModules:
    """The modules of ``examples/nexmark``."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        if not (root / "examples" / "nexmark").is_dir():
            raise BadInput(f"nexmark runs from a checkout, which has its queries in examples/nexmark; {root} has none")
        for place in (sys.path, path := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if str(root) not in place:
                place.insert(0, str(root))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        self.generator, self.oracle, self.queries = map(self._module, ("generator", "oracle", "queries"))

    @staticmethod
    def _module(name: str) -> ModuleType:
        return import_module(f"examples.nexmark.{name}")


class _Nexmark:
    """Runs query after query, each with both contenders."""

    def __init__(self, bench: Bench, sizes: Sizes, home: Path, session: Any, parts: _NexmarkModules) -> None:
        self._bench, self._sizes, self._home, self._parts = bench, sizes, home, parts
        self._events = stock_spark.files(session, parts.generator.ROWS)
        stream = parts.generator.Nexmark(rate=sizes.rate, disorder_ms=sizes.disorder_ms)
        first = sizes.small_epochs * sizes.small_events
        self._stream, total = stream, first + sizes.epochs * sizes.events
        self._small = self._written(stream.slices(first, sizes.small_events), 0)
        self._files = self._written(stream.slices(total - first, sizes.events, first), len(self._small))
        bench.say(f"{total:,} events in {len(self._small) + len(self._files)} files")

    def _written(self, tables: Iterable[pa.Table], first: int, folder: str = "files") -> list[Path]:
        paths: list[Path] = self._parts.generator.write_files(tables, self._home / folder, first=first)
        return paths

    def run(self) -> None:
        chosen = self._sizes.chosen
        for name in STATEFUL:
            if name in chosen:
                self._bench.figures[name] = self._query(name)
        for name in STATELESS:
            if name in chosen:
                self._check(name)

    def _check(self, name: str) -> None:
        """Checks the answer of Floodplain's query over one epoch."""
        query, home = self._parts.queries.QUERIES[name], self._home / name
        lane = Lane(OURS, home, self._events, self._ours(query))
        try:
            lane.feed(self._files[:1])
        finally:
            lane.stop()
        self._compare(name, lane, self._oracle(lane), query.changes)
        shutil.rmtree(home, ignore_errors=True)

    def _oracle(self, lane: Lane) -> Any:
        return self._parts.oracle.Oracle([str(path) for path in lane.fed])

    def _compare(self, name: str, lane: Lane, oracle: Any, changes: Any) -> None:
        wrong = oracle.differences(name, self._published(lane), changes)
        self._bench.check(f"{name}_{lane.name}_equals_duckdb", not wrong)
        if wrong:
            self._bench.say(f"{name}, {lane.name}: {len(wrong)} rows differ, such as {wrong[0]}")

    def _query(self, name: str) -> dict[str, Any]:
        query, home = self._parts.queries.QUERIES[name], self._home / name
        with ExitStack() as stack:
            engines = {OURS: "tasks", WORKERS: Workers(count=self._sizes.slots)}
            lanes = [Lane(lane, home, self._events, self._ours(query, engine)) for lane, engine in engines.items()]
            changes = dict.fromkeys(engines, query.changes)
            if name in stock_nexmark.QUERIES:
                made = stock_nexmark.start(name, self._parts.queries.DELAY, self._parts.queries.LONGEST, stock_spark.ROCKSDB)
                lanes.append(Lane(SPARK, home, self._events, made))
                key = stock_nexmark.KEYS.get(name, ())
                changes[SPARK] = self._parts.oracle.Changes("update" if key else "append", key)
            for lane in lanes:
                stack.callback(lane.stop)
                if self._small:
                    lane.feed(self._small)
            sizes = self._sizes
            warm_up = WarmUp(sizes.warm_up, sizes.warm_up_s, sizes.most_warm_up)
            laps = race(self._bench, name, self._entries(lanes), sizes.rounds, warm_up=warm_up)
            state_bytes = {lane.name: _state_bytes(lane) for lane in lanes}
            fed = list(lanes[0].fed)
            oracle = self._oracle(lanes[0])
            events = sum(pq.read_metadata(path).num_rows for path in fed)
            alone_s, _ = timed(self._bench.clock, lambda _: oracle.answer(name))
            closing = self._parts.generator.closing(self._stream, events) if query.closes else []
            last = self._written(closing, len(fed), f"after {name}")
            for lane in lanes:
                if last:
                    lane.feed(last)
                self._compare(name, lane, oracle, changes[lane.name])
        shutil.rmtree(home, ignore_errors=True)  # Spark may still be writing of the state of a query that was stopped
        for ours, goal in GOALS.items() if SPARK in laps else ():
            self._bench.ratios[name + goal.suffix] = rounded(laps[ours].rows_per_s / laps[SPARK].rows_per_s)
        duckdb = {"events_per_s_and_core": round(events / alone_s)}
        return {lane: _figures(lap, state_bytes[lane]) for lane, lap in laps.items()} | {"duckdb_in_one_batch": duckdb}

    def _published(self, lane: Lane) -> list[pa.Table]:
        """The published tables, oldest first."""
        if lane.name != SPARK:
            tables: list[pa.Table] = self._parts.oracle.published(lane.output)
            return tables
        return [pq.read_table(folder) for folder in sorted(lane.output.iterdir())]

    def _ours(self, query: Any, engine: Any = "tasks") -> Callable[[Any, Path], Any]:
        def start(events: Any, folder: Path) -> Any:
            return query.into(events, folder / "out").start(state=str(folder / "state"), slots=self._sizes.slots, engine=engine)

        return start

    def _entries(self, lanes: Sequence[Lane]) -> list[Entry]:
        def files(number: int) -> Sequence[Path]:
            return self._files[number * self._sizes.block : (number + 1) * self._sizes.block]

        def settle(lane: Lane) -> CompactionWait | None:
            return None if lane.name == SPARK else CompactionWait(lane, self._bench.clock)

        return [Entry(lane.name, lane, files, after=settle(lane)) for lane in lanes]


def _figures(laps: Laps, state_bytes: int) -> dict[str, Any]:
    figures = laps.figures()
    per_core = round(figures["rows_per_s"] / stock_spark.CORES)
    return {"events_per_s_and_core": per_core, "state_bytes": state_bytes, **figures}


def _state_bytes(lane: Lane) -> int:
    """The size of the current state: Floodplain's by its manifest, Spark's by its state store metrics."""
    if lane.name != SPARK:
        return sum(run.length for runs in Store.open(lane.folder / "state").head.runs.values() for run in runs)
    return lane.spark_state_bytes()
