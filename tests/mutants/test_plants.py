"""The planted bugs still fit the code that they are for. Whether tests find them: ``make mutants``."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalog import AREAS, chosen
from tests.mutants.plant import FILES, TESTS, Plant, Stale
from tests.mutants.scratch import ROOT

ALL = [plant for _, plant in chosen(None)]


def test_there_are_enough_of_each_kind():
    assert len(ALL) >= 50
    assert {area for area, plants in AREAS.items() if len(plants) < 6} == set()
    assert len({plant.name for plant in ALL}) == len(ALL)
    assert not {plant.name for plant in ALL} & AREAS.keys()


@pytest.mark.parametrize("plant", ALL, ids=lambda plant: plant.name)
def test_each_fits_in_one_place_and_is_a_program(plant: Plant):
    text = (ROOT / plant.path).read_text()
    assert ast.dump(ast.parse(plant.planted(text))) != ast.dump(ast.parse(text))


def defined_in(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return found


def test_the_tests_that_must_find_them_exist():
    known = {name: defined_in(ROOT / path) for name, path in TESTS.items()}
    for plant in ALL:
        for file, _, test in (test.partition("::") for test in plant.tests):
            assert test.partition("[")[0] in known[file], (plant.name, test)
    assert {plant.file for plant in ALL} == FILES.keys()
    assert {test.partition("::")[0] for plant in ALL for test in plant.tests} == TESTS.keys()


def test_one_whose_text_is_gone_or_there_twice_is_stale():
    plant = Plant("name", "lease", "a < b", "a <= b", ())
    assert plant.planted("if a < b: pass") == "if a <= b: pass"
    for text, times in (("if a > b: pass", 0), ("a < b or a < b", 2)):
        with pytest.raises(Stale, match=f"has its text {times} times, not once"):
            plant.planted(text)


def test_no_two_are_the_same_patch():
    assert Counter((plant.path, plant.old, plant.new) for plant in ALL).most_common(1)[0][1] == 1
