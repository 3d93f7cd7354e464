"""All tests but the soak, in three processes side by side: ``python -m tests.run``.

Those on Spark wait for Spark most of the time. Each process has a Spark of its own if it needs one, and the folders are what
tells them apart.
"""

import subprocess
import sys
import tempfile
from contextlib import ExitStack

COMMAND = [sys.executable, "-m", "pytest", "-m", "not soak"]
BESIDE = (("tests/spark",), ("tests/store", "tests/versions", "tests/mutants"))
"""What goes into processes of its own; all else is in the one whose output is shown as it comes."""


def main() -> int:
    """Shows the output of the one as it comes, then that of the others; 0 if all passed."""
    ignored = [f"--ignore={folder}" for folders in BESIDE for folder in folders]
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in BESIDE]
        others = [
            subprocess.Popen([*COMMAND, *folders], stdout=log, stderr=subprocess.STDOUT)
            for folders, log in zip(BESIDE, logs, strict=True)
        ]
        stack.callback(_end, others)
        codes = [subprocess.run([*COMMAND, "tests", *ignored], check=False).returncode]
        for folders, process, log in zip(BESIDE, others, logs, strict=True):
            print(f"waiting for {', '.join(folders)}", flush=True)
            codes.append(process.wait())
            log.seek(0)
            print(log.read(), flush=True)
    return next(filter(None, codes), 0)


def _end(processes: list["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
