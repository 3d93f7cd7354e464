import json
import subprocess
import sys

import pytest

from floodplain.bench import registry
from tests.cli.stores import run, run_json

RESULT = {
    "bench": "tiny",
    "checks": {"agrees": True},
    "ratios": {"ours_vs_theirs": 7.25},
    "figures": {"update": {"ours": 1234567.0, "theirs": 8}, "machine": "[bold]two cores"},
}


@pytest.fixture
def tiny(monkeypatch):
    """A benchmark that takes no time. Its result is what the test gives it."""
    asked = []

    def define(result):
        monkeypatch.setitem(registry._BENCHES, "tiny", lambda quick: asked.append(quick) or result)
        return asked

    return define


def test_the_result_is_the_last_line_as_json(tiny):
    asked = tiny(RESULT)
    assert run_json("bench", "tiny", "--quick") == RESULT
    assert run_json("bench", "tiny") == RESULT
    assert asked == [True, False]


def test_the_table_shows_every_number(tiny):
    tiny(RESULT)
    shown = run("bench", "tiny")
    assert shown.exit_code == 0
    for part in ("agrees", "yes", "ours_vs_theirs", "7.25", "update.ours", "1,234,567", "[bold]two cores"):
        assert part in shown.stdout


def test_a_wrong_answer_is_an_exit_code(tiny):
    wrong = {**RESULT, "checks": {"agrees": True, "equals_duckdb": False}}
    tiny(wrong)
    assert run_json("bench", "tiny", code=1) == wrong
    assert "NO" in run("bench", "tiny").stdout


def test_an_unknown_benchmark_is_an_error_that_names_the_known():
    assert registry.NAMES[0] in run_json("bench", "nonsense", code=2)["error"]


def test_help_says_what_each_benchmark_needs():
    shown = " ".join(run("bench", "--help").stdout.split())
    assert "floodplain[bench]" in shown and "All but state-types run on Spark" in shown
    assert "floodplain[bench,spark,java]" in shown and "Java of version 17" in shown
    assert [name for name in registry.NAMES if registry._BENCHES[name] is registry._state_types] == ["state-types"]


def test_other_commands_work_without_the_packages_that_benchmarks_need(tmp_path):
    script = f"""
import sys
sys.modules["rocksdict"] = sys.modules["duckdb"] = None
from typer.testing import CliRunner
from floodplain.cli.main import app
for command in (["verify", {str(tmp_path)!r}, "--json"], ["bench", "state-types", "--json"]):
    result = CliRunner().invoke(app, command)
    print(result.exit_code, result.stdout.strip())
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    verify, bench = shown.stdout.splitlines()
    assert verify.startswith("2 ") and json.loads(verify[2:])["kind"] == "StoreNotFound"
    assert bench.startswith("2 ") and "floodplain[bench" in json.loads(bench[2:])["error"]
