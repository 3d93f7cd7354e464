"""The wheel: built, installed outside the checkout, and README's first example run with it."""

import os
import re
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest

from floodplain.spark.java import java_home
from tests.test_examples import README, python_blocks

ROOT = Path(__file__).parents[1]
UNREACHABLE = re.compile(r"No matching distribution found|Could not find a version|connection|timed out", re.IGNORECASE)


def _run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK", "VIRTUAL_ENV"))}
    return subprocess.run(list(map(str, command)), cwd=cwd, env={**clean, **environment}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Skips, loudly, where what builds it cannot be had."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    done = _run(*pip, "--wheel-dir", folder, ROOT, cwd=folder)
    if done.returncode and UNREACHABLE.search(done.stderr):
        reason = "no wheel: its build back end, hatchling, cannot be fetched"
        warnings.warn(reason, stacklevel=2)
        pytest.skip(reason)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("floodplain-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """A Python that has the wheel, and the dependencies that are installed here, but not the checkout."""
    home = tmp_path_factory.mktemp("environment")
    assert _run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home).returncode == 0
    python = home / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    # A path in a .pth file is appended, and .pth files below it are not read: the editable checkout stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet", "--no-deps"]
    done = _run(*pip, "--no-index", "--force-reinstall", wheel, cwd=home)
    assert done.returncode == 0, done.stderr
    return python


def test_the_wheel_has_the_package_alone(wheel, python, tmp_path):
    listed = _run(python, "-m", "zipfile", "--list", wheel, cwd=tmp_path).stdout
    tops = {line.split()[0].partition("/")[0] for line in listed.splitlines()[1:]}
    assert {top.partition("-")[0] for top in tops} == {"floodplain"}
    assert "floodplain/py.typed" in listed


def test_the_command_says_the_version_of_the_wheel(wheel, python, tmp_path):
    shown = _run(python.with_name("floodplain"), "--version", cwd=tmp_path)
    assert shown.stdout.split() == ["floodplain", wheel.name.split("-")[1]], shown.stderr


def test_the_first_example_of_the_readme_runs_outside_the_checkout(python, tmp_path):
    java = java_home(tmp_path / "java")
    if java is None:
        reason = "README's example is not run: no Java 17 or newer"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    where = "\nimport pathlib\nassert pathlib.Path(fp.__file__).is_relative_to(sys.prefix), fp.__file__\n"
    (tmp_path / "shown.py").write_text("import sys\n" + python_blocks(README.read_text())[0] + where)
    shown = _run(python, "shown.py", cwd=tmp_path, JAVA_HOME=str(java))
    assert shown.returncode == 0, shown.stderr
    assert "views: " in shown.stdout
