"""The process that trials run in, and its owner's end: a trial that kills it or never ends is a verdict, not the end of the soak.

``python -m tests.soak.worker SCRATCH`` reads a request a line (``part``, ``trial``, ``seed``, ``control``) and answers
each with a verdict, as JSON.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.soak.campaign import tried
from tests.soak.campaigns import CAMPAIGNS
from tests.soak.outcome import Outcome, Verdict

ROOT = Path(__file__).resolve().parents[2]


def main(scratch: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        folder = scratch / f"trial-{os.getpid()}-{number}"
        verdict = tried(CAMPAIGNS[asked["part"]], asked["seed"], asked["trial"], folder, control=asked["control"])
        shutil.rmtree(folder, ignore_errors=True)
        answers.write(json.dumps({"outcome": verdict.outcome.name, "fault": verdict.fault, "told": verdict.told}) + "\n")


class Worker:
    """Starts the process when it is needed, and another when it has died. ``close`` ends it with all that it started."""

    def __init__(self, scratch: Path, module: str = "tests.soak.worker") -> None:
        self._scratch, self._module = scratch, module
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the process and its children said."""
        return self._scratch / "worker.log"

    def ask(self, part: str, trial: int, seed: int, limit_s: float, *, control: bool = False) -> Verdict:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        request = {"part": part, "trial": trial, "seed": seed, "control": control}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], limit_s)[0]:
            self.close()
            return Verdict(Outcome.UNCLEAR_ERROR, "", f"no end within {limit_s:g} s")
        answer = process.stdout.readline()
        if not answer:
            code = process.wait()
            self.close()
            return Verdict(Outcome.UNCLEAR_ERROR, "", f"the process ended with {code}: {self._last_words()}")
        told: dict[str, Any] = json.loads(answer)
        return Verdict(Outcome[told["outcome"]], told["fault"], told["told"])

    def _start(self) -> "subprocess.Popen[bytes]":
        self._scratch.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(self._scratch)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(self._scratch)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        return self._process

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-500:]

    def close(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
