"""Mutants that no test can tell from the code: ``equivalent.toml``, a short list with the reason for each."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

LIST = Path(__file__).with_name("equivalent.toml")


class Equivalents:
    """Keyed by file and diff, so that an entry counts only as long as the line is what it was."""

    def __init__(self, reasons: Mapping[tuple[str, str], str]) -> None:
        self.reasons = reasons

    @classmethod
    def read(cls, path: Path = LIST) -> "Equivalents":
        entries = tomllib.loads(path.read_text()).get("mutant", [])
        return cls({(each["file"], each["diff"].strip()): each["why"] for each in entries})

    def why(self, file: str, diff: str) -> str | None:
        return self.reasons.get((file, diff.strip()))
