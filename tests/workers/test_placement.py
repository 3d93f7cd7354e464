from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.workers.placement import moved, placed

CASES = st.tuples(
    st.integers(1, 40),
    st.sets(st.integers(0, 9), min_size=1),
    st.dictionaries(st.integers(0, 50), st.integers(0, 9)),
)
SMALL = st.tuples(
    st.integers(1, 5), st.sets(st.integers(0, 4), min_size=1, max_size=3), st.dictionaries(st.integers(0, 6), st.integers(0, 4))
)


@settings(deadline=None)
@given(CASES)
def test_every_slot_has_a_worker_and_none_has_two_more_than_another(case):
    slots, workers, before = case
    placement = placed(slots, sorted(workers), before)
    owned = Counter(placement.values())
    assert set(placement) == set(range(slots))
    assert set(owned) <= workers
    assert max(owned.values()) - min(owned[worker] for worker in workers) <= 1


@settings(deadline=None)
@given(SMALL)
def test_no_balanced_placement_moves_fewer_slots(case):
    slots, workers, before = case
    balanced = (
        dict(enumerate(each))
        for each in product(sorted(workers), repeat=slots)
        if max(owned := [each.count(worker) for worker in workers]) - min(owned) <= 1
    )
    assert moved(before, placed(slots, sorted(workers), before)) == min(moved(before, each) for each in balanced)


@settings(deadline=None)
@given(CASES, st.randoms(use_true_random=False))
def test_it_does_not_depend_on_the_order_of_workers_and_stays(case, random):
    slots, workers, before = case
    placement = placed(slots, sorted(workers), before)
    shuffled = random.sample(sorted(workers), len(workers))
    assert placed(slots, shuffled, before) == placement
    assert placed(slots, shuffled, placement) == placement
