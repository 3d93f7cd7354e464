"""The figures of docs/benchmarks.md: tables and plots are those of the result files, and nothing in them names a machine."""

import hashlib
import json
import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"
RESULTS = sorted((DOCS / "results").glob("*.json"))
PLACE = re.compile(r"(?<![\w.])[/~]\w+/|[A-Z]:\\|://|localhost|\d+\.\d+\.\d+\.\d+")
"""An absolute path, a URL or an address."""


def test_the_tables_are_those_of_the_results(figures):
    found = figures.results()
    assert found and figures.renewed(PAGE.read_text(), found) == PAGE.read_text(), "run `make docs`"


def test_the_ratios_of_the_front_page_are_those_of_the_results(figures):
    page, found = figures.FRONT.read_text(), figures.results()
    assert figures.front(page, found) == page, "run `make docs`"
    shown = figures.FRONT_BLOCK.search(page)[1]
    assert f"| {figures.number(found['nexmark']['ratios']['nexmark_vs_spark'])} |" in shown
    counts, joins = ({k: v for k, v in found["peers"]["ratios"].items() if k.startswith(what)} for what in ("counter", "join"))
    assert min(counts, key=counts.get) == "counter_vs_flink_sql" and min(joins, key=joins.get) == "join_vs_flink_sql"


def test_nexmark_shows_the_longest_epochs_of_each_query(figures):
    result = figures.results()["nexmark"]
    made = figures.figures("nexmark", result)
    assert "our epoch p99, ms" in made
    for name in figures.queries(result):
        row = next(line for line in made.splitlines() if line.startswith(f"| {name} |"))
        contenders = [one for one in result["figures"][name].values() if "epoch_p99_ms" in one]
        assert contenders and all(f"| {figures.number(one['epoch_p99_ms'])} |" in row for one in contenders)


def test_the_plots_are_those_of_the_results(figures):
    shown = set(re.findall(r"\]\((plots/[\w-]+\.svg)\)", PAGE.read_text()))
    wanted = {f"plots/{plot}.svg": path for path in RESULTS for plot in figures.PLOTS[path.stem]}
    assert shown == set(wanted) == {f"plots/{path.name}" for path in (DOCS / "plots").iterdir()}
    for plot, result in wanted.items():
        assert hashlib.sha256(result.read_bytes()).hexdigest() in (DOCS / plot).read_text(), f"{plot} is old: run `make docs`"


def test_the_same_results_give_the_same_plots(figures, tmp_path):
    plots = import_module("plots")
    drawn = [plots.draw(tmp_path / folder) for folder in "ab"]
    assert {path.stem for path in drawn[0]} == {plot for name in figures.results() for plot in figures.PLOTS[name]}
    assert [path.read_bytes() for path in drawn[0]] == [path.read_bytes() for path in drawn[1]]
    assert all(ElementTree.parse(path).getroot().tag.endswith("svg") for path in drawn[0])
    assert set(plots.DRAWN) == {plot for drawn in figures.PLOTS.values() for plot in drawn}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_is_one_line_and_names_no_machine(path):
    text = path.read_text()
    assert text.endswith("}\n") and text.count("\n") == 1
    assert not PLACE.findall(text)


@pytest.mark.parametrize("text", ["in /tmp/a", '"/work/x"', "~/cache/", "see https://a.b", "10.0.0.1 said", "localhost:9092"])
def test_the_name_of_a_place_is_found(text):
    assert PLACE.search(text)


def test_a_result_under_another_name_or_without_a_place_is_refused(figures, tmp_path):
    (tmp_path / "process.json").write_text('{"bench": "counter"}\n')
    with pytest.raises(ValueError, match="a result of 'counter'"):
        figures.results(tmp_path)
    with pytest.raises(ValueError, match="no place for figures of counter"):
        figures.renewed("# Nothing\n", {"counter": {}})


def test_what_a_part_of_a_benchmark_printed_has_a_file_of_its_own(figures, tmp_path):
    result = {"bench": "counter", "figures": {"sizes": {"only": ["workers"]}}}
    for name, taken in {"counter-workers": True, "counter": True, "counter-stateless": False}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(json.dumps(result))
        if taken:
            assert figures.results(tmp_path / name) == {name: result}
        else:
            with pytest.raises(ValueError, match="a result of 'counter'"):
                figures.results(tmp_path / name)


def test_wrong_answers_and_missed_targets_stand_out(figures):
    result = figures.results()["process"]
    result["checks"]["dropin_equals_duckdb"] = False
    result["figures"]["targets"]["vs_transform_with_state"]["met"] = False
    made = figures.figures("process", result)
    assert "**Wrong answers: `dropin_equals_duckdb`.**" in made
    assert re.search(r"\| `vs_transform_with_state` \| at least 40 \| [\d.]+ \| \*\*no\*\* \|", made)
