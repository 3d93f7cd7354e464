"""The measurement of how far one row travels (``docs/coupling.py``): its counting, and a run on this tree."""

import json
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def coupling(figures):
    """The module that measures; ``figures`` puts its folder on the path."""
    return import_module("coupling")


def test_calls_are_counted_by_module_folder_and_room(coupling):
    calls = [
        ("store.read.scan", "store.read.scan"),
        ("store.read.scan", "store.run.reader"),
        ("store.run.reader", "tiers.blobs"),
        ("store.run.reader", "tiers.blobs"),
        ("tiers.blobs", "errors"),
    ]
    assert coupling.travel(calls, Counter({"store.read": 9, "store.run": 3, "tiers": 5, ".": 2, "cli": 7})) == {
        "modules": 4,
        "files_in_the_folders_of_these": 19,
        "folders": 4,
        "rooms": 3,
        "calls": 5,
        "calls_between_rooms": 3,
        "calls_between_folders": 4,
        "pairs_of_rooms": 2,
    }


def test_imports_are_between_modules_of_the_package(coupling):
    texts = {
        "a.one": "import os\nfrom floodplain.b import two\nfrom floodplain.c import name",
        "b.two": "import floodplain.c\nfrom elsewhere.c import name",
        "c": "def f():\n    from floodplain.a.one import g",
    }
    assert coupling.imports(texts) == {("a.one", "b.two"), ("a.one", "c"), ("b.two", "c"), ("c", "a.one")}


def test_a_run_traces_both_pipelines_from_the_kit_to_the_store():
    ran = subprocess.run([sys.executable, ROOT / "docs" / "coupling.py"], capture_output=True, text=True, check=True, cwd=ROOT)
    measured = json.loads(ran.stdout.splitlines()[-1])
    assert all(f"| {folder} | {count} |" in ran.stdout for folder, count in measured["files"].items())
    assert sum(measured["files"].values()) == measured["modules"]
    assert len(measured["most_coupled"]) == 10 and "errors" in measured["most_coupled"]
    for row in measured["row"].values():
        assert row["modules"] <= row["files_in_the_folders_of_these"] <= measured["modules"]
        assert row["rooms"] >= 8, "from the test kit through runtime, operators, state and store to the tiers"
        assert 0 < row["calls_between_rooms"] <= row["calls_between_folders"] < row["calls"]
