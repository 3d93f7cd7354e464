"""The frame: whose turn it is, what is counted, and when contenders disagree."""

import pytest

from floodplain.bench.harness.frame import Bench, Contestant, interleave
from floodplain.clock import ManualClock


def test_every_contestant_runs_once_per_round_and_the_first_place_goes_around() -> None:
    turns: list[tuple[int, str]] = []
    contestants = [Contestant(name, lambda number, name=name: turns.append((number, name))) for name in "abc"]
    interleave(ManualClock(), contestants, rounds=2, warm_up=1)
    assert turns == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a"), (2, "c"), (2, "a"), (2, "b")]


def test_warm_up_and_preparation_are_not_counted() -> None:
    clock = ManualClock()
    takes_ms = [1000, 10, 30, 20]
    contestant = Contestant("a", lambda number: clock.advance_ms(takes_ms[number]), lambda _: clock.advance_ms(500))
    timings = interleave(clock, [contestant], rounds=3)
    assert timings.seconds["a"] == pytest.approx([0.01, 0.03, 0.02])
    assert timings.median_ms("a") == pytest.approx(20)
    assert timings.mean_ms("a") == pytest.approx(20)


@pytest.mark.parametrize("wrong_round", [0, 2])
def test_one_wrong_answer_in_any_round_fails_the_check(wrong_round: int, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench("x", ManualClock())
    right = Contestant("right", lambda number: number)
    wrong = Contestant("wrong", lambda number: -1 if number == wrong_round else number)
    bench.race("sums", [right, wrong], rounds=2)
    bench.race("again", [right, right], rounds=2)
    assert bench.result()["checks"] == {"sums_agrees": False, "again_agrees": True}
    assert "CHECK FAILED: sums_agrees" in capsys.readouterr().err


def test_a_race_without_answers_is_no_check() -> None:
    bench = Bench("x", ManualClock())
    bench.race("writes", [Contestant("a", lambda _: None)], rounds=1)
    assert bench.checks == {}


def test_a_check_made_twice_must_hold_twice() -> None:
    bench = Bench("x", ManualClock())
    bench.check("rows", False)
    bench.check("rows", True)
    assert bench.checks == {"rows": False}


def test_ratios_say_how_many_times_our_time_the_others_took_and_targets_judge_them() -> None:
    clock = ManualClock()
    bench = Bench("x", clock)
    ours = Contestant("ours", lambda _: clock.advance_ms(10))
    theirs = Contestant("theirs", lambda number: clock.advance_ms(1000 if number == 3 else 40))
    timings = bench.race("get", [ours, theirs], rounds=3)
    bench.compare("get", timings, "ours")
    bench.compare("put", timings, "ours", by_mean=True)
    assert bench.ratios == {"get_vs_theirs": 4.0, "put_vs_theirs": 36.0}
    bench.judge({"get_vs_theirs": ("at least", 5.0), "put_vs_theirs": ("at least", 5.0)})
    targets = bench.result()["figures"]["targets"]
    assert [targets[name]["met"] for name in bench.ratios] == [False, True]
