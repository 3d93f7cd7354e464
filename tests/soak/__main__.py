"""The soak: every kind of fault, as many trials as fit into the time, and a table of what became of them.

The last line is JSON: ``soak`` says how it was run, ``faults`` has a row for each fault. Ends with 1 if anything was lost,
duplicated, silently wrong or unclear, if a control failed, or if there was no time to try each fault once.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tests.soak.campaign import Campaign
from tests.soak.campaigns import ALL, CAMPAIGNS
from tests.soak.outcome import FAILURES, Outcome, Verdict
from tests.soak.schedule import Row, next_step
from tests.soak.worker import ROOT, Worker

SAY_EVERY_S = 5.0
SEED = 1


class Soak:
    """Runs trials until the time is over. What it finds goes into ``rows``, and as text to ``out``."""

    def __init__(
        self,
        campaigns: list[Campaign],
        minutes: float,
        seed: int,
        worker: Worker,
        out: TextIO,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows = {campaign.name: Row(campaign.name, campaign.weight, campaign.control_every) for campaign in campaigns}
        self._limit_s, self._seed, self._worker, self._out = minutes * 60, seed, worker, out
        self._clock_s = clock_s
        self._began_s = self._said_s = clock_s()

    @property
    def good(self) -> bool:
        return all(row.good for row in self.rows.values())

    @property
    def passed_s(self) -> float:
        return self._clock_s() - self._began_s

    def run(self) -> None:
        while (step := next_step(self.rows.values(), self._limit_s - self.passed_s)) is not None:
            row, control = step
            number = row.controls * row.control_every if control else row.tried
            self.trial(row, number, control=control)
            self._progress(row, first=number == 0)

    def trial(self, row: Row, number: int, *, control: bool = False) -> Verdict:
        began_s = self._clock_s()
        verdict = self._worker.ask(row.fault, number, self._seed, CAMPAIGNS[row.fault].limit_s, control=control)
        row.add(verdict.outcome, self._clock_s() - began_s, control=control)
        if verdict.outcome in FAILURES or (control and verdict.outcome is not Outcome.OK):
            self._failed(row, number, verdict, control=control)
        return verdict

    def _failed(self, row: Row, number: int, verdict: Verdict, *, control: bool) -> None:
        replay = f"python -m tests.soak --only {row.fault} --seed {self._seed} --trial {number}{' --control' if control else ''}"
        what = "the control of " if control else ""
        self.say(f"FAILED {what}{row.fault}: {verdict.outcome.name.lower()}: {verdict.told}")
        self.say(f"  fault: {verdict.fault or 'none'}")
        self.say(f"  again: {replay}")

    def _progress(self, row: Row, *, first: bool) -> None:
        now_s = self._clock_s()
        if first or now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            total = sum(each.tried for each in self.rows.values())
            bad = sum(each.outcomes[outcome] for each in self.rows.values() for outcome in FAILURES)
            clock = f"[{self.passed_s:5.0f} s of {self._limit_s:.0f} s]"
            self.say(f"{clock} {row.fault}: {row.tried} trials; all: {total} trials, {bad} bad")

    def say(self, line: str) -> None:
        print(line, file=self._out, flush=True)

    def told(self, minutes: float) -> dict[str, Any]:
        about = {"minutes": minutes, "seed": self._seed, "commit": _commit(), "seconds": round(self.passed_s)}
        return {"soak": about, "faults": [row.told() for row in self.rows.values()]}


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def _table(soak: Soak) -> None:
    head = ["tried", *(outcome.name.lower() for outcome in reversed(Outcome)), "controls"]
    soak.say(f"{'fault':26}" + "".join(f"{name:>15}" for name in head))
    for row in soak.rows.values():
        told = row.told()
        soak.say(f"{row.fault:26}" + "".join(f"{told[name]:>15}" for name in head))
        if not row.tried:
            soak.say(f"FAILED {row.fault}: no time for a trial; give more minutes")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    faults = "\n".join(f"  {campaign.name:26}{campaign.about}" for campaign in ALL)
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        epilog=f"parts:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60, help="time for all parts together (default: 60)")
    parser.add_argument("--only", metavar="PART", action="append", choices=CAMPAIGNS, help="only this part; may be repeated")
    parser.add_argument("--seed", type=int, default=SEED, help=f"what all choices follow from (default: {SEED})")
    parser.add_argument("--trial", type=int, help="only this trial of one part, as a failure names it")
    parser.add_argument("--control", action="store_true", help="with --trial: the same without the fault")
    parser.add_argument("--json", action="store_true", help="nothing but the last line to standard output")
    chosen = parser.parse_args(arguments)
    if chosen.trial is not None and len(chosen.only or ()) != 1:
        parser.error("--trial needs one --only PART")
    return chosen


def _end(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    chosen = _options(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="soak-"))
    worker = Worker(scratch)
    campaigns = [
        campaign
        for campaign in ALL
        if campaign.name in (chosen.only or ()) or (not chosen.only and campaign.least_minutes <= chosen.minutes)
    ]
    soak = Soak(campaigns, chosen.minutes, chosen.seed, worker, sys.stderr if chosen.json else sys.stdout)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        if chosen.trial is not None:
            verdict = soak.trial(soak.rows[chosen.only[0]], chosen.trial, control=chosen.control)
            soak.say(f"{verdict.outcome.name.lower()}: {verdict.told}\n  fault: {verdict.fault or 'none'}")
        else:
            soak.run()
            _table(soak)
    except KeyboardInterrupt:
        soak.say("interrupted")
        return 1
    finally:
        worker.close()
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(scratch, ignore_errors=True)
        print(json.dumps(soak.told(chosen.minutes)), flush=True)
    bad = any(row.controls_wrong or any(row.outcomes[outcome] for outcome in FAILURES) for row in soak.rows.values())
    return int(bad if chosen.trial is not None else not soak.good)


if __name__ == "__main__":
    sys.exit(main())
