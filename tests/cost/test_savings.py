import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.cost.savings import MONTH_S, Saving, Spending, Storage, savings
from floodplain.prices import AMAZON, GB, NOTHING
from floodplain.tier_use import COMMIT, TierUse

NO_STORAGE = Storage(0, 0, 0)


def named(found: tuple[Saving, ...], what: str) -> Saving | None:
    return next((saving for saving in found if what in saving.what), None)


def spent(operator: TierUse, driver: TierUse, *, disk: TierUse | None = None, storage: Storage = NO_STORAGE, epochs: int = 10):
    tiers = {"object": operator} if disk is None else {"object": operator, "disk": disk}
    return Spending({"counter": tiers, COMMIT: {"object": driver}}, epochs, 1.0, AMAZON, storage)


def test_epochs_half_as_often_halve_what_each_asks_for_anyway():
    spending = spent(TierUse(gets=0, puts=20), TierUse(puts=20, gets=10))
    per_month = (40 * 0.005 + 10 * 0.0004) / 1000 / 10 * MONTH_S
    assert spending.total_per_month == pytest.approx(per_month)
    saving = named(savings(spending), "an epoch every 2 s")
    assert saving is not None
    assert (saving.percent, saving.per_month) == (pytest.approx(50), pytest.approx(per_month / 2))


def test_reads_of_operators_come_with_rows_and_not_with_epochs():
    spending = spent(TierUse(gets=1000), TierUse(puts=80))
    slower = named(savings(spending), "an epoch every 2 s")
    assert slower is not None and slower.percent == pytest.approx(25)


@pytest.mark.parametrize(("evicted", "percent"), [(0, None), (500, 25), (1000, 50), (9000, 50)])
def test_a_larger_cache_saves_at_most_what_was_evicted(evicted, percent):
    disk = TierUse(hits=30, misses=10, evicted_bytes=evicted)
    storage = Storage(0, 64_000_000, 0)
    found = savings(spent(TierUse(gets=1000, read_bytes=1000), TierUse(puts=80), disk=disk, storage=storage))
    saving = named(found, "cache")
    assert saving is None if percent is None else saving is not None and saving.percent == pytest.approx(percent)
    assert saving is None or ("64 MB" in saving.what and "25 %" in saving.what)


def test_without_a_cache_one_is_proposed():
    saving = named(savings(spent(TierUse(gets=1000, read_bytes=1000), TierUse(puts=80))), "a cache of")
    assert saving is not None and saving.percent == pytest.approx(50)


@pytest.mark.parametrize(("puts", "size", "proposed"), [(20, 100 << 10, True), (10, 100 << 10, False), (20, 2 << 20, False)])
def test_small_deltas_of_several_tasks_may_share_an_object(puts, size, proposed):
    found = named(savings(spent(TierUse(puts=puts, written_bytes=puts * size), TierUse(puts=20))), "inline_bytes")
    assert (found is not None) == proposed
    assert found is None or ("100 KiB" in found.what and found.percent == pytest.approx(25))


def test_what_past_epochs_keep_is_proposed_to_go():
    storage = Storage(total_bytes=100 * GB, live_bytes=60 * GB, past_bytes=40 * GB)
    saving = named(savings(spent(TierUse(), TierUse(puts=1), storage=storage, epochs=1000)), "retained epochs")
    assert saving is not None and saving.per_month == pytest.approx(40 * 0.023)


def test_where_nothing_is_paid_nothing_is_saved():
    assert savings(Spending({"counter": {"directory": TierUse(puts=9)}}, 1, 1.0, NOTHING, Storage(9, 9, 9))) == ()


counts = st.integers(0, 10**7)
tier_uses = st.builds(TierUse, puts=counts, gets=counts, lists=counts, deletes=counts, heads=counts, read_bytes=counts,
                      written_bytes=counts, evicted_bytes=counts, hits=counts, misses=counts)  # fmt: skip


@given(tier_uses, tier_uses, st.none() | tier_uses, counts, counts, st.integers(1, 1000))
def test_nothing_saves_more_than_all_and_the_most_comes_first(operator, driver, disk, live, past, epochs):
    storage = Storage(live + past, live, past)
    spending = spent(operator, driver, disk=disk, storage=storage, epochs=epochs)
    found = savings(spending)
    assert all(0 < saving.per_month <= spending.total_per_month * 1.000001 for saving in found)
    assert [saving.per_month for saving in found] == sorted((saving.per_month for saving in found), reverse=True)
