"""An archive of the classes that Spark loads: with it a Java starts in half the time, and the tests start dozens of them.

``python -m tests.java_archive`` makes it, if there is none for this Java and this pyspark. ``tests.run`` calls it.
"""

import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from floodplain.spark.java import java_home

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".test-tools"
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No Java of the tests lives long enough for its optimising compiler to pay, which would take a core."""
SECONDS = 180


def java_options() -> str:
    """For ``JAVA_TOOL_OPTIONS``. A Java that the archive does not suit ignores it; it would log that to its standard output."""
    archive = _archive()
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else SHORT_LIVED


def make() -> None:
    """Make the archive, unless it is there. Without one the tests run as well, only longer."""
    with tempfile.TemporaryDirectory() as scratch:
        home, archive = java_home(Path(scratch) / "java"), _archive()
        if home is None or archive.exists():
            return
        FOLDER.mkdir(exist_ok=True)
        part = archive.with_suffix(f".{os.getpid()}")
        options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
        environment = {**os.environ, "JAVA_HOME": str(home), "JAVA_TOOL_OPTIONS": options, "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-m", "tests.java_archive_classes", scratch]
        try:
            subprocess.run(command, env=environment, cwd=ROOT, timeout=SECONDS, check=True, capture_output=True)
            part.replace(archive)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"no archive of Spark's classes, so each Spark of the tests starts more slowly: {error}", file=sys.stderr)
        finally:
            part.unlink(missing_ok=True)


def _archive() -> Path:
    """Of this pyspark and this environment: the archive names jars by their paths."""
    key = sha256(f"{version('pyspark')} {sys.prefix} {os.environ.get('JAVA_HOME', '')}".encode()).hexdigest()[:12]
    return FOLDER / f"spark-classes-{key}.jsa"


if __name__ == "__main__":
    make()
