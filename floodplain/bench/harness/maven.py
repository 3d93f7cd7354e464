"""Jars from Maven's central repository, fetched once and kept outside the repository.

Ivy, which pyspark brings, resolves and fetches them.
"""

import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from floodplain.spark.java import java_home

Module = tuple[str, str, str]
"""Organisation, name, version."""

FETCH_SECONDS = 300


class Unfetchable(Exception):
    """The jars cannot be fetched, or not be used, on this machine."""


@dataclass(frozen=True, slots=True)
class Jars:
    """A folder that keeps jars; ``settings`` is an Ivy settings file, for a machine that needs a mirror."""

    folder: Path
    settings: str | None = None

    def fetched(self, name: str, modules: list[Module], *, transitive: bool) -> list[Path]:
        """The jars of these modules, kept under this name. Raises ``Unfetchable``."""
        folder = self.folder / name
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Renamed once complete: several processes may fetch at the same time.
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                for module in modules:
                    self._retrieve(module, Path(scratch) / "jars", transitive=transitive)
                try:
                    (Path(scratch) / "jars").rename(folder)
                except OSError:
                    if not folder.exists():
                        raise
        return sorted(folder.glob("*.jar"))

    def java(self) -> str:
        home = java_home(self.folder / "java")
        if home is None:
            raise Unfetchable("no Java 17 or newer")
        return str(home / "bin" / "java")

    def _retrieve(self, module: Module, folder: Path, *, transitive: bool) -> None:
        command = [
            *(self.java(), "-cp", str(_ivy()), "org.apache.ivy.Main"),
            *(("-settings", self.settings) if self.settings else ()),
            *("-cache", str(self.folder / "ivy"), "-confs", "default,runtime", "-dependency", *module),
            *(() if transitive else ("-notransitive",)),
            *("-retrieve", str(folder / "[artifact]-[revision](-[classifier]).[ext]")),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unfetchable(f"{':'.join(module)} was not fetched within {FETCH_SECONDS} s") from None
        jar = folder / f"{module[1]}-{module[2]}.jar"
        if done.returncode or not jar.exists():
            errors = [line.strip() for line in done.stdout.splitlines() if "not found" in line or "rror" in line]
            raise Unfetchable(f"{':'.join(module)} cannot be fetched: {'; '.join(errors[:3]) or done.stderr[-300:]}")


def _ivy() -> Path:
    spec = find_spec("pyspark")
    ivy = next((Path(str(spec.origin)).parent / "jars").glob("ivy-*.jar"), None) if spec else None
    if ivy is None:
        raise Unfetchable("there is no pyspark, which has the Ivy that fetches jars: pip install floodplain[spark]")
    return ivy
