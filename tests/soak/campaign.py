"""A fault, as a source of trials that a seed repeats."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak.outcome import Trial, Verdict, judge
from tests.store import forge
from tests.store import world as store_world
from tests.versions import world as versions_world


@dataclass(frozen=True)
class Campaign:
    """``run`` does one trial: it draws what to do from ``trial.rng``, does it if ``trial.faulty``, and compares."""

    name: str
    about: str
    """What is done, and what must follow; shown in the docs."""
    run: Callable[[Trial], None]
    weight: float = 1.0
    """Its share of the time that is left once each had a trial."""
    control_every: int = 10
    """So many trials have one control between them."""
    limit_s: float = 60.0
    """A trial that takes longer hangs."""
    least_minutes: float = 0.0
    """A soak that is shorter goes without it, unless it is asked for by name."""


def tried(campaign: Campaign, seed: int, number: int, folder: Path, *, control: bool = False) -> Verdict:
    """The trial of this number under this seed: the same whatever ran before it in this process."""
    for module in (forge, store_world, versions_world):
        module._seeds = itertools.count(1)
    rng = random.Random(f"{seed}/{campaign.name}/{number}")
    folder.mkdir(parents=True)
    return judge(campaign.run, Trial(rng, folder, faulty=not control))
