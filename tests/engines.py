"""The engine that the pipelines of tests start with, and all of them with workers: ``python -m tests.engines --minutes 60``.

``FLOODPLAIN_TEST_ENGINE`` names it: ``tasks``, which is the default, or ``workers``. Tests marked ``both_engines`` run with both.
A test that starts a pipeline with an ``engine`` of its own has that.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest

from floodplain.pipeline.stream import Output
from tests import java_archive

VARIABLE = "FLOODPLAIN_TEST_ENGINE"
ENGINES = ("tasks", "workers")
FILES = (
    "tests/spark/test_*.py",
    "tests/spark/transform_with_state/test_*.py",
    "tests/spark/state_reader/test_*.py",
    "tests/runtime/compatibility/test_changed_jobs.py",
    "tests/pipeline/explain/test_explain.py",
    "tests/sinks/test_registry.py",
)
"""Those with pipelines on Spark."""
OTHERS = ("test_environment", "test_exchange", "test_faults", "test_handing_over", "test_kills", "test_sinks_killed")
"""Those of them that no engine changes, or that start it in processes of their own."""
ROOT = Path(__file__).resolve().parents[1]


def chosen() -> str:
    """The engine of this run of tests."""
    name = os.environ.get(VARIABLE, "tasks")
    if name not in ENGINES:
        raise pytest.UsageError(f"{VARIABLE}={name} is no engine: use {' or '.join(ENGINES)}")
    return name


def start_with(engine: str, patch: pytest.MonkeyPatch) -> None:
    """Pipelines start with this engine unless they say otherwise."""
    defaults = Output.start.__kwdefaults__
    assert defaults is not None
    patch.setitem(defaults, "engine", engine)


@dataclass
class Outcome:
    """What came of the tests."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, report: Path, file: str) -> None:
        """``report``: as pytest writes it for JUnit. A file without one did not come to its end."""
        if not report.exists():
            self.failed.append(file)
            return
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{file}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(name)
            elif case.find("skipped") is not None:
                self.skipped.append(name)
            else:
                self.passed += 1

    def text(self) -> str:
        return json.dumps({"passed": self.passed, "failed": sorted(set(self.failed)), "skipped": self.skipped})


def files(patterns: Sequence[str] = FILES) -> list[str]:
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if path.stem not in OTHERS]
    return [str(path.relative_to(ROOT)) for path in found]


def run(names: Sequence[str], engine: str, minutes: float) -> Outcome:
    """One process of pytest for each file, one after the other: workers hold cores. What time does not allow is skipped."""
    outcome, until_s = Outcome(), time.monotonic() + minutes * 60
    with TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                outcome.skipped.append(name)
                continue
            report, began_s = Path(folder) / f"{number}.xml", time.monotonic()
            command = [sys.executable, "-m", "pytest", "-m", "not soak", f"--junit-xml={report}", name]
            try:
                subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: engine}, timeout=left_s, check=False)
            except subprocess.TimeoutExpired:
                print(f"{name}: stopped, the time is over", flush=True)
            outcome.add(report, name)
            so_far = f"by now {outcome.passed} passed, {len(outcome.failed)} failed"
            print(f"[{number + 1}/{len(names)}] {name}: {time.monotonic() - began_s:.0f} s, {so_far}", flush=True)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description="the pipeline tests on Spark with one engine")
    parser.add_argument("--minutes", type=float, default=60, help="stops after so long; files that are left are skipped")
    parser.add_argument("--engine", choices=ENGINES, default="workers")
    parser.add_argument("files", nargs="*", help="test files; all with pipelines on Spark by default")
    options = parser.parse_args(arguments)
    java_archive.make()
    outcome = run(options.files or files(), options.engine, options.minutes)
    print(outcome.text())
    return 1 if outcome.failed or not outcome.passed else 0


if __name__ == "__main__":
    sys.exit(main())
