"""A worker with campaigns that end badly, to see that the soak notices: ``python -m tests.soak.planted SCRATCH``."""

import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

from tests.soak.campaign import Campaign
from tests.soak.campaigns import CAMPAIGNS
from tests.soak.outcome import Trial
from tests.soak.worker import main


def lose(trial: Trial) -> None:
    """Some trials lose a row, and the seed says which."""
    number = trial.rng.randrange(1000)
    trial.note(f"row {number}")
    found = [number] if trial.faulty and number % 3 == 0 else [number, number + 1]
    trial.compare("rows", Counter([number, number + 1]), Counter(found))


def die(trial: Trial) -> None:
    """As a mapped file does that lost its end."""
    os.kill(os.getpid(), signal.SIGBUS)


def hang(trial: Trial) -> None:
    threading.Event().wait()


PLANTED = {
    "planted_loss": Campaign("planted_loss", "loses a row", lose),
    "planted_death": Campaign("planted_death", "ends the process", die),
    "planted_hang": Campaign("planted_hang", "never ends", hang, limit_s=1),
}


if __name__ == "__main__":
    CAMPAIGNS.update(PLANTED)
    main(Path(sys.argv[1]))
