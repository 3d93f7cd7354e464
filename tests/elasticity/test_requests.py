"""Requests to rescale reach a query through the log: with data, without, at its start; the newest counts."""

import pytest

from floodplain.clock import SeededRandomness
from floodplain.elasticity import requests
from floodplain.errors import BadInput, Conflict
from floodplain.settings import StoreSettings
from floodplain.testing.pipeline_kit import KitEpoch, survives_every_crash
from floodplain.versions.log.history import History
from tests.elasticity.rescaled import PIPELINES, ROWS, Heights, RescaledKit
from tests.elasticity.test_rescales import GROUPS, entry, kit_of


def elsewhere(kit):
    """The log, as a process on another machine has it."""
    own = kit.store.history
    return History.open(kit._blobs(), settings=own.settings, clock=own.clock, randomness=SeededRandomness(3))


def slots(kit):
    return {name: kit.store.head.assignment_of(name).slots for name in ("seen", "heights")}


@pytest.fixture
def kit():
    made = kit_of("brief", 2)
    made.play([entry(1, 0)])
    return made


def test_the_epoch_after_the_one_that_reads_it_does_it(kit):
    log = elsewhere(kit)
    made = requests.request(log, {"seen": 5})
    assert (made.slots, made.replaced, made.held) == ({"seen": 5}, None, True)
    assert not requests.answered(log.refresh(), made.position)
    kit.play([entry(1, 1), entry(1, 2)])
    assert slots(kit) == {"seen": 5, "heights": 2}
    assert requests.answered(log.refresh(), made.position)


def test_a_query_without_data_does_it_between_two_epochs(kit):
    epoch = kit.store.head.epoch
    made = requests.request(elsewhere(kit), 7)
    kit.tick(now_ms=1)
    assert slots(kit) == {"seen": 7, "heights": 7} and kit.store.head.epoch == epoch
    assert requests.answered(kit.store.head, made.position)


def test_a_stopped_query_does_it_at_its_start_whatever_that_says(kit):
    kit.stop()
    log = elsewhere(kit)
    assert not requests.request(log, {"heights": 3}).held
    kit.restart()
    kit.play([entry(1, 1)])
    assert slots(kit) == {"seen": 2, "heights": 3}


def test_the_newest_request_counts_and_the_one_before_is_told(kit):
    log = elsewhere(kit)
    first, second = requests.request(log, 4), requests.request(log, {"seen": 3})
    assert second.replaced == first.position
    for _ in range(2):
        with pytest.raises(Conflict, match=f"was replaced by the one at position {second.position}"):
            requests.answered(log.refresh(), first.position)
        kit.play([entry(1, 1), entry(1, 2)])
    assert slots(kit) == {"seen": 3, "heights": 2}


def test_a_request_that_comes_while_another_is_answered_goes_on_waiting(kit):
    log = elsewhere(kit)
    first = requests.request(log, 4)
    answering, later = kit._epochs.parallelism.next, []

    def overtaken(head):
        planned = answering(head)
        if not later:
            later.append(requests.request(log, {"seen": 3}))
        return planned

    kit.store.history.refresh()
    kit._epochs.parallelism.next = overtaken
    kit.play([entry(1, 1)])
    assert slots(kit) == {"seen": 4, "heights": 4}
    assert kit.store.head.rescale.position == later[0].position > first.position
    kit.play([entry(1, 2)])
    assert slots(kit) == {"seen": 3, "heights": 4} and kit.store.head.rescale is None


@pytest.mark.parametrize(
    ("slots", "words"),
    [({"sean": 2}, "no operator 'sean'.*seen, heights|heights, seen"), (17, "17 slots"), ({"seen": 0}, "operator seen")],
)
def test_what_cannot_be_is_refused_where_it_is_requested(kit, slots, words):
    log = elsewhere(kit)
    with pytest.raises(BadInput, match=words):
        requests.request(log, slots)
    assert log.head.rescale is None


def test_a_query_refuses_what_its_pipeline_does_not_have(kit):
    log = elsewhere(kit)
    made = requests.request(log, {"seen": 3})
    kit.stop()

    def without(stream):
        return (
            stream.watermark("at", "0 ms")
            .select("user", "amount as n")
            .key_by("user")
            .process(Heights(), name="heights")
            .write("memory")
        )

    kit.restart(without, drop=["seen"])
    kit.play([entry(1, 1)])
    with pytest.raises(BadInput, match="the query has refused: there is no operator 'seen'"):
        requests.answered(log.refresh(), made.position)


class RequestingKit(RescaledKit):
    """Between its first two epochs somebody requests other slots, once."""

    def _act(self, entry):
        head = elsewhere(self).head
        if head.epoch and head.rescale is None and head.rescaled is None:
            requests.request(elsewhere(self), {"seen": 3})
        super()._act(entry)


def test_a_crash_at_every_point_leaves_no_trace_of_a_request_but_its_slots():
    def make():
        return RequestingKit(PIPELINES["brief"][0], rows=ROWS, settings=StoreSettings(key_groups=GROUPS))

    assert survives_every_crash(make, [entry(1, 0), entry(1, 1), KitEpoch(None, now_ms=1), entry(1, 2)]) > 30


def test_a_plan_tells_what_moves_and_what_state_slots_have(kit):
    (plan,) = requests.plans(kit.store.head, {"seen": 4})
    assert (plan.slots_before, plan.slots_after) == (2, 4)
    assert sum(high - low for low, high in plan.moved) == 8
    assert sum(plan.bytes_before) == pytest.approx(sum(plan.bytes_after), abs=4) and plan.moved_bytes > 0
    assert len(plan.bytes_before) == 2 and len(plan.bytes_after) == 4
    assert kit.store.history.refresh().rescale is None
