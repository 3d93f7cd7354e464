"""The comparison of two trees: its interval on pairs whose answer is known, and a whole run of a commit with itself."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.compare.interval import now_vs_base

ROOT = Path(__file__).parents[2]


def test_equal_sides_are_equal():
    assert now_vs_base([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == (1.0, 1.0, 1.0)


def test_half_the_time_is_twice_the_throughput():
    ratio = now_vs_base([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert ratio.mean == pytest.approx(2.0) and ratio.low == pytest.approx(2.0)


@pytest.mark.parametrize("true", [0.8, 0.97, 1.0, 1.2])
def test_the_interval_holds_the_ratio_about_as_often_as_it_says(true):
    rng, inside = np.random.default_rng(3), 0
    for _ in range(200):
        machine = rng.lognormal(0, 0.3, 9)
        now, base = machine * rng.lognormal(0, 0.05, 9), true * machine * rng.lognormal(0, 0.05, 9)
        ratio = now_vs_base(now, base)
        inside += ratio.low <= true <= ratio.high
    assert 165 <= inside <= 199, "a bootstrap of nine rounds holds a little less than 95 %"


@pytest.mark.parametrize(("now", "base"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([], [])])
def test_too_few_rounds_are_refused(now, base):
    with pytest.raises(ValueError, match="rounds"):
        now_vs_base(now, base)


@pytest.mark.soak
@pytest.mark.spark
def test_a_commit_beside_itself():
    command = [sys.executable, "-m", "tools.compare", "--base", "HEAD", "--rounds", "2", "--rows", "2000", "--keys", "1000"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["checks"] == {"counter_equals_duckdb": True, "q5_equals_duckdb": True}, ran.stderr
    assert result["ratios"]["low"] <= result["ratios"]["now_vs_base"] <= result["ratios"]["high"]
