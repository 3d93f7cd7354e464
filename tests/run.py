"""All tests but the soak, in several processes: ``python -m tests.run [arguments of pytest]``.

More processes than cores: those on Spark wait most of the time. ``tests/groups.py`` says which tests stay together.
"""

import subprocess
import sys

from tests import java_archive

PROCESSES = 4
COMMAND = [sys.executable, "-m", "pytest", "-m", "not soak", "-n", str(PROCESSES), "--dist", "loadgroup"]


def main() -> int:
    java_archive.make()
    return subprocess.run([*COMMAND, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
