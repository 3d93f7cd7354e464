"""``slots`` at a size where times mean nothing and answers still must be right."""

import pytest

from floodplain.bench import registry, slots
from floodplain.clock import SystemClock

TINY = slots.Sizes(slot_counts=(2, 8), key_groups=16, rounds=7, warm_up=1)


def test_the_answers_are_right_and_every_target_has_its_ratio(monkeypatch, figures):
    """Compactions included: there are more epochs than runs that wait for one."""
    monkeypatch.setattr(slots, "QUICK", TINY)
    result = registry.run("slots", quick=True)
    assert result["bench"] == "slots" and set(result["checks"]) == {"2_slots_equal_duckdb", "8_slots_equal_duckdb"}
    assert all(result["checks"].values())
    assert set(slots.TARGETS) == set(result["figures"]["targets"]) <= set(result["ratios"])
    assert "`floodplain bench slots --quick --json`" in figures.figures("slots", result)


@pytest.mark.parametrize("wrong", ["_fed", "_out"])
def test_a_wrong_answer_is_found(wrong):
    lane = slots.Lane(2, TINY, SystemClock())
    lane.epoch(counted=True)
    lane.epoch(counted=True)
    assert lane.right()
    getattr(lane, wrong).pop()
    assert not lane.right()
    lane.close()
