"""A virtual environment for each peer, built when it is first needed and kept in a cache outside the repository.

``FLOODPLAIN_PEERS`` names the folder that keeps them (default: a folder in the user's cache).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BUILD_SECONDS = 1200
READY = "ready"
"""The file that marks an environment as complete."""


class Unavailable(Exception):
    """A peer cannot be installed or run here; the message has the reason in one line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The packages of a peer, pinned."""

    package: str
    version: str
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.package}-{self.version}"

    @property
    def requirements(self) -> tuple[str, ...]:
        return (f"{self.package}=={self.version}", *self.also)


def cache_folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floodplain" / "peers"
    return Path(os.environ.get("FLOODPLAIN_PEERS") or default)


def provide(environment: Environment, say: Callable[[str], None], cache: Path | None = None) -> Path:
    """The Python of an environment, built if it is absent or incomplete. Raises ``Unavailable`` if it cannot be built."""
    folder = (cache or cache_folder()) / environment.name
    python = folder / "bin" / "python"
    if (folder / READY).exists():
        return python
    say(f"{environment.name}: building its environment in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *environment.requirements],
    ):
        run(command, BUILD_SECONDS)
    (folder / READY).write_text("\n".join(environment.requirements))
    say(f"{environment.name}: ready")
    return python


def run(command: Sequence[str], seconds: float, *, own: bool = False) -> str:
    """The standard output of a command. Raises ``Unavailable`` if it fails or times out, with the last line of its errors.

    ``own``: the command is Floodplain's and inherits this process's Python path. Others must not import any of its modules.
    """
    variables = {name: value for name, value in os.environ.items() if own or not name.startswith("PYTHON")}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except BaseException as error:
            # Kills its children, too: a JVM or a second worker would go on and disturb the next contender.
            os.killpg(process.pid, 9)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Unavailable(f"did not end within {seconds:g} s") from None
            raise
    if process.returncode:
        raise Unavailable(_last_line(errors) or f"ended with code {process.returncode}")
    return out


def _last_line(text: str) -> str:
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "... ", "[notice]"))
    ]
    return lines[-1][:300] if lines else ""
