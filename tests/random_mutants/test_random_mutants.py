"""The drawing, the choice of tests, the figures, and that the list of equivalent mutants is of the code as it is."""

import pytest

from tests.random_mutants.__main__ import MUTATED, ROOT, drawn
from tests.random_mutants.equivalents import Equivalents
from tests.random_mutants.outcome import outcome, summary
from tests.random_mutants.plugin import chosen

NAMES = [f"floodplain.store.{module}.x_{name}__mutmut_{n}" for module in "abc" for name in "fgh" for n in range(1, 9)]


def test_a_sample_is_that_of_its_seed() -> None:
    assert drawn(NAMES, 20, 1) == drawn(NAMES[::-1], 20, 1) != drawn(NAMES, 20, 2)
    assert len(set(drawn(NAMES, 20, 1))) == 20
    assert drawn(NAMES, 500, 1) == sorted(NAMES)


@pytest.mark.parametrize("changed", range(0, len(NAMES), 5))
def test_a_change_elsewhere_leaves_the_sample_as_it_is(changed: int) -> None:
    """Of one mutant that goes, at most one other takes the place."""
    before, after = drawn(NAMES, 20, 1), drawn(NAMES[:changed] + NAMES[changed + 1 :], 20, 1)
    assert set(before) - set(after) <= {NAMES[changed]}
    assert len(set(after) - set(before)) <= 1


def test_the_quickest_tests_that_fit_are_chosen() -> None:
    seconds = {"a": 5.0, "b": 0.1, "c": 2.0}
    assert chosen(["a", "b", "c", "new"], seconds, 100) == ["new", "b", "c", "a"]
    assert chosen(["a", "b", "c"], seconds, 3) == ["b", "c"]
    assert chosen(["a"], seconds, 3) == ["a"], "one always"
    assert chosen([], seconds, 3) == []


def test_figures() -> None:
    codes = {"a": 1, "b": 0, "c": 33, "d": -24, "e": None, "f": 255, "g": 0}
    mutants = [{"file": "f.py", "line": n, "diff": f"- {n}\n+ 0", "code": code} for n, code in enumerate(codes.values())]
    told = summary(mutants, Equivalents({("f.py", "- 6\n+ 0"): "because"}))
    survivors = told.pop("survivors")
    counts = {"mutants": 7, "killed": 1, "survived": 4, "timeout": 1, "unchecked": 1, "equivalent": 1}
    assert told == {**counts, "score": round(2 / 7, 4)}
    assert [(each["line"], each["outcome"], each["equivalent"]) for each in survivors] == [
        *((1, "survived", None), (2, "survived", None), (5, "unclear", None)),
        (6, "survived", "because"),
    ]


def test_what_could_not_be_run_is_not_called_killed() -> None:
    """pytest's codes for an internal error and for wrong usage, and whatever else there may be."""
    assert {outcome(code) for code in (3, 4, 255, -9, 17)} == {"unclear"}


def test_each_equivalent_mutant_is_of_a_line_that_is_there() -> None:
    for (file, diff), why in Equivalents.read().reasons.items():
        assert any((ROOT / file).match(pattern) for pattern in MUTATED), file
        removed = [line[1:].strip() for line in diff.splitlines() if line.startswith("-")]
        there = {line.strip() for line in (ROOT / file).read_text().splitlines()}
        assert removed, diff
        assert set(removed) <= there, f"{file} has changed: look whether this mutant is still one that no test can notice: {diff}"
        assert why.strip()
