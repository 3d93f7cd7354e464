"""The page on reliability: its table is that of the newest soak, and every fault of the soak is on it."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from tests.soak.campaigns import ALL
from tests.test_docs import PLACE

ROOT = Path(__file__).parents[1]


@pytest.fixture
def reliability(figures):
    """The module that makes the table; it imports from ``figures``."""
    return import_module("reliability")


def test_the_table_is_that_of_the_result(reliability):
    page = reliability.PAGE.read_text()
    assert reliability.renewed(page, reliability.result()) == page, "run `make docs`"


def test_the_result_is_a_line_of_a_whole_soak_and_names_no_machine(reliability):
    text = reliability.RESULT.read_text()
    assert text.endswith("}\n") and text.count("\n") == 1 and not PLACE.findall(text)
    told = json.loads(text)
    assert told["soak"]["minutes"] >= 5 and told["soak"]["commit"]
    wanted = [campaign.name for campaign in ALL if campaign.least_minutes <= told["soak"]["minutes"]]
    assert [row["fault"] for row in told["faults"]] == wanted and all(row["tried"] for row in told["faults"])


def test_every_fault_is_on_the_page(reliability):
    page = reliability.PAGE.read_text()
    listed = page.partition("## The faults")[2].partition("##")[0]
    assert [line for line in listed.splitlines() if line.startswith("| `")] == [f"| `{one.name}` | {one.about} |" for one in ALL]


def row(**changes):
    counts = dict.fromkeys(("silently_wrong", "lost", "duplicated", "unclear_error", "refused", "controls_wrong"), 0)
    return {"fault": "x", "tried": 12_000, **counts, "ok": 12_000, "controls": 1200, **changes}


def test_what_failed_stands_out(reliability):
    about = {"minutes": 5, "seed": 3, "commit": "abc", "seconds": 300}
    made = reliability.figures({"soak": about, "faults": [row()]})
    assert "`make soak SOAK_MINUTES=5`, seed 3, commit `abc`, 300 s: 12,000 trials. Nothing lost" in made
    assert "| `x` | 12,000 | 0 | 0 | 0 | 0 | 0 | 12,000 | 1,200 |" in made
    for bad in ("silently_wrong", "lost", "duplicated", "unclear_error"):
        made = reliability.figures({"soak": about, "faults": [row(), row(fault="y", **{bad: 2})]})
        assert "**Failed: `y`.**" in made and "**2**" in made
    made = reliability.figures({"soak": about, "faults": [row(controls_wrong=3), row(fault="y", tried=0)]})
    assert "**Failed: `x`, `y`.**" in made and "1,200, **3 wrong**" in made


def test_a_page_without_a_place_for_the_table_is_refused(reliability):
    with pytest.raises(ValueError, match="no place for the table"):
        reliability.renewed("# Nothing\n", reliability.result())
