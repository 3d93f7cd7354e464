"""The benchmark ``state-types``: value, list, map and nested state under updates, queries, repartitioning and checkpoints.

Contenders: Floodplain, RocksDB (through rocksdict) and a Python dict. Their answers are compared with each other in every
round and with DuckDB at the end; only then do times mean anything.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.bench import growth, repartition
from floodplain.bench.contenders import ours, plain, rocks
from floodplain.bench.harness.frame import Bench, Contestant, Timings, rounded
from floodplain.bench.harness.sizes import FULL, QUICK, Sizes
from floodplain.bench.workloads.state_updates import KINDS, VALUE, Kind, expected, same_rows
from floodplain.clock import Clock
from floodplain.errors import BadInput

__all__ = ["CHOICES", "FULL", "QUICK", "run"]

RMW, GROWTH = "rmw", "growth"
CHOICES = (*(kind.name for kind in KINDS), RMW, GROWTH)
"""Arguments of ``--only``: kinds of state, read-modify-write, and growth."""

TARGETS = {
    "rmw_vs_rocksdb": ("at least", 5.0),
    "commit_growth": ("at most", 1.3),
    "open_growth": ("at most", 1.3),
    "repartition_vs_rewrite": ("at least", 50.0),
    "value_point_vs_rocksdb": ("at least", 0.1),
}
_NEW_SHARE = 10
"""One in this many users of an update or a query is not in the state yet."""

Contender: TypeAlias = ours.Ours | rocks.Rocks | plain.Plain


def run(sizes: Sizes, clock: Clock) -> dict[str, Any]:
    """Needs some gigabytes in the directory for temporary files (``TMPDIR``); they are removed at the end."""
    bench = Bench("state-types", clock)
    with tempfile.TemporaryDirectory(prefix="floodplain-bench-") as folder:
        home = Path(folder)
        if shutil.disk_usage(home).free < sizes.disk_bytes:
            raise BadInput(f"{home} has less than {sizes.disk_bytes >> 20} MB free: set TMPDIR to a directory with more space")
        chosen = sizes.only or CHOICES
        for kind in KINDS:
            if kind.name in chosen:
                with _folder(home, kind.name) as at:
                    bench.figures[kind.name] = _evaluate(bench, kind, sizes, at)
        if RMW in chosen:
            with _folder(home, RMW) as at:
                _read_modify_write(bench, sizes, at)
        if GROWTH in chosen:
            with _folder(home, GROWTH) as at:
                growth.measure(bench, sizes, at)
    bench.judge({name: target for name, target in TARGETS.items() if name in bench.ratios})
    bench.figures["sizes"] = asdict(sizes) | {"only": list(sizes.only)}
    bench.figures["machine"] = {"cores": os.cpu_count(), **{name: version(name) for name in ("rocksdict", "duckdb", "pyarrow")}}
    return bench.result()


@contextmanager
def _folder(home: Path, name: str) -> Iterator[Path]:
    """A folder for one part of the benchmark, removed after it to free the disk space."""
    part = home / name
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part)


def _contenders(kind: Kind, home: Path, clock: Clock) -> list[Contender]:
    return [ours.Ours(kind, home, clock), rocks.BY_KIND[kind.name](kind, home, clock), plain.BY_KIND[kind.name](kind, home)]


def _evaluate(bench: Bench, kind: Kind, sizes: Sizes, home: Path) -> dict[str, Any]:
    """One kind of state, all operations. Returns milliseconds by operation and contender."""
    rng = np.random.default_rng(KINDS.index(kind))
    everyone = sizes.type_keys + sizes.type_keys // _NEW_SHARE

    def changes(first: int, count: int, users: int) -> list[pa.Table]:
        numbers = range(first, first + count)
        return [kind.batch(rng.choice(everyone, max(users, 1), replace=False), number, rng) for number in numbers]

    with ExitStack() as stack:
        contenders = [stack.enter_context(closing(contender)) for contender in _contenders(kind, home, bench.clock)]
        loaded = _load(kind, contenders, sizes.type_keys, rng)
        updated = changes(1, sizes.updates + 1, sizes.type_keys // 4)
        saved = changes(sizes.updates + 2, sizes.rounds + 1, sizes.type_keys // 100)
        timings = {"update": _race(bench, kind.name, "update", contenders, updated)}
        timings |= _query(bench, kind, sizes, contenders, rng)
        timings["checkpoint"] = _race(bench, kind.name, "checkpoint", contenders, saved)
        lookup_keys = [saved[-1].select(kind.keys).slice(0, sizes.sample)] * (sizes.rounds + 1)
        timings["restore"] = _race(bench, kind.name, "restore", contenders, lookup_keys)
        wanted = expected(kind, [*loaded, *updated, *saved])
        _check_rows(bench, kind.name, kind, contenders, wanted)
        for what, slots in (("repartition", repartition.SLOTS), ("merge", repartition.SLOTS[::-1])):
            move = repartition.plan(kind, wanted, *slots, sizes.sample)
            timings[what], timings[f"{what}_answers"] = _race_moves(bench, kind.name, contenders, move, sizes.moves, home)
    for what, measured in timings.items():
        bench.compare(f"{kind.name}_{what}", measured, ours.NAME)
    point = timings.pop("point").medians()
    figures = {f"{what}_ms": measured.medians() for what, measured in timings.items()}
    return figures | {"point_us": {name: rounded(ms * 1000 / sizes.points) for name, ms in point.items()}}


def _load(kind: Kind, contenders: Sequence[Contender], users: int, rng: np.random.Generator) -> list[pa.Table]:
    loaded = [kind.batch(ids, 0, rng) for ids in np.array_split(np.arange(users), 4)]
    for contender in contenders:
        for batch in loaded:
            contender.update(batch)
    return loaded


def _check_rows(bench: Bench, label: str, kind: Kind, contenders: Sequence[Contender], wanted: pa.Table) -> None:
    for contender in contenders:
        bench.check(f"{label}_{contender.name}_equals_duckdb", same_rows(kind, contender.rows(), wanted))


def _race(bench: Bench, label: str, what: str, contenders: Sequence[Contender], inputs: Sequence[pa.Table]) -> Timings:
    """Every contender does ``what`` with one input per round; the first is the warm-up."""

    def contestant(contender: Contender) -> Contestant:
        call = getattr(contender, what)
        return Contestant(contender.name, lambda number: call(inputs[number]), lambda _: _finish_compactions(contenders))

    return bench.race(f"{label}_{what}", [contestant(contender) for contender in contenders], len(inputs) - 1)


def _finish_compactions(contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        contender.finish_compactions()


def _query(
    bench: Bench, kind: Kind, sizes: Sizes, contenders: Sequence[Contender], rng: np.random.Generator
) -> dict[str, Timings]:
    def keys(count: int) -> list[pa.Table]:
        users = sizes.type_keys + sizes.type_keys // _NEW_SHARE
        rounds = range(sizes.rounds + 1)
        return [kind.batch(rng.choice(users, count, replace=False), 0, rng).select(kind.keys) for _ in rounds]

    return {
        "point": _race(bench, kind.name, "point", contenders, keys(sizes.points)),
        "multi_get": _race(bench, kind.name, "multi_get", contenders, keys(sizes.type_keys // 4)),
        "scan": bench.race(
            f"{kind.name}_scan", [Contestant(contender.name, contender.scan) for contender in contenders], sizes.rounds
        ),
    }


def _race_moves(
    bench: Bench, label: str, contenders: Sequence[Contender], move: repartition.Move, rounds: int, home: Path
) -> tuple[Timings, Timings]:
    """The times until the new partitioning is durable, and until all new slots have answered."""
    mine, theirs, simple = contenders
    assert isinstance(mine, ours.Ours) and isinstance(theirs, rocks.Rocks) and isinstance(simple, plain.Plain)
    mine.compact()
    with ExitStack() as stack:
        rewrite = stack.enter_context(closing(repartition.Rewrite(mine, move, home)))
        movers: dict[str, repartition.Mover] = {
            ours.NAME: stack.enter_context(closing(repartition.Reassign(mine, move))),
            repartition.REWRITE: rewrite,
            repartition.COPY: stack.enter_context(closing(repartition.Copy(mine, move, home))),
            rocks.NAME: stack.enter_context(closing(repartition.RocksRewrite(theirs, move, home))),
            plain.NAME: stack.enter_context(closing(repartition.PlainRewrite(simple, move, home))),
        }
        both = []
        for answering in (False, True):
            contestants = [repartition.contestant(name, mover, answering=answering) for name, mover in movers.items()]
            both.append(bench.race(f"{label}_{move.name}{'_answers' if answering else ''}", contestants, rounds))
            bench.check(f"{label}_rewrite_complete", rewrite.rows == mine.view.count())
    return both[0], both[1]


def _read_modify_write(bench: Bench, sizes: Sizes, home: Path) -> None:
    """Measures the targets on the large value table: updates of a quarter of its keys, and its repartitioning."""
    rng = np.random.default_rng(99)
    with ExitStack() as stack:
        contenders = [stack.enter_context(closing(contender)) for contender in _contenders(VALUE, home, bench.clock)]
        loaded = _load(VALUE, contenders, sizes.keys, rng)
        changes = [
            VALUE.batch(rng.choice(sizes.keys, sizes.keys // 4, replace=False), number, rng)
            for number in range(1, sizes.rmw_epochs + 2)
        ]
        mine = contenders[0]
        assert isinstance(mine, ours.Ours)
        mine.compacted_s = 0.0
        timings = _race(bench, "rmw", "update", contenders, changes)
        compaction_ms = mine.compacted_s * 1000 / len(changes)
        wanted = expected(VALUE, [*loaded, *changes])
        _check_rows(bench, "rmw", VALUE, contenders, wanted)
        move = repartition.plan(VALUE, wanted, *repartition.SLOTS, sizes.sample)
        moved, answered = _race_moves(bench, "rmw", contenders, move, sizes.moves, home)
    bench.compare("rmw", timings, ours.NAME)
    with_compaction_ms = timings.mean_ms(ours.NAME) + compaction_ms
    bench.ratios["rmw_with_compaction_vs_rocksdb"] = rounded(timings.mean_ms(rocks.NAME) / with_compaction_ms)
    bench.compare("repartition", moved, ours.NAME)
    bench.compare("repartition_answers", answered, ours.NAME)
    bench.figures["rmw"] = {
        "keys": sizes.keys,
        "changed_keys": sizes.keys // 4,
        "mean_ms": timings.means(),
        "median_ms": timings.medians(),
        "our_compaction_ms_per_epoch": rounded(compaction_ms),
    }
    bench.figures["repartition"] = {
        "keys": sizes.keys,
        "slots": list(repartition.SLOTS),
        "median_ms": moved.medians(),
        "answers_median_ms": answered.medians(),
    }
