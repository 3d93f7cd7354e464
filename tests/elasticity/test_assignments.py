"""Assignments of operators: planned, recorded as little as possible, folded back to the same."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.elasticity.assignments import Wanted, assigned, map_of, updates
from floodplain.elasticity.measured_load import GroupRows, MeasuredLoad
from floodplain.errors import BadInput
from floodplain.versions.records.assignment import assignment_of, checked_counts, even, groups_of, same_map
from floodplain.versions.records.edit import AssignOperators, Edit, SetAssignment
from floodplain.versions.records.manifest import BrokenHistory, Manifest, apply

GROUPS = 16
NAMES = ("parse", "join", "rank")


def applied(head, changes):
    if not changes:
        return head
    return apply(head, Edit(head.store, head.position + 1, head.chain, "n", 0, 0, tuple(changes)), f"c{head.position}")


def step(head, wanted, load=None):
    plans = assigned(head, wanted, load or {})
    return plans, applied(head, updates(head, plans, wanted.default))


COUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, GROUPS), min_size=1)
LOADS = st.dictionaries(
    st.sampled_from(NAMES), st.integers(0, 2**31).map(lambda seed: np.random.default_rng(seed).pareto(1.0, GROUPS))
)


@settings(max_examples=200)
@given(st.lists(st.tuples(COUNTS, LOADS, st.booleans()), min_size=1, max_size=5))
def test_the_log_gives_back_what_was_planned_and_operators_keep_what_nobody_changed(rescales):
    head, counts = Manifest("s", GROUPS), dict.fromkeys(NAMES, 2)
    for changed, load, together in rescales:
        before = {name: head.assignment_of(name) for name in NAMES}
        counts |= changed
        wanted = Wanted(counts, 2, [NAMES[:2]] if together else (), frozenset(changed))
        plans, head = step(head, wanted, load)
        for name in NAMES:
            assert head.assignment_of(name) == plans[name] or same_map(head.assignment_of(name), plans[name])
            assert plans[name].slots == counts[name]
            owned = sorted(
                group for ranges in groups_of(plans[name], GROUPS) for low, high in ranges for group in range(low, high)
            )
            assert owned == list(range(GROUPS)) and all(groups_of(plans[name], GROUPS))
            if name not in changed and before[name] is not None:
                assert plans[name] == before[name]
        again, unchanged = step(head, Wanted(counts, 2), load)
        assert unchanged is head and all(same_map(again[name], plans[name]) for name in NAMES)


def test_one_number_for_all_is_recorded_as_ever():
    _, head = step(Manifest("s", GROUPS), Wanted(dict.fromkeys(NAMES, 4), 4))
    assert head.assignment == even(4, GROUPS, 1) and head.assignments == {}
    wanted = Wanted(dict.fromkeys(NAMES, 8), 8, requested=frozenset(NAMES))
    assert [type(update) for update in updates(head, assigned(head, wanted, {}), 8)] == [SetAssignment]


def test_operators_of_their_own_are_forgotten_once_all_are_alike():
    _, head = step(Manifest("s", GROUPS), Wanted({"parse": 2, "join": 4}, 2))
    assert {name: each.slots for name, each in head.assignments.items()} == {"join": 4}
    same = even(4, GROUPS, 9)
    after = applied(head, updates(head, {"parse": same, "join": same}, 4))
    assert after.assignment == same and after.assignments == {}


def test_a_new_operator_begins_with_the_number_for_all():
    _, head = step(Manifest("s", GROUPS), Wanted({"parse": 2, "join": 4}, 2))
    plans, _ = step(head, Wanted({"parse": 2, "join": 4, "rank": 2}, 2))
    assert plans["rank"] == head.assignment


def test_operators_that_read_the_same_rows_get_one_map():
    load = {"parse": np.r_[90.0, np.ones(15)], "join": np.r_[np.ones(15), 90.0]}
    _, head = step(Manifest("s", GROUPS), Wanted({"parse": 2, "join": 4}, 2, [("parse", "join")]))
    wanted = Wanted({"parse": 4, "join": 4}, 2, [("parse", "join")], frozenset(["parse"]))
    plans, head = step(head, wanted, load)
    assert plans["parse"] == plans["join"] == head.assignment_of("join")
    apart, _ = step(head, Wanted({"parse": 6, "join": 6}, 2, (), frozenset(["parse", "join"])), load)
    assert not same_map(apart["parse"], apart["join"])
    together, _ = step(head, Wanted({"parse": 6, "join": 6}, 2, [("parse", "join")], frozenset(["parse", "join"])), load)
    assert same_map(together["parse"], together["join"])
    hot = map_of(together["parse"], GROUPS)
    assert hot[0] != hot[15]


def test_versions_rise_and_are_kept_where_nothing_changes():
    _, head = step(Manifest("s", GROUPS), Wanted({"parse": 2, "join": 4}, 2))
    plans, after = step(head, Wanted({"parse": 3, "join": 4}, 2, requested=frozenset(["parse", "join"])))
    assert plans["join"] == head.assignment_of("join") and plans["parse"].version > plans["join"].version
    assert after.assignment_of("parse") == plans["parse"]


def test_ranges_are_run_length_encoded():
    slot_of = np.array([0, 0, 1, 1, 0, 2, 2, 2])
    made = assignment_of(slot_of, 3, 5)
    assert made.starts == ((0, 0), (2, 1), (4, 0), (5, 2))
    assert (map_of(made, 8) == slot_of).all()


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (0, "0 slots are not possible: use 1 to 16"),
        (17, "17 slots"),
        (True, "True slots"),
        ({"parse": 0}, "operator parse: 0 slots are not possible"),
        ({"parze": 2}, "there is no operator 'parze' .* parse, join"),
    ],
)
def test_what_is_impossible_is_refused_with_the_operators(slots, words):
    with pytest.raises(BadInput, match=words):
        checked_counts(slots, ["parse", "join"], GROUPS)


def test_an_edit_with_an_operator_that_is_no_name_is_refused():
    with pytest.raises(BrokenHistory):
        applied(Manifest("s", GROUPS), [AssignOperators({"../x": even(2, GROUPS, 1)})])


def test_rows_are_measured_by_key_group_and_fade():
    load = MeasuredLoad(GROUPS)
    load.add("parse", [GroupRows.of(np.array([1, 5]), np.array([10, 20])), GroupRows.of(np.array([7]), np.array([5]))])
    load.add("parse", [GroupRows()])
    assert np.flatnonzero(load.by_operator()["parse"]).tolist() == [1, 5, 7]
    for _ in range(16):
        load.add("parse", [GroupRows.of(np.array([2]), np.array([1]))])
    assert load.by_operator()["parse"][5] == pytest.approx(10)
    assert load.by_operator()["parse"][2] > 10
    assert "join" not in load.by_operator()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(GroupRows()), type=GroupRows) == GroupRows()
