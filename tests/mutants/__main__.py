"""Plant bugs in a copy of the package, one after the other, and see that the tests find each: ``python -m tests.mutants``."""

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.catalog import AREAS, chosen
from tests.mutants.plant import Plant, Stale
from tests.mutants.scratch import Broken, Scratch


@dataclass
class Score:
    """What came of the plants so far."""

    planted: int
    caught: int = 0
    tried: int = 0
    missed: list[str] = field(default_factory=list)
    """No test found them, or one that must did not."""
    stale: list[str] = field(default_factory=list)
    """There is no such text in their file any more."""
    broken: dict[str, str] = field(default_factory=dict)
    """They do not pass the checks, or their tests cannot be run, or fail without them."""

    def line(self, seconds: float) -> str:
        return json.dumps({**vars(self), "seconds": round(seconds)})


def judge(scratch: Scratch, plant: Plant, score: Score, *, checks: bool) -> str:
    """Plant it and run its tests; returns what came of it, in a word or two."""
    score.tried += 1
    try:
        with scratch.planted(plant):
            if checks:
                scratch.check(plant)
            passed = [node_id for node_id in plant.node_ids if not scratch.is_found(node_id)]
    except Stale as stale:
        score.stale.append(plant.name)
        return f"STALE: {stale}"
    except Broken as broken:
        score.broken[plant.name] = str(broken)
        return f"BROKEN: {broken}"
    if passed:
        score.missed.append(plant.name)
        return f"MISSED: passed {', '.join(passed)}"
    score.caught += 1
    return "caught"


def control(scratch: Scratch, plants: list[Plant], score: Score) -> list[Plant]:
    """The plants whose tests pass as things are: a test that fails without any bug has found nothing."""
    try:
        failing = scratch.failing(sorted({node_id for plant in plants for node_id in plant.node_ids}))
    except Broken as broken:
        score.broken = {plant.name: str(broken) for plant in plants}
        return []
    for plant in plants:
        if wrong := failing.intersection(plant.node_ids):
            score.broken[plant.name] = f"without any bug fails {', '.join(sorted(wrong))}"
    return [plant for plant in plants if plant.name not in score.broken]


def run(options: argparse.Namespace) -> int:
    started_s = time.monotonic()
    areas = {plant.name: area for area, plant in chosen(options.only)}
    plants = [plant for _, plant in chosen(options.only)]
    if not plants:
        sys.exit(f"there is no area and no plant {options.only!r}: see --list")
    score = Score(len(plants))
    tell = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    with tempfile.TemporaryDirectory(prefix="floodplain-mutants-") as folder, closing(Scratch(Path(folder))) as scratch:
        tell(f"{len(plants)} plants; first their tests as things are")
        sound = control(scratch, plants, score)
        for name, why in score.broken.items():
            tell(f"    {areas[name]:10} {name:60}          BROKEN: {why}")
        for number, plant in enumerate(sound, 1):
            if options.minutes and time.monotonic() - started_s > options.minutes * 60:
                tell(f"{options.minutes} minutes are over")
                break
            begun_s = time.monotonic()
            told = judge(scratch, plant, score, checks=options.checks)
            tell(f"{number:3} {areas[plant.name]:10} {plant.name:60} {time.monotonic() - begun_s:5.1f} s  {told}")
    print(score.line(time.monotonic() - started_s), flush=True)
    return 0 if score.caught == score.tried and not score.broken else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="AREA|NAME", help=f"plants of one area ({', '.join(AREAS)}), or the one of this name")
    parser.add_argument("--minutes", type=float, default=0, help="begin no further plant after this long; 0: no limit")
    parser.add_argument("--no-checks", dest="checks", action="store_false", help="leave out ruff and mypy")
    parser.add_argument("--list", action="store_true", help="name all plants and their tests, and do nothing")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if not options.list:
        return run(options)
    for area, plant in chosen(options.only):
        print(f"{area:10} {plant.name:45} {plant.path}  {' '.join(plant.tests)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
