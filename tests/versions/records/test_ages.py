"""What is remembered of when positions were reached, and that the garbage horizon moves by it whatever is retained."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.clock import ManualClock
from floodplain.settings import RetentionSettings
from floodplain.tiers import paths
from floodplain.versions.log import lease
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.records.ages import FINEST_MS, Ages, aged, newest_of_age
from floodplain.versions.retention.garbage import collect
from tests.versions.world import SETTINGS, check_store, compact, create, memory, names, next_epoch, reopen

GAPS = st.sampled_from([0, 1, 20, 500, 1000, 10_000, 3_600_000])


def reached(times_ms: list[int], above: int = 0) -> Ages:
    ages: Ages = ()
    for position, at_ms in enumerate(times_ms, 1):
        ages = aged(ages, position, at_ms, above)
    return ages


@given(st.lists(GAPS, min_size=1, max_size=300), st.sampled_from([0, 100, 5000, 60_000, 7_200_000]))
def test_some_position_is_known_that_is_hardly_older_than_asked_for(gaps: list[int], age_ms: int) -> None:
    times_ms = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    all_of_them = tuple(enumerate(times_ms, 1))
    ages, now_ms = reached(times_ms), times_ms[-1]
    assert set(ages) <= set(all_of_them)
    found = newest_of_age(ages, age_ms, now_ms)
    assert newest_of_age(all_of_them, age_ms * 3 // 2 + FINEST_MS, now_ms) <= found <= newest_of_age(all_of_them, age_ms, now_ms)


@pytest.mark.parametrize("gap_ms", [0, 1, 20, 1000, 10_000])
def test_they_stay_few(gap_ms: int) -> None:
    ages: Ages = ()
    for position in range(1, 10_000):
        ages = aged(ages, position, position * gap_ms, 0)
        assert len(ages) <= 50
    assert ages[-1] == (position, position * gap_ms)


def test_those_up_to_the_horizon_are_forgotten() -> None:
    assert [position for position, _ in aged(reached([0, 5000, 10_000, 15_000]), 5, 20_000, 2)] == [3, 4, 5]


def test_a_position_was_reached_no_later_than_those_after_it() -> None:
    """One writer's clock was a day ahead: that must not hold up the horizon for a day."""
    day_ms = 86_400_000
    ages = reached([0, day_ms + 1000, day_ms + 2000, 3000])
    assert newest_of_age(ages, 60_000, 62_000) == 1
    assert newest_of_age(ages, 60_000, 63_000) == 4


@pytest.mark.parametrize("epoch_ms", [20, 1000, 30_000, 600_000])
@pytest.mark.parametrize("newest", [1, 16])
@pytest.mark.parametrize("afresh", [False, True], ids=["one process", "a process each"])
def test_short_epochs_are_collected_though_none_is_retained_by_age(epoch_ms: int, newest: int, afresh: bool) -> None:
    settings = replace(SETTINGS, retention=RetentionSettings(newest=newest, every_ms=()), lease_ms=1000)
    blobs, clock = memory(), ManualClock()
    writer = create(blobs, clock, settings)
    collector = reopen(blobs, clock, settings)
    token, most = lease.take(writer, "w"), 0
    for number in range(1, 601):
        clock.advance_ms(epoch_ms)
        next_epoch(writer, token)
        maybe_checkpoint(writer)
        if number % 8 == 0:
            compact(writer)
        if number % 32 == 0:
            collector = reopen(blobs, clock, settings) if afresh else collector
            collect(collector)
            if number >= 300:
                most = max(most, len(names(blobs, paths.RUNS)))
    # Epochs younger than the grace and half of it, those since the last collection, and those retained.
    young = 3 * settings.lease_ms // epoch_ms + FINEST_MS // epoch_ms
    assert most <= (young + 2 * 32 + newest) * 9 // 8 + 8
    assert writer.refresh().horizon > 0
    check_store(blobs, clock)
