"""All tests but the soak, in two processes side by side: ``python -m tests.run``.

Those on Spark wait for Spark most of the time. Each process has a Spark of its own, and the folders are what tells them apart;
some further files go with the one so that both take about as long.
"""

import subprocess
import sys
import tempfile

COMMAND = [sys.executable, "-m", "pytest", "-m", "not soak"]
BESIDE = ("tests/spark", *(f"tests/operators/test_{name}.py" for name in ("join", "join_kinds", "dedupe", "reorder")))


def main() -> int:
    """Shows the output of the one as it comes, then that of the other; 0 if both passed."""
    with tempfile.TemporaryFile("w+") as shown:
        beside = subprocess.Popen([*COMMAND, *BESIDE], stdout=shown, stderr=subprocess.STDOUT)
        try:
            others = subprocess.run([*COMMAND, "tests", *(f"--ignore={each}" for each in BESIDE)], check=False)
            print(f"waiting for {BESIDE[0]}", flush=True)
            beside.wait()
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
        shown.seek(0)
        print(shown.read(), flush=True)
    return others.returncode or beside.returncode


if __name__ == "__main__":
    sys.exit(main())
