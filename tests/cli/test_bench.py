import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import pytest

from floodplain.bench import registry
from tests.cli.stores import run, run_json

RESULT = {
    "bench": "tiny",
    "checks": {"agrees": True},
    "ratios": {"ours_vs_theirs": 7.25},
    "figures": {"update": {"ours": 1234567.0, "theirs": 8}, "machine": "[bold]two cores"},
}


@dataclass(frozen=True)
class Sizes:
    rounds: int
    only: tuple[str, ...] = ()


@pytest.fixture
def tiny(monkeypatch):
    """A benchmark that takes no time. Its result is what the test gives it."""
    asked = []

    def define(result):
        module = ModuleType("floodplain.bench.tiny")
        module.FULL, module.QUICK, module.CHOICES = Sizes(7), Sizes(3), ("some", "others")
        module.run = lambda sizes, clock: asked.append(sizes) or result
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(registry._MODULES, "tiny", "tiny")
        return asked

    return define


def told(result, quick):
    return {**result, "figures": {**result["figures"], "quick": quick}}


def test_the_result_is_the_last_line_as_json(tiny):
    asked = tiny(RESULT)
    assert run_json("bench", "tiny", "--quick") == told(RESULT, True)
    assert run_json("bench", "tiny") == told(RESULT, False)
    assert asked == [Sizes(3), Sizes(7)]


def test_some_contenders_can_be_chosen(tiny):
    asked = tiny(RESULT)
    run_json("bench", "tiny", "--only", "some")
    run_json("bench", "tiny", "--quick", "--only", " others, some")
    assert asked == [Sizes(7, ("some",)), Sizes(3, ("others", "some"))]


def test_a_contender_that_is_not_there_is_an_error_that_names_those_that_are(tiny):
    asked = tiny(RESULT)
    error = run_json("bench", "tiny", "--only", "some,nobody", code=2)["error"]
    assert "no nobody" in error and "some, others" in error and not asked


def test_the_table_shows_every_number(tiny):
    tiny(RESULT)
    shown = run("bench", "tiny")
    assert shown.exit_code == 0
    for part in ("agrees", "yes", "ours_vs_theirs", "7.25", "update.ours", "1,234,567", "[bold]two cores"):
        assert part in shown.stdout


def test_a_wrong_answer_is_an_exit_code(tiny):
    wrong = {**RESULT, "checks": {"agrees": True, "equals_duckdb": False}}
    tiny(wrong)
    assert run_json("bench", "tiny", code=1) == told(wrong, False)
    assert "NO" in run("bench", "tiny").stdout


def test_an_unknown_benchmark_is_an_error_that_names_the_known():
    assert registry.NAMES[0] in run_json("bench", "nonsense", code=2)["error"]


def test_help_says_what_each_benchmark_needs():
    shown = " ".join(run("bench", "--help").stdout.split())
    assert "floodplain[bench]" in shown and "All but state-types and slots run on Spark" in shown
    assert "floodplain[bench,spark,java]" in shown and "Java of version 17" in shown
    modules = {name: import_module(f"floodplain.bench.{module}") for name, module in registry._MODULES.items()}
    without_spark = [name for name, module in modules.items() if not hasattr(module, "stock_spark")]
    assert set(without_spark) == {"state-types", "peers", "slots"}, "peers starts Spark in processes of its own"


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
