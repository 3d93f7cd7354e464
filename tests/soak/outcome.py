"""What became of a trial: one class each, from what it compared, what refused to go on, and what it raised."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import pytest

from floodplain.errors import FloodplainError

Bag = Mapping[Hashable, int]
"""Rows or events, each with how often it is there."""
MOST_TOLD = 3
"""Differences that are spelled out."""


class Outcome(IntEnum):
    """From harmless to worst: a trial counts as the worst of what it found."""

    OK = 0
    """All that was read equals the oracle."""
    REFUSED = 1
    """A Floodplain error that names what is wrong, where continuing would have been a fault."""
    UNCLEAR_ERROR = 2
    """An error that is not ours or does not say where, or one that nothing called for; the end of the process; no end at all."""
    DUPLICATED = 3
    """Something is there more often than it should be, and nothing is missing or strange."""
    LOST = 4
    """Something is missing, and nothing is strange."""
    SILENTLY_WRONG = 5
    """Something is there that never was in the input, or what must hold does not."""


FAILURES = (Outcome.UNCLEAR_ERROR, Outcome.DUPLICATED, Outcome.LOST, Outcome.SILENTLY_WRONG)


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    fault: str
    """What was done to the system."""
    told: str
    """How that showed."""


@dataclass
class Trial:
    """What a trial is given, and what it hands its findings to. ``faulty`` is off in a control: the same without the fault."""

    rng: random.Random
    folder: Path
    faulty: bool = True
    fault: str = ""
    findings: list[tuple[Outcome, str]] = field(default_factory=list)

    def note(self, fault: str) -> None:
        """Say what is done to the system, for whoever reads of a failure."""
        self.fault = f"{self.fault}; {fault}" if self.fault else fault

    def compare(self, what: str, expected: Bag, found: Bag) -> None:
        outcome, told = difference(expected, found)
        self.findings.append((outcome, f"{what}: {told}"))

    def require(self, holds: bool, told: str) -> None:
        """What must hold besides the rows."""
        self.findings.append((Outcome.OK if holds else Outcome.SILENTLY_WRONG, told))

    @contextmanager
    def may_refuse(self, *names: str) -> Iterator[None]:
        """Suppresses a Floodplain error within, if its message has one of these names; others propagate."""
        try:
            yield
        except FloodplainError as error:
            clear = self.faulty and any(name in str(error) for name in names)
            told = f"{type(error).__name__}: {str(error)[:500]}"
            self.findings.append((Outcome.REFUSED, told) if clear else (Outcome.UNCLEAR_ERROR, f"{told} (names none of {names})"))

    @property
    def refused(self) -> bool:
        return any(outcome is Outcome.REFUSED for outcome, _ in self.findings)


def difference(expected: Bag, found: Bag) -> tuple[Outcome, str]:
    """What two bags say of each other: the class, and some of the differences."""
    missing, extra = Counter(expected), Counter(found)
    missing.subtract(found)
    extra.subtract(expected)
    missing, extra = +missing, +extra
    told = f"missing {_some(missing)}, too many {_some(extra)}"
    if extra.keys() - expected.keys():
        return Outcome.SILENTLY_WRONG, told
    if missing:
        return Outcome.LOST, told
    return (Outcome.DUPLICATED, told) if extra else (Outcome.OK, "equal")


def _some(bag: "Counter[Hashable]") -> str:
    if not bag:
        return "none"
    shown = ", ".join(f"{str(item)[:200]} x {count}" for item, count in list(bag.items())[:MOST_TOLD])
    return shown + (f" and {len(bag) - MOST_TOLD} more" if len(bag) > MOST_TOLD else "")


def judge(run: Callable[[Trial], None], trial: Trial) -> Verdict:
    """Run a trial. What it asserts must hold; whatever else it raises nobody would understand."""
    try:
        run(trial)
    except (KeyboardInterrupt, SystemExit):
        raise
    except (AssertionError, pytest.fail.Exception) as error:
        trial.findings.append((Outcome.SILENTLY_WRONG, _raised(error)))
    except BaseException as error:
        trial.findings.append((Outcome.UNCLEAR_ERROR, _raised(error)))
    if not trial.findings:
        trial.findings.append((Outcome.UNCLEAR_ERROR, "the trial has compared nothing"))
    outcome, told = max(trial.findings, key=lambda finding: finding[0])
    return Verdict(outcome, trial.fault, told)


def _raised(error: BaseException) -> str:
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}: {str(error)[:1000]}"
