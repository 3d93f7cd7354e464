"""The benchmark ``nexmark``: its parts, and all of it at a size where times mean nothing."""

import statistics
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from floodplain.bench import nexmark, registry
from floodplain.bench.contenders import stock_nexmark
from floodplain.bench.harness.frame import Bench
from floodplain.clock import ManualClock, SystemClock
from floodplain.errors import BadInput

RESULT = Path(__file__).parents[2] / "docs" / "results" / "nexmark.json"
TINY = nexmark.Sizes(events=1000, small_events=50, small_epochs=1, rounds=1, warm_up=1, most_warm_up=2, rate=100.0)


def test_every_query_with_state_is_run_on_spark_or_said_why_not():
    assert "nexmark" in registry.NAMES
    assert set(nexmark.STATEFUL) == set(stock_nexmark.QUERIES) | set(stock_nexmark.CANNOT)
    assert not set(stock_nexmark.QUERIES) & set(stock_nexmark.CANNOT)
    assert set(stock_nexmark.KEYS) <= set(stock_nexmark.QUERIES)


def test_the_quick_form_runs_what_only_names():
    assert nexmark.QUICK.chosen == nexmark.QUICK.queries
    assert replace(nexmark.QUICK, only=("q5", "q0")).chosen == ("q5", "q0")


def test_the_queries_of_the_quick_form_stand_for_all():
    ratios = msgspec.json.decode(RESULT.read_bytes())["ratios"]
    quick = statistics.geometric_mean(ratios[f"{name}_vs_spark"] for name in nexmark.QUICK.queries)
    assert quick == pytest.approx(ratios["nexmark_vs_spark"], rel=0.05)


def test_the_means_and_goals_of_each_engine_are_of_its_own_queries():
    bench = Bench("nexmark", ManualClock())
    bench.ratios = {"q3_vs_spark": 2.0, "q11_vs_spark": 8.0, "q3_workers_vs_spark": 1.3, "q11_workers_vs_spark": 1.3}
    nexmark._judge(bench)
    assert (bench.ratios["nexmark_vs_spark"], bench.ratios["workers_vs_spark"]) == (4.0, 1.3)
    unmet = [name for name, target in bench.figures["targets"].items() if not target["met"]]
    assert unmet == ["workers_vs_spark", "q3_workers_vs_spark", "q11_workers_vs_spark"]


def test_without_a_checkout_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(nexmark, "__file__", str(tmp_path / "floodplain" / "bench" / "nexmark.py"))
    with pytest.raises(BadInput, match="runs from a checkout"):
        nexmark.run(TINY, SystemClock())


@pytest.mark.spark
def test_queries_without_state_are_checked_and_not_raced(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sizes = replace(TINY, queries=(), checked=("q2", "q10"))
    result = nexmark.run(sizes, SystemClock(), spark)
    assert result["checks"] == {"q2_floodplain_equals_duckdb": True, "q10_floodplain_equals_duckdb": True}
    assert not result["ratios"] and not {"q2", "q10"} & set(result["figures"])


@pytest.mark.soak
@pytest.mark.spark
def test_a_tiny_nexmark_on_spark(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = nexmark.run(TINY, SystemClock(), spark)
    assert msgspec.json.decode(msgspec.json.encode(result)) == result
    checked = {f"{name}_floodplain_equals_duckdb" for name in nexmark.STATEFUL + nexmark.STATELESS}
    checked |= {f"{name}_workers_equals_duckdb" for name in nexmark.STATEFUL}
    checked |= {f"{name}_spark_equals_duckdb" for name in stock_nexmark.QUERIES}
    assert result["checks"] == dict.fromkeys(checked, True)
    ratios = {f"{name}{goal.suffix}" for name in stock_nexmark.QUERIES for goal in nexmark.GOALS.values()}
    assert set(result["ratios"]) == {"nexmark_vs_spark", "workers_vs_spark"} | ratios
    assert set(result["figures"]["spark_cannot"]) == set(stock_nexmark.CANNOT)
    assert not list(tmp_path.iterdir()), "the benchmark left files behind"
