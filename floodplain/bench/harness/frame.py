"""The harness of every benchmark: interleaved rounds, medians, and one form of result.

A result is ``{"bench": …, "checks": {name: bool}, "ratios": {name: number}, "figures": {…}}``. Checks tell whether answers are
right. Ratios compare contenders within one run, so they hold on other machines as well; figures are numbers of this machine.
"""

import gc
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from floodplain.clock import Clock


@dataclass(frozen=True, slots=True)
class Contestant:
    """One contender in one race. ``prepare`` runs untimed before each round. ``run`` is timed, and its results are compared."""

    name: str
    run: Callable[[int], object]
    prepare: Callable[[int], object] | None = None


@dataclass(slots=True)
class Timings:
    """The seconds of each round, by contender."""

    seconds: dict[str, list[float]]
    agreed: bool = True
    """Whether in every round, warm-up included, all contenders gave the same answer."""
    answered: bool = False
    """Whether there was any answer to compare."""

    def median_ms(self, name: str) -> float:
        return statistics.median(self.seconds[name]) * 1000

    def mean_ms(self, name: str) -> float:
        """For races where some rounds do work for others, such as compactions: the median would ignore it."""
        return statistics.fmean(self.seconds[name]) * 1000

    def medians(self) -> dict[str, float]:
        return {name: rounded(self.median_ms(name)) for name in self.seconds}

    def means(self) -> dict[str, float]:
        return {name: rounded(self.mean_ms(name)) for name in self.seconds}


@dataclass(slots=True)
class Bench:
    """A benchmark under way. Progress goes to stderr, for people; the result goes back to the caller."""

    name: str
    clock: Clock
    checks: dict[str, bool] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock.monotonic_s()

    def say(self, text: str) -> None:
        print(f"[{self.clock.monotonic_s() - self._began_s:6.1f} s] {text}", file=sys.stderr, flush=True)

    def check(self, name: str, holds: bool) -> None:
        """Records a check. One that is made more than once must hold every time."""
        self.checks[name] = self.checks.get(name, True) and holds
        if not holds:
            self.say(f"CHECK FAILED: {name}")

    def race(self, what: str, contestants: Sequence[Contestant], rounds: int, *, warm_up: int = 1) -> Timings:
        """Time the contestants round by round, each round in another order; where they answer, check that they agree."""
        timings = interleave(self.clock, contestants, rounds, warm_up=warm_up)
        if timings.answered:
            self.check(f"{what}_agrees", timings.agreed)
        self.say(f"{what}: " + ", ".join(f"{name} {ms:g} ms" for name, ms in timings.means().items()))
        return timings

    def compare(self, what: str, timings: Timings, ours: str, *, by_mean: bool = False) -> None:
        """Set the ratio ``<what>_vs_<other>`` for every other contender: how many times our time it took."""
        time_ms = timings.mean_ms if by_mean else timings.median_ms
        for other in timings.seconds:
            if other != ours:
                self.ratios[f"{what}_vs_{other}"] = rounded(time_ms(other) / time_ms(ours))

    def judge(self, targets: Mapping[str, tuple[str, float]]) -> None:
        """Record which ratios meet their targets: ``("at least" or "at most", bound)``."""
        self.figures["targets"] = {
            name: {word: bound, "met": self.ratios[name] >= bound if word == "at least" else self.ratios[name] <= bound}
            for name, (word, bound) in targets.items()
        }

    def result(self) -> dict[str, Any]:
        self.figures["took_s"] = round(self.clock.monotonic_s() - self._began_s, 1)
        return {"bench": self.name, "checks": self.checks, "ratios": self.ratios, "figures": self.figures}


def interleave(clock: Clock, contestants: Sequence[Contestant], rounds: int, *, warm_up: int = 1) -> Timings:
    """Every contestant runs once per round, another one first in each; the first ``warm_up`` rounds are not counted.

    So a slow phase of the machine affects all of them, and none always runs on the caches that the same other one left.
    """
    timings = Timings({contestant.name: [] for contestant in contestants})
    with cycle_collector_off():
        for number in range(warm_up + rounds):
            first = number % len(contestants)
            answers = []
            for contestant in [*contestants[first:], *contestants[:first]]:
                if contestant.prepare is not None:
                    contestant.prepare(number)
                seconds, answer = timed(clock, contestant.run, number)
                answers.append(answer)
                if number >= warm_up:
                    timings.seconds[contestant.name].append(seconds)
            timings.agreed &= all(answer == answers[0] for answer in answers)
            timings.answered |= any(answer is not None for answer in answers)
            gc.collect()
    return timings


@contextmanager
def cycle_collector_off() -> Iterator[None]:
    """Without this, one contender would pay for collecting the objects of another. Objects alive now are never scanned again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def timed(clock: Clock, run: Callable[[int], object], number: int = 0) -> tuple[float, object]:
    """Seconds and answer of one call."""
    began = clock.monotonic_s()
    answer = run(number)
    return clock.monotonic_s() - began, answer


def rounded(number: float) -> float:
    """Three significant digits."""
    return float(f"{number:.3g}")
