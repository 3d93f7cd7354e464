"""Rescaled runs give what a run gives that never is: per operator, up and down, in the middle, with a crash at any point."""

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput
from floodplain.settings import StoreSettings
from floodplain.testing.faults import CrashPoint
from floodplain.testing.pipeline_kit import KitEpoch, survives_every_crash
from floodplain.versions.records.assignment import groups_of
from tests.elasticity.rescaled import PIPELINES, ROWS, Heights, Lasts, RescaledKit, Seen

GROUPS = 16
EPOCHS = 5


def rows_of(seed, number):
    """Few users, one of them with most rows; times out of order, some late."""
    made = []
    for place in range(12):
        mixed = (seed * 7919 + number * 104729 + place * 1299709) % 1009
        made.append({"user": "hot" if mixed % 3 else f"u{mixed % 11}", "amount": mixed % 13, "at": number * 10 + mixed % 25})
    return made


def entry(seed, number, slots=None):
    if number == EPOCHS - 1:
        return KitEpoch(None, watermark_ms=number * 10 + 60, now_ms=number * 10 + 60, slots=slots)
    return KitEpoch(rows_of(seed, number), watermark_ms=number * 10, now_ms=number * 10, slots=slots)


def kit_of(pipeline, slots=1, **more):
    build, _ = PIPELINES[pipeline]
    return RescaledKit(build, rows=ROWS, slots=slots, settings=StoreSettings(key_groups=GROUPS, checkpoint_every=4, **more))


@cache
def control(pipeline, seed):
    kit = kit_of(pipeline)
    kit.play([entry(seed, number) for number in range(EPOCHS)])
    return kit.outcome()


@st.composite
def rescales(draw):
    pipeline = draw(st.sampled_from(["chained", "timed"]))
    counts = st.integers(1, GROUPS)
    some = st.dictionaries(st.sampled_from(PIPELINES[pipeline][1]), counts, min_size=1)
    slots = [draw(st.none() | counts | some) for _ in range(EPOCHS)]
    return pipeline, draw(st.integers(0, 3)), draw(counts | some), slots, draw(st.lists(st.integers(0, 60), max_size=2))


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rescales())
def test_a_rescaled_run_gives_what_any_other_gives(case):
    check(*case)


@pytest.mark.soak
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rescales())
def test_many_rescaled_runs_give_what_any_other_gives(case):
    check(*case)


def check(pipeline, seed, first, slots, crashes):
    kit = kit_of(pipeline, first)
    for after in crashes:
        kit.crash_at(CrashPoint(len(kit.steps.taken) + after, "before"))
    kit.play([entry(seed, number, wanted) for number, wanted in enumerate(slots)])
    assert kit.outcome() == control(pipeline, seed)


def test_a_crash_at_every_point_of_a_rescale_leaves_no_trace():
    script = [entry(1, 0), entry(1, 1, {"seen": 3, "heights": 1})]
    assert survives_every_crash(lambda: kit_of("brief", 2, inline_bytes=0), script) > 30


@pytest.mark.soak
@pytest.mark.parametrize("pipeline", ["chained", "timed"])
def test_crashes_at_every_point_of_several_rescales_leave_no_trace(pipeline):
    names = PIPELINES[pipeline][1]
    slots = [None, {names[0]: 4}, {names[1]: 2, names[2]: 7}, 3, {names[0]: 1}]
    assert survives_every_crash(lambda: kit_of(pipeline, 2), [entry(2, number, each) for number, each in enumerate(slots)]) > 50


def test_operators_have_their_own_slots_and_keep_them():
    kit = kit_of("chained", {"seen": 2, "gathered": 3})
    kit.play([entry(1, 0)])
    shown = {"seen": 2, "gathered": 3, "heights": 2, "again": 2}
    assert {name: each.slots for name, each in kit.progress[-1].operators.items()} == shown
    assert kit.progress[-1].slots == 3
    kit.rescale({"again": 5})
    kit.restart()
    kit.play([entry(1, 1)])
    assert {name: each.slots for name, each in kit.progress[-1].operators.items()} == {**shown, "again": 5}
    text = kit.explain()
    assert "each epoch: 2 to 5 slots, by operator, over 16 key groups" in text
    assert "job 3: again in 5 slots" in text
    before = {name: kit.store.head.assignment_of(name) for name in shown}
    kit.play([entry(1, 2)])
    assert {name: kit.store.head.assignment_of(name) for name in shown} == before


def other_names(stream):
    seen = stream.watermark("at", "0 ms").key_by("user").process(Seen(), name="looked")
    heights = seen.key_by("user").process(Heights(), name="heights")
    return heights.key_by("user", "last", "rose").process(Lasts(), name="lasts").write("memory")


@pytest.mark.parametrize("live", [False, True])
def test_a_renamed_operator_keeps_its_slots_and_a_new_one_has_those_of_all(live):
    kit = kit_of("brief", 2)
    kit.play([entry(1, 0)])
    kit.rescale({"seen": 5})
    kit.play([entry(1, 1)])
    if not live:
        kit.stop()
    (kit.update if live else kit.restart)(other_names, rename={"seen": "looked"})
    kit.play([entry(1, 2)])
    assert {name: each.slots for name, each in kit.progress[-1].operators.items()} == {"looked": 5, "heights": 2, "lasts": 2}
    assert set(kit.store.head.assignments) == {"looked"}


def test_operators_that_read_one_output_shuffle_only_where_their_slots_differ():
    kit = kit_of("chained", 2)

    def shuffled():
        kit.play([entry(1, 0)])
        jobs = kit.explain().partition("== Physical plan ==")[2].split("\njob ")[1:]
        return [job.split()[1] for job in jobs if "exchange: shuffle by" in job.partition("  tables")[0]]

    assert shuffled() == ["seen", "gathered"]
    kit.rescale({"heights": 4})
    assert shuffled() == ["seen", "again", "gathered"]
    kit.rescale({"again": 4, "seen": 7})
    assert shuffled() == ["seen", "gathered"]


def test_a_rescale_moves_the_hot_groups_apart_by_measured_rows():
    kit = kit_of("chained", 1)
    users = [f"u{number}" for number in range(40)]
    rows = [{"user": user, "amount": 1, "at": 1} for user in users + ["u1"] * 200 + ["u2"] * 180]
    kit.epoch(rows, watermark_ms=0, now_ms=0)
    kit.rescale({"seen": 2})
    kit.epoch(rows, watermark_ms=0, now_ms=0)
    assert kit.store.head.assignment_of("gathered").slots == 1
    ran = kit._epochs.parallelism.load.by_operator()["seen"]
    first, second = ran.argsort()[-2:]
    slot_of = {
        group: slot for slot, ranges in enumerate(kit_slots(kit, "seen")) for low, high in ranges for group in range(low, high)
    }
    assert ran[second] > 4 * ran.mean() and slot_of[int(first)] != slot_of[int(second)]


def kit_slots(kit, operator):
    return groups_of(kit.store.head.assignment_of(operator), GROUPS)


@pytest.mark.parametrize(
    ("slots", "words"),
    [({"sean": 2}, "no operator 'sean'.*seen, heights, again, gathered"), ({"seen": 17}, "operator seen: 17"), (0, "0 slots")],
)
def test_what_cannot_be_is_refused_and_changes_nothing(slots, words):
    kit = kit_of("chained", 2)
    with pytest.raises(BadInput, match=words):
        kit.rescale(slots)
    with pytest.raises(BadInput, match=words):
        kit_of("chained", slots)
    kit.play([entry(1, 0)])
    assert kit.progress[-1].slots == 2
