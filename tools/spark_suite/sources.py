"""Spark's own test files: where to take them from, and a temporary folder from which ``pyspark.sql.tests`` can be imported."""

import io
import shutil
import subprocess
import tarfile
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "pyspark.sql.tests"
_PARTS = ("__init__.py", "pandas")
_IN_SOURCES = Path("python/pyspark/sql/tests")
_HOW = (
    "The package of PySpark on PyPI has no test files. Give a folder with Spark's sources (of the tag v{version}) or a git "
    "repository of them: make spark-suite SPARK_SOURCE=<folder or repository> [SPARK_REF=<tag or branch>]"
)
# Workers import processors of the helper modules by name, so every Python that has this folder on its path must find them.
_SITE = """import sys
from importlib.machinery import PathFinder


class SparkTests:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{folder!r}]) if name == {package!r} else None


sys.meta_path.insert(0, SparkTests)
"""


class NoTestFiles(Exception):
    """There is no place to take Spark's test files from. The message says how to give one."""


def provide_tests(home: Path, source: str, ref: str, version: str) -> Path:
    """Copies the test files to ``home``. Returns the folder to put on ``PYTHONPATH``."""
    tests = home / "spark" / "tests"
    tests.mkdir(parents=True)
    installed = find_spec("pyspark.sql")
    assert installed is not None and installed.origin is not None
    own = Path(installed.origin).with_name("tests")
    if own.is_dir():
        _copy(own, tests)
    elif not source:
        raise NoTestFiles(_HOW.format(version=version))
    elif (Path(source) / _IN_SOURCES).is_dir():
        _copy(Path(source) / _IN_SOURCES, tests)
    else:
        _extract(Path(source), ref, version, tests)
    path = home / "path"
    path.mkdir()
    (path / "sitecustomize.py").write_text(_SITE.format(folder=str(tests.parent), package=PACKAGE))
    return path


def _copy(source: Path, tests: Path) -> None:
    for part in _PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, tests / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / part, tests / part)


def _extract(repository: Path, ref: str, version: str, tests: Path) -> None:
    refs = [ref] if ref else [f"v{version}", f"branch-{version.rpartition('.')[0]}"]
    for name in refs:
        packed = _git(repository, "archive", "--format=tar", name, *(str(_IN_SOURCES / part) for part in _PARTS))
        if packed.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                archive.extractall(tests.parent / "archive", filter="data")
            _copy(tests.parent / "archive" / _IN_SOURCES, tests)
            return
    reason = packed.stderr.decode(errors="replace").strip()
    raise NoTestFiles(
        f"{repository} has no folder {_IN_SOURCES} and is no git repository with it at {' or '.join(refs)} ({reason}). "
        + _HOW.format(version=version)
    )


def _git(repository: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
