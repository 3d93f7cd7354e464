"""What every error that a test makes us raise has to say, whatever it is about."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from floodplain.errors import FloodplainError
from floodplain.versions.records.manifest import BrokenHistory

_NOTHING = re.compile(r"(?<!`)\bNone\b(?!`)")
"""Told of a thing that was not there. In backquotes it is a word of msgspec about what was decoded."""
_GIVEN = ("name None is not allowed", "and cannot have None", "window_bytes is None")
"""Where the caller gave it."""


def faults_of(error: Exception) -> list[str]:
    """Why the message names less than it means to: something that is no text, or a name or value that was not there."""
    told = error.args
    if not told or not told[0] or not all(isinstance(part, str) for part in told):
        return [f"{type(error).__name__} says {told!r}"]
    names_nothing = [part for part in told if _NOTHING.search(part) and not any(given in part for given in _GIVEN)]
    return [f"{type(error).__name__} says {part!r}" for part in names_nothing]


@contextmanager
def watched() -> Iterator[list[str]]:
    """The faults of all Floodplain errors that are raised within, also of those that are caught."""
    faults: list[str] = []

    def init(self: Exception, *args: Any) -> None:
        Exception.__init__(self, *args)
        faults.extend(faults_of(self))

    with pytest.MonkeyPatch.context() as patch:
        for kind in (FloodplainError, BrokenHistory):
            patch.setattr(kind, "__init__", init)
        yield faults


@pytest.fixture(autouse=True)
def messages() -> Iterator[None]:
    with watched() as faults:
        yield
    assert not faults, faults
