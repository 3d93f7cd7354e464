"""``make compare BASE=<commit>``: whether this tree is slower than that of an earlier commit.

Both sides run ``counter`` and one Nexmark query, each in a process and a Spark of its own, fed the same files in turn. Answers
are compared with those of DuckDB. The last line is JSON with ``ratios.now_vs_base`` and its 95 % interval. The exit code is 1
if an answer is wrong, or if the upper bound is below 0.97: then this tree is slower.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from examples.nexmark.generator import Nexmark, closing, write_files
from examples.nexmark.oracle import Oracle, published
from examples.nexmark.queries import QUERIES
from floodplain.bench.harness.frame import rounded
from floodplain.bench.harness.lanes import Files
from floodplain.bench.workloads.counting import counted_right, events
from floodplain.spark.java import provide_java
from tools.compare.interval import now_vs_base

ROOT = Path(__file__).resolve().parents[2]
BOUND = 0.97
WARM_UP = 3
"""Rounds that do not count: Java compiles hot code meanwhile."""
SMALL = 30
"""Small epochs before all others, for the same reason."""


@dataclass(frozen=True)
class Sizes:
    rounds: int
    rows: int
    keys: int
    block: int = 3
    """Epochs per round."""

    @property
    def epochs(self) -> int:
        return (WARM_UP + self.rounds) * self.block


@dataclass
class Side:
    """The process of one tree, and the files that it was fed."""

    name: str
    home: Path
    process: "subprocess.Popen[str]"
    fed: list[Path] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {self.name} ended with code {self.process.wait()}: see above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def feed(self, files: Sequence[Path]) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(path) for path in files]) + "\n")
        self.process.stdin.flush()
        self.fed += files
        return float(self.answer()["seconds"])


@contextmanager
def tree_of(commit: str, home: Path) -> Iterator[Path]:
    """A temporary worktree of a commit."""
    tree = home / "base"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


@contextmanager
def side_of(name: str, tree: Path, workload: str, home: Path) -> Iterator[Side]:
    """Starts a side with ``tree`` as its working directory: Spark's workers import from there before ``PYTHONPATH``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(ROOT)])}
    command = [sys.executable, "-P", str(ROOT / "tools" / "compare" / "side.py"), workload, str(home)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree)
    try:
        side = Side(name, home, process)
        _check_trees(name, tree, side.answer())
        yield side
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _check_trees(name: str, tree: Path, ready: dict[str, Any]) -> None:
    """Ends the run unless driver and tasks of a side import the code of its own tree."""
    others = {where: path for where, path in ready.items() if Path(path).resolve() != (tree / "floodplain").resolve()}
    if others:
        raise SystemExit(f"the side {name} must run the code of {tree}, but imports floodplain from elsewhere: {others}")


def race(sides: Sequence[Side], blocks: Sequence[Sequence[Path]], what: str) -> None:
    """Feeds each block to all sides, another one first each time."""
    for number, block in enumerate(blocks):
        for side in sides if number % 2 else reversed(sides):
            took_s = side.feed(block)
            if number >= WARM_UP:
                side.seconds.append(took_s)
        if number < WARM_UP:
            say(f"{what}, warm-up, round {number + 1} of {WARM_UP}")
        else:
            times = ", ".join(f"{side.name} {side.seconds[-1]:.2f} s" for side in sides)
            say(f"{what}, round {number + 1 - WARM_UP} of {len(blocks) - WARM_UP}: {times}")


def counter(sides: Sequence[Side], sizes: Sizes, home: Path) -> bool:
    """Count and sum per key, after a state was written for every key; returns whether all answers are right."""
    rng, files = np.random.default_rng(7), Files(home / "files")
    fill = [files.write(events(rng.permutation(sizes.keys), rng))]
    small = [files.write(events(rng.integers(0, sizes.keys, 100), rng)) for _ in range(SMALL)]
    epochs = [files.write(events(rng.integers(0, sizes.keys, sizes.rows), rng)) for _ in range(sizes.epochs)]
    for side in sides:
        side.feed([*fill, *small])
    race(sides, _blocks(epochs, sizes.block), "counter")
    return all(counted_right(side.fed, side.home / "out", stateful=True) for side in sides)


