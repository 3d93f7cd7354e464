"""Costs that must not grow with the state: a commit of the same changes, opening a store, repartitioning, lookup memory."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.bench import repartition
from floodplain.bench.contenders.memory import lookup_memory, measurable
from floodplain.bench.contenders.ours import SCHEMAS, TABLE, total
from floodplain.bench.harness.frame import Bench, Contestant, Timings, rounded, timed
from floodplain.bench.harness.sizes import Sizes
from floodplain.bench.workloads.state_updates import VALUE, users, value_batch
from floodplain.store.store import Store, Writer

MEMORY_LIMIT_MB = 100
_EPOCHS = 4


class Grown:
    """A table with ``rows`` rows, loaded in a few epochs and compacted. Every user's count is 1."""

    kind = VALUE

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self.rows = rows
        self.store = Store.open(path, create=True)
        self.writer: Writer = self.store.writer("bench")
        self.writer.define(SCHEMAS["value"])

    def load(self, number: int) -> None:  # noqa: ARG002
        for ids in np.array_split(np.arange(self.rows), _EPOCHS):
            ones = pa.repeat(pa.scalar(1, pa.int64()), len(ids))
            self.writer.put(TABLE, pa.table({"user": users(ids), "n": ones, "s": ones.cast(pa.float64())}))

    def compact(self, number: int) -> None:  # noqa: ARG002
        for _ in self.store.compact(full=True):
            pass

    def commit(self, batch: pa.Table) -> None:
        epoch = self.writer.epoch()
        epoch.put(TABLE, batch)
        epoch.commit()

    def open(self, key: pa.Table) -> int:
        """Opens the store and looks up a key, as a new process does for its first answer."""
        store = Store.open(self.path)
        answer = total(VALUE, store.snapshot().table(TABLE).multi_get(key).rows)
        store.close()
        return answer

    def close(self) -> None:
        self.writer.close()
        self.store.close()


def measure(bench: Bench, sizes: Sizes, home: Path) -> None:
    """Sets ``open_growth``, ``commit_growth``, ``repartition_growth`` and the memory figures of ``bench``."""
    tables = {"small": Grown(home / "small", sizes.keys), "large": Grown(home / "large", sizes.keys * sizes.factor)}
    figures: dict[str, Any] = {}
    for name, table in tables.items():
        load_s, compact_s = timed(bench.clock, table.load)[0], timed(bench.clock, table.compact)[0]
        figures[name] = {"rows": table.rows, "load_s": rounded(load_s), "compact_s": rounded(compact_s)}
        bench.say(f"growth: {table.rows} rows loaded in {load_s:.1f} s, compacted in {compact_s:.1f} s")
    bench.check("growth_rows_complete", all(_rows_in(table) == table.rows for table in tables.values()))
    races = {
        "open": _race_opens(bench, tables, sizes),
        "repartition": _race_moves(bench, tables, sizes, home),
        "commit": _race_commits(bench, tables, sizes),
    }
    if measurable():
        _memory(bench, tables["large"], sizes.lookups)
    for what, timings in races.items():
        bench.ratios[f"{what}_growth"] = rounded(timings.median_ms("large") / timings.median_ms("small"))
        figures[f"{what}_ms"] = timings.medians()
    rewrite_ms = races["repartition"].median_ms(repartition.REWRITE)
    bench.ratios["repartition_large_vs_rewrite"] = rounded(rewrite_ms / races["repartition"].median_ms("large"))
    bench.figures["growth"] = figures
    for table in tables.values():
        table.close()


def _rows_in(table: Grown) -> int:
    return sum(run.rows for run in table.store.head.runs[TABLE])


def _race_opens(bench: Bench, tables: dict[str, Grown], sizes: Sizes) -> Timings:
    rng = np.random.default_rng(11)
    keys = [pa.table({"user": users(rng.integers(0, sizes.keys, 1))}) for _ in range(sizes.growth_rounds + 1)]
    contestants = [_with_inputs(name, table.open, keys) for name, table in tables.items()]
    return bench.race("growth_open", contestants, sizes.growth_rounds)


def _race_commits(bench: Bench, tables: dict[str, Grown], sizes: Sizes) -> Timings:
    """The same changes to both: one in a hundred keys of the small table."""
    rng = np.random.default_rng(12)
    ids = [rng.choice(sizes.keys, max(sizes.keys // 100, 1), replace=False) for _ in range(sizes.growth_rounds + 1)]
    batches = [value_batch(chosen, number, rng) for number, chosen in enumerate(ids)]
    contestants = [_with_inputs(name, table.commit, batches) for name, table in tables.items()]
    return bench.race("growth_commit", contestants, sizes.growth_rounds)


def _race_moves(bench: Bench, tables: dict[str, Grown], sizes: Sizes, home: Path) -> Timings:
    """Both repartitioned by an edit, and the large one by rewriting it."""
    some = pa.table({"user": users(np.arange(min(sizes.keys, 1000 * sizes.sample)))})
    move = repartition.plan(VALUE, some, *repartition.SLOTS, sizes.sample)
    with ExitStack() as stack:
        contestants = [
            repartition.contestant(name, stack.enter_context(closing(repartition.Reassign(table, move))))
            for name, table in tables.items()
        ]
        rewrite = stack.enter_context(closing(repartition.Rewrite(tables["large"], move, home)))
        timings = bench.race(
            "growth_repartition", [*contestants, repartition.contestant(repartition.REWRITE, rewrite)], sizes.moves
        )
        bench.check("growth_rewrite_complete", rewrite.rows == tables["large"].rows)
    return timings


def _with_inputs(name: str, call: Callable[[pa.Table], object], inputs: Sequence[pa.Table]) -> Contestant:
    return Contestant(name, lambda number: call(inputs[number]))


def _memory(bench: Bench, table: Grown, lookups: int) -> None:
    memory = lookup_memory(table.path, TABLE, table.rows, lookups)
    bench.figures["lookup_rss_anon_mb"] = memory.peak_mb
    bench.figures["lookup_idle_rss_anon_mb"] = memory.idle_mb
    bench.check("lookup_memory", memory.peak_mb < MEMORY_LIMIT_MB)
    bench.check("lookup_found_all", memory.keys_found == lookups)
    bench.say(f"growth: {lookups} lookups in {table.rows} rows took {memory.peak_mb} MB of anonymous memory")
