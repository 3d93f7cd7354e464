"""``make spark-suite``: Spark's own tests of ``transformWithState``, on the drop-in and on stock Spark.

Each side runs in a process and a Spark of its own. A line per test goes to stderr. The last line is JSON: ``passed``, ``failed``
and ``excluded`` of the drop-in, ``skipped`` by Spark itself, ``not_run`` for lack of time, and ``stock`` with the same of stock
Spark. The exit code is 0 if nothing failed and all was run.
"""

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyspark

from floodplain.spark.java import provide_java
from tools.spark_suite.excluded import EXCLUDED
from tools.spark_suite.sources import NoTestFiles, provide_tests

ROOT = Path(__file__).resolve().parents[2]
SIDES = ("drop-in", "stock")


@dataclass
class Answers:
    """What became of the tests of one side."""

    outcomes: dict[str, str] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, outcome: str, why: str) -> None:
        # A test may fail and then fail to clean up, or the other way round: the first failure counts.
        if self.outcomes.get(name) != "failed":
            self.outcomes[name] = outcome
            self.causes[name] = why

    def of(self, outcome: str) -> list[str]:
        return [name for name, became in self.outcomes.items() if became == outcome]

    def summary(self, wanted: Sequence[str]) -> dict[str, Any]:
        not_run = [name for name in wanted if name not in self.outcomes]
        return {
            "passed": len(self.of("passed")),
            "failed": self.of("failed"),
            "skipped": self.of("skipped"),
            "not_run": not_run,
        }


@dataclass(frozen=True)
class Limits:
    until_s: float
    test_s: float


def run_side(side: str, wanted: Sequence[str], environment: dict[str, str], limits: Limits, logs: Path) -> Answers:
    """Runs tests until all have an outcome or time is up. A test that hangs or ends its process fails, and the others go on."""
    answers = Answers()
    while True:
        left = [name for name in wanted if name not in answers.outcomes]
        if not left or time.monotonic() >= limits.until_s:
            return answers
        if not _run_process(side, left, environment, limits, logs, answers):
            return answers


def _run_process(
    side: str, left: Sequence[str], environment: dict[str, str], limits: Limits, logs: Path, answers: Answers
) -> bool:
    """Whether another process may do better with what is left."""
    with (logs / f"{side}.log").open("ab") as log:
        process = _start(side, environment, log)
        assert process.stdin is not None
        process.stdin.write((json.dumps(left) + "\n").encode())
        process.stdin.close()
        running = ""
        try:
            for line in _lines(process, limits):
                if line["outcome"] == "started":
                    running = line["test"]
                    continue
                running = ""
                answers.take(line["test"], line["outcome"], line["why"])
                say(f"{side}: {line['outcome']} {line['test']} ({line['seconds']} s) {line['why']}")
        except TimeoutError as reason:
            say(f"{side}: stopped: {reason}")
        finally:
            process.kill()
            process.wait()
    if running and time.monotonic() < limits.until_s:
        why = f"took more than {limits.test_s:.0f} s, or ended its process"
        answers.take(running, "failed", why)
        say(f"{side}: failed {running}: {why}")
    return bool(running)


def _start(side: str, environment: dict[str, str], log: Any, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tools.spark_suite.side", side, *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=ROOT)


def _lines(process: "subprocess.Popen[bytes]", limits: Limits) -> Iterator[dict[str, Any]]:
    """Raises ``TimeoutError`` if none comes in time."""
    assert process.stdout is not None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            wait_s = min(limits.test_s, limits.until_s - time.monotonic())
            if wait_s <= 0 or not selector.select(wait_s):
                raise TimeoutError("a test took too long" if wait_s == limits.test_s else "time is up")
            read = os.read(process.stdout.fileno(), 1 << 16)
            if not read:
                return
            *whole, pending = (pending + read).split(b"\n")
            yield from map(json.loads, whole)


def listed_tests(environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-m", "tools.spark_suite.side", "stock", "list"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT, check=True, text=True)
    names: list[str] = json.loads(ran.stdout)
    return names


def chosen(names: Sequence[str], only: str) -> list[str]:
    """Those that have one of the words of ``only`` in their names, or match it as a pattern; all if there is none."""
    words = only.replace(",", " ").split()
    return [name for name in names if not words or any(word in name or fnmatch(name, word) for word in words)]


_began_s = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _began_s:6.1f} s] {text}", file=sys.stderr, flush=True)


def environment_of(path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(path), str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def main() -> int:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="floodplain-spark-suite-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        try:
            path = provide_tests(home, options.source, options.ref, pyspark.__version__)
        except NoTestFiles as reason:
            print(reason, file=sys.stderr)
            return 2
        logs = Path(options.logs or home)
        logs.mkdir(parents=True, exist_ok=True)
        provide_java(home / "java")
        environment = {**environment_of(path), "TMPDIR": str(home)}
        names = chosen(listed_tests(environment), options.only)
        return _report(options, names, environment, logs)


def _report(options: argparse.Namespace, names: Sequence[str], environment: dict[str, str], logs: Path) -> int:
    limits = Limits(time.monotonic() + options.minutes * 60, options.test_seconds)
    wanted = {"drop-in": [name for name in names if name not in EXCLUDED], "stock": list(names)}
    sides = options.sides.split(",")
    results = {side: run_side(side, wanted[side], environment, limits, logs).summary(wanted[side]) for side in sides}
    excluded = [name for name in names if name in EXCLUDED]
    own = results.pop("drop-in", {"passed": 0, "failed": []})
    print(json.dumps({**own, "excluded": excluded, **results}), flush=True)
    return 1 if own["failed"] or own.get("not_run") or not names else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make spark-suite", description="Spark's own tests of transformWithState.")
    parser.add_argument("--source", default="", help="Spark's sources: a folder or a git repository")
    parser.add_argument("--ref", default="", help="a tag or branch of the repository (that of the installed PySpark)")
    parser.add_argument("--minutes", type=float, default=30, help="time limit of all (30)")
    parser.add_argument("--test-seconds", type=float, default=240, help="time limit of one test (240)")
    parser.add_argument("--only", default="", help="words or patterns that names of tests have: <module>.<method>")
    parser.add_argument("--sides", default=",".join(SIDES), help="which sides to run (drop-in,stock)")
    parser.add_argument("--logs", default="", help="a folder to keep logs and tracebacks in")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