def nexmark(sides: Sequence[Side], sizes: Sizes, home: Path, name: str) -> bool:
    """One query of Nexmark; returns whether all answers are right."""
    stream, first = Nexmark(rate=10_000.0, disorder_ms=3_000), SMALL * 1_000
    total = first + sizes.epochs * sizes.rows
    small = write_files(stream.slices(first, 1_000), home / "files")
    epochs = write_files(stream.slices(total - first, sizes.rows, first), home / "files", first=len(small))
    for side in sides:
        side.feed(small)
    race(sides, _blocks(epochs, sizes.block), name)
    # Before the events that close the last windows, which are in windows that nothing closes.
    oracles = [Oracle([str(path) for path in side.fed]) for side in sides]
    if QUERIES[name].closes:
        last = write_files(closing(stream, total), home / "closing", first=len(small) + len(epochs))
        for side in sides:
            side.feed(last)
    wrong = {
        side.name: oracle.differences(name, published(side.home / "out"), QUERIES[name].changes)
        for side, oracle in zip(sides, oracles, strict=True)
    }
    for side, rows in wrong.items():
        if rows:
            say(f"{name}, {side}: {len(rows)} rows differ, such as {rows[0]}")
    return not any(wrong.values())


def _blocks(epochs: Sequence[Path], size: int) -> list[Sequence[Path]]:
    return [epochs[at : at + size] for at in range(0, len(epochs), size)]


_began_s = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _began_s:6.1f} s] {text}", file=sys.stderr, flush=True)


def compared(name: str, base: Path, sizes: Sizes, home: Path) -> tuple[bool, dict[str, Any]]:
    """Whether the answers of a workload are right, and its figures."""
    with ExitStack() as stack:
        trees = {"now": ROOT, "base": base}
        sides = [stack.enter_context(side_of(side, tree, name, home / name / side)) for side, tree in trees.items()]
        right = counter(sides, sizes, home / name) if name == "counter" else nexmark(sides, sizes, home / name, name)
    now, before = sides
    ratio = now_vs_base(now.seconds, before.seconds)
    figures = {side.name: [rounded(seconds) for seconds in side.seconds] for side in sides}
    return right, {"now_vs_base": [round(each, 4) for each in ratio], "seconds": figures}


def main() -> int:
    arguments = _arguments()
    sizes = Sizes(arguments.rounds, arguments.rows, arguments.keys)
    checks, figures, logs = {}, {}, []
    with tempfile.TemporaryDirectory(prefix="floodplain-compare-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        provide_java(home / "java")
        with tree_of(arguments.base, home) as base:
            for name in ("counter", arguments.query):
                checks[f"{name}_equals_duckdb"], figures[name] = compared(name, base, sizes, home)
                seconds = figures[name]["seconds"]
                logs.append((seconds["now"], seconds["base"]))
    both = now_vs_base([now for side, _ in logs for now in side], [base for _, side in logs for base in side])
    ratios = {"now_vs_base": round(both.mean, 4), "low": round(both.low, 4), "high": round(both.high, 4)}
    ratios |= {f"{name}_now_vs_base": of_workload["now_vs_base"][0] for name, of_workload in figures.items()}
    met = both.high >= BOUND
    commits = {"base": _commit(arguments.base), "now": _commit("HEAD")}
    result = {"bench": "compare", "checks": checks, "ratios": ratios, "figures": {**figures, **commits, "not_slower": met}}
    print(json.dumps(result), flush=True)
    return 0 if all(checks.values()) and met else 1


def _commit(name: str) -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", name], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make compare", description="Whether this tree is slower than that of an earlier commit."
    )
    parser.add_argument("--base", required=True, metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count (9; at least 7 for a figure)")
    parser.add_argument("--query", default="q5", choices=sorted(QUERIES), help="the query of Nexmark (q5)")
    parser.add_argument("--rows", type=int, default=300_000, help="rows per epoch (300,000)")
    parser.add_argument("--keys", type=int, default=500_000, help="keys of counter (500,000)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
