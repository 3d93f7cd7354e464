"""A pytest plugin for the runs of one mutant: the quickest tests first, none that hangs, no shrinking.

mutmut names the tests that reach the mutated function. Most mutants fail one of the quick ones, so these go first. What would
take the mutant beyond its time is skipped: the mutant may then survive although a slow test kills it, never the other way.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import Phase, settings

TIMES = Path("mutmut-stats.json")
"""Where mutmut keeps how long each test took, seen from the folder it runs the tests in."""
BUDGET = "RANDOM_MUTANTS_SECONDS"
PATIENCE_SECONDS = 20
PATIENCE_FACTOR = 10


def chosen(names: list[str], seconds: Mapping[str, float], budget: float) -> list[str]:
    """The names of tests from quick to slow, as many as fit into the budget, at least one."""
    ordered = sorted(names, key=lambda name: (seconds.get(name, 0.0), name))
    total, kept = 0.0, []
    for name in ordered:
        total += seconds.get(name, 0.0)
        if kept and total > budget:
            break
        kept.append(name)
    return kept


_named = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    # A failing example is enough, the smallest one is not needed.
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None, deadline=None)
    settings.load_profile("mutants")
    # Hundreds of names are found one by one, and some hold characters that a command line cannot tell: files are collected.
    config.stash[_named] = {name for name in config.args if "::" in name}
    config.args[:] = sorted({name.partition("::")[0] for name in config.args})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = config.stash[_named]
    tested = os.environ.get("MUTANT_UNDER_TEST", "")
    known = {item.nodeid: item for item in items if not named or item.nodeid in named}
    seconds, kept = {}, list(known)
    if not tested or "__mutmut_" in tested:  # else all tests run, once, to see which functions they reach
        seconds = json.loads(TIMES.read_text())["duration_by_test"]
        kept = chosen(kept, seconds, float(os.environ[BUDGET]))
    left = {id(item) for item in items} - {id(known[name]) for name in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
    items[:] = [known[name] for name in kept]
    for item in items:
        item.add_marker(pytest.mark.timeout(PATIENCE_SECONDS + PATIENCE_FACTOR * seconds.get(item.nodeid, PATIENCE_SECONDS)))
