"""A copy of the package and its tests, to plant bugs in and run the tests that must find them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path

from tests.mutants.plant import Plant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("floodplain", "tests", "docs", "examples", "pyproject.toml", "Makefile", "README.md")
TEST_SECONDS = 300
"""For one test. A test that takes longer has not found a bug: it hangs, and that is told."""
_FAILED, _PASSED = 1, 0
_IDLE_SECONDS = 900
"""After which the server of mypy, which looks at nothing but what a plant changes, ends if nobody has ended it."""


class Broken(Exception):
    """What keeps a plant from being judged: it does not pass the checks, or its tests cannot be run."""


class Scratch:
    """One copy, used for one plant after the other."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis"))
            else:
                shutil.copy2(source, folder / name)

    def close(self) -> None:
        if (self.root / ".dmypy.json").exists():
            self._run(("mypy.dmypy", "stop"))

    @contextmanager
    def planted(self, plant: Plant) -> Iterator[None]:
        """Its file has the bug. What Python has compiled of it goes: a patch within a second, of the same size, is not seen."""
        path = self.root / plant.path
        text = path.read_text()
        changed = plant.planted(text)
        Path(cache_from_source(os.fspath(path))).unlink(missing_ok=True)
        path.write_text(changed)
        try:
            yield
        finally:
            path.write_text(text)

    def check(self, plant: Plant) -> None:
        """Raises ``Broken`` if the bug would not get through the checks that every change goes through."""
        for command in (
            ("ruff", "check", "--no-cache", plant.path),
            ("ruff", "format", "--check", "--no-cache", plant.path),
            ("mypy.dmypy", "run", "--timeout", str(_IDLE_SECONDS), "--", "--no-error-summary"),
        ):
            done = self._run(command)
            if done.returncode:
                raise Broken(f"{' '.join(command[:2])}: {' '.join(done.stdout.split())[:500]}")

    def is_found(self, node_id: str) -> bool:
        """Whether this test fails. Raises ``Broken`` if it hangs, or cannot be run."""
        done = self._pytest([node_id, "-x"], write_bytecode=False)
        if "Failed: Timeout" in done.stdout or "Timeout (" in done.stdout + done.stderr:
            raise Broken(f"{node_id} does not end within {TEST_SECONDS} s")
        if done.returncode not in (_FAILED, _PASSED):
            raise Broken(f"{node_id} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.returncode == _FAILED

    def failing(self, node_ids: Sequence[str]) -> set[str]:
        """Those of the tests that fail as things are. Raises ``Broken`` if they cannot be run."""
        done = self._pytest([*node_ids, "-rfE"], write_bytecode=True)
        if done.returncode not in (_FAILED, _PASSED):
            raise Broken(f"the tests ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        failed = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return {node_id for node_id in node_ids if any(line.startswith(node_id) for line in failed)}

    def _pytest(self, arguments: Sequence[str], *, write_bytecode: bool) -> subprocess.CompletedProcess[str]:
        options = ("--tb=short", f"--timeout={TEST_SECONDS}", "--hypothesis-seed=1")
        return self._run(("pytest", *options, *arguments), write_bytecode=write_bytecode)

    def _run(self, command: Sequence[str], *, write_bytecode: bool = False) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.fspath(self.root)}
        if not write_bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
