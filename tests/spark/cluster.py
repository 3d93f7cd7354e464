"""The test's end of a cluster process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark.fault_processes import Fault

ROOT = Path(__file__).resolve().parents[2]
NO_SETTINGS: Mapping[str, str] = {}


def environment(java: Path) -> dict[str, str]:
    """For a process that starts Spark and whose workers import what the tests define."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    return {**os.environ, **python, "JAVA_HOME": str(java)}


class Cluster:
    """Asks, and gets answers. Use as a context manager."""

    def __init__(self, scratch: Path, java: Path, executors: int = 2, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        """``executors``: how many there are at first. ``settings``: of Spark, in place of those that all tests have."""
        self._executors = executors
        self._log = (scratch / "log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_process", str(scratch), json.dumps(dict(settings))],
            env=environment(java),
            cwd=scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> "Cluster":
        assert self._answer() == self._executors
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._log.close()

    def start(self, folder: Path, *faults: Fault, speculation: bool = False, **options: Any) -> None:
        self._ask("start", folder=str(folder), faults=[vars(fault) for fault in faults], speculation=speculation, **options)

    def finish(self, folder: Path) -> None:
        assert self._ask("finish", folder=str(folder)) == ""

    def tasks_done(self) -> list[int]:
        return self._ask("tasks_done")

    def executors(self) -> int:
        return self._ask("executors")

    def _ask(self, what: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ask": what, **given}) + "\n")
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise AssertionError(f"the cluster ended: {self._log.read()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]
