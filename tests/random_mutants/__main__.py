"""``python -m tests.random_mutants``: draws mutants, runs the tests that reach them, lists those that no test noticed.

All happens in a copy of the repository, in the folder ``.random-mutants``. What is known there of a mutant stands until its
function is changed; survivors are run anew each time. So a run that was cut short goes on where it stopped.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.random_mutants.equivalents import Equivalents
from tests.random_mutants.outcome import KILLED, outcome, summary

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".random-mutants"
TREE = HOME / "tree"
TOOLS = HOME / "tools"
TESTER = "mutmut==3.8.1"
MUTATED = ("floodplain/versions/*/*", "floodplain/store/*", "floodplain/store/*/*")
TESTS = ("tests/versions", "tests/store", "tests/formats", "tests/cli")
COPIED = ("floodplain", "tests", "pyproject.toml")
WITHOUT = "not spark and not soak and not kafka and not s3"
SETTINGS = f"""[mutmut]
source_paths=floodplain
only_mutate={"".join(f"{chr(10)}    {each}" for each in MUTATED)}
pytest_add_cli_args_test_selection={"".join(f"{chr(10)}    {each}" for each in TESTS)}
pytest_add_cli_args=
    -m
    {WITHOUT}
    -p
    tests.random_mutants.plugin
process_isolation=forkserver
use_git_change_detection=false
on_dependency_change=ignore
timeout_constant=60
timeout_multiplier=2
"""
LOOK_SECONDS = 15


def drawn(names: list[str], count: int, seed: int) -> list[str]:
    """A sample that stays as it is when code elsewhere is changed: only mutants of changed functions may leave or enter it."""
    return sorted(sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())[:count])


def provide_tester() -> None:
    """Installs mutmut beside our environment, not into it."""
    if not (TOOLS / "ready").exists():
        shutil.rmtree(TOOLS, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(TOOLS), TESTER], check=True)
        (TOOLS / "ready").write_text(TESTER)


def refresh(tree: Path) -> None:
    """Makes the copy equal to the repository. Files that are equal keep their time, by which mutmut sees what changed."""
    wanted = {path.relative_to(ROOT) for each in COPIED for path in _files(ROOT / each)}
    present = {path.relative_to(tree) for each in COPIED for path in _files(tree / each)}
    for path in present - wanted:
        for copy in (tree / path, tree / "mutants" / path):
            copy.unlink(missing_ok=True)
    for path in wanted:
        if path not in present or (ROOT / path).read_bytes() != (tree / path).read_bytes():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, tree / path)
    (tree / "setup.cfg").write_text(SETTINGS)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts]


def inside(*arguments: str, log: Any, **variables: str) -> subprocess.Popen[bytes]:
    """mutmut at work in the copy, in a process group of its own."""
    paths = os.pathsep.join(map(str, (TREE / "mutants", TOOLS)))
    command = [sys.executable, "-P", str(Path(__file__).with_name("inside.py")), *arguments]
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    return subprocess.Popen(command, cwd=TREE, env=environment, stdout=log, stderr=log, start_new_session=True)


def finished(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.wait():
        raise SystemExit(f"mutmut ended with {process.returncode}; the end of {log}:\n{log.read_text(errors='replace')[-3000:]}")


class Run:
    """One sample, from its drawing to its figures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._deadline = time.monotonic() + 60 * options.minutes
        self._log = HOME / "mutmut.log"

    def run(self) -> dict[str, Any]:
        with self._log.open("wb") as log:
            finished(inside("make", str(HOME / "all.json"), log=log), self._log)
            everything = json.loads((HOME / "all.json").read_text())
            self._sample = drawn(list(everything), self._options.count, self._options.seed)
            self._say(f"{len(self._sample)} of {len(everything)} mutants drawn with seed {self._options.seed}")
            left = [each["name"] for each in self._told(log) if outcome(each["code"]) not in KILLED]
            if left:
                self._work(left, log)
            return summary(self._told(log), Equivalents.read())

    def _told(self, log: Any) -> list[dict[str, Any]]:
        wanted, target = HOME / "wanted.json", HOME / "told.json"
        wanted.write_text(json.dumps(self._sample))
        finished(inside("tell", str(wanted), str(target), log=log), self._log)
        return json.loads(target.read_text())

    def _work(self, left: list[str], log: Any) -> None:
        wanted = HOME / "wanted.json"
        wanted.write_text(json.dumps(left))
        forget(left)
        process = inside(
            "run", str(wanted), str(self._options.processes), log=log, RANDOM_MUTANTS_SECONDS=str(self._options.seconds)
        )
        shown = ""
        try:
            while process.poll() is None:
                time.sleep(LOOK_SECONDS)
                codes = [code for code in recorded(left) if code is not None]
                lived = sum(outcome(code) not in KILLED for code in codes)
                if shown != (shown := f"{len(codes)} of {len(left)} run, {lived} of them not killed"):
                    self._say(shown)
                if time.monotonic() > self._deadline:
                    self._say(f"out of time after {self._options.minutes:g} minutes")
                    return
        finally:
            stop(process)
        finished(process, self._log)

    def _say(self, line: str) -> None:
        print(f"random mutants: {line}", file=sys.stderr, flush=True)


def _records() -> list[Path]:
    return sorted((TREE / "mutants").rglob("*.meta"))


def recorded(names: list[str]) -> list[int | None]:
    """What mutmut has written so far; a record it is writing right now is passed over."""
    codes: dict[str, int | None] = {}
    for path in _records():
        try:
            codes |= json.loads(path.read_text())["exit_code_by_key"]
        except ValueError:
            continue
    return [codes.get(name) for name in names]


def forget(names: list[str]) -> None:
    """Before they are run anew, so that what was not reached in time is not told as it was before."""
    for path in _records():
        data = json.loads(path.read_text())
        data["exit_code_by_key"] |= {name: None for name in names if name in data["exit_code_by_key"]}
        path.write_text(json.dumps(data))


def stop(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.random_mutants")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seconds", type=float, default=60, help="of tests for one mutant, the quickest first")
    parser.add_argument("--processes", type=int, default=1, help="mutants that are run side by side")
    options = parser.parse_args()
    HOME.mkdir(exist_ok=True)
    provide_tester()
    refresh(TREE)
    figures = Run(options).run()
    print(json.dumps(figures))
    sys.exit(figures["score"] < 0.9 or figures["unchecked"] > 0)


if __name__ == "__main__":
    main()
