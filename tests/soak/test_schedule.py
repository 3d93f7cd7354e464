"""How the time is shared, and what a row says."""

import json
from itertools import count

import pytest

from tests.soak.outcome import FAILURES, Outcome
from tests.soak.schedule import Row, next_step


def played(costs_s, weights, limit_s):
    """Rows after a soak in which a trial of each fault takes so long, and the time it took."""
    rows = [Row(name, weights.get(name, 1.0)) for name in costs_s]
    passed_s = 0.0
    while (step := next_step(rows, limit_s - passed_s)) is not None:
        row, control = step
        row.add(Outcome.OK, costs_s[row.fault], control=control)
        passed_s += costs_s[row.fault]
    return {row.fault: row for row in rows}, passed_s


def test_each_has_a_trial_and_the_rest_is_shared_by_weight():
    rows, passed_s = played({"quick": 0.1, "slow": 7.0, "heavy": 0.5}, {"heavy": 4.0}, 120)
    assert all(row.tried for row in rows.values())
    assert passed_s == pytest.approx(120, abs=0.1)
    assert rows["heavy"].spent_s == pytest.approx(80, abs=8)
    assert rows["quick"].spent_s == pytest.approx(20, abs=8) and rows["slow"].tried + rows["slow"].controls == 3


def test_it_ends_within_the_limit_but_for_the_first_round():
    for limit_s in (1, 5, 30, 61):
        costs_s = {"a": 1.0, "b": 20.0, "c": 3.0}
        rows, passed_s = played(costs_s, {}, limit_s)
        assert passed_s <= max(limit_s, min(limit_s, 4) + 20)
        if limit_s > 24:
            assert passed_s <= limit_s and all(row.tried for row in rows.values())


def test_time_that_a_long_one_cannot_use_goes_to_the_others():
    rows, passed_s = played({"long": 50.0, "short": 1.0}, {"long": 100.0}, 80)
    assert (rows["long"].tried, rows["long"].controls) == (1, 0) and passed_s == 80
    assert (rows["short"].tried, rows["short"].controls) == (27, 3), "a control for ten trials"


def test_all_are_tried_before_any_control_and_all_have_a_control_before_any_has_a_second_trial():
    rows, _ = played({"a": 1.0, "b": 1.0, "c": 1.0}, {}, 3)
    assert [(row.tried, row.controls) for row in rows.values()] == [(1, 0)] * 3
    rows, _ = played({"a": 1.0, "b": 1.0, "c": 1.0}, {}, 6)
    assert [(row.tried, row.controls) for row in rows.values()] == [(1, 1)] * 3


def test_without_time_there_is_no_trial_and_the_row_is_not_good():
    rows, _ = played({"a": 1.0}, {}, 0)
    assert not rows["a"].tried and not rows["a"].good


def test_any_failure_makes_a_row_bad_and_a_refusal_does_not():
    for outcome in Outcome:
        row = Row("x")
        row.add(Outcome.OK, 0.1)
        row.add(outcome, 0.1)
        assert row.good == (outcome not in FAILURES)
    row.add(Outcome.REFUSED, 0.1, control=True)
    assert (row.controls, row.controls_wrong) == (1, 1)


def test_a_row_in_words():
    row, took_s = Row("x"), count(1)
    for outcome in Outcome:
        row.add(outcome, float(next(took_s)))
    row.add(Outcome.OK, 1.0, control=True)
    assert json.loads(json.dumps(row.told())) == {
        "fault": "x",
        "tried": 6,
        "silently_wrong": 1,
        "lost": 1,
        "duplicated": 1,
        "unclear_error": 1,
        "refused": 1,
        "ok": 1,
        "controls": 1,
        "controls_wrong": 0,
        "seconds": 22.0,
    }
