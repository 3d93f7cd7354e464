"""Rescaled runs on worker processes give what one process gives that never rescales, also when workers are killed."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floodplain.settings import StoreSettings
from floodplain.testing.process_launcher import serve
from tests.elasticity.rescaled import PIPELINES, ROWS, RescaledKit
from tests.elasticity.test_rescales import EPOCHS, GROUPS, control, entry
from tests.workers.worker_kit import Fault, WorkersKit

SLOTS = [None, {"seen": 3, "heights": 5}, {"again": 5}, 2, {"gathered": 1}]


class RescaledWorkers(RescaledKit, WorkersKit):
    """Compared as ``RescaledKit`` is."""


def run(folder, pipeline, seed, slots, fault=serve, first=2):
    kit = RescaledWorkers(
        folder / "state", PIPELINES[pipeline][0], rows=ROWS, slots=first, run=fault, settings=StoreSettings(key_groups=GROUPS)
    )
    try:
        kit.ready().play([entry(seed, number, wanted) for number, wanted in enumerate(slots)])
        return kit.outcome(), [progress.tries for progress in kit.progress], kit.progress[-1]
    finally:
        kit.close()


@pytest.mark.parametrize("killed", [False, True], ids=["none killed", "one killed"])
def test_operators_have_their_own_slots_on_workers(tmp_path, killed):
    fault = Fault("process", tmp_path, nth=9, worker=1) if killed else serve
    outcome, tries, last = run(tmp_path, "chained", 1, SLOTS, fault)
    assert outcome == control("chained", 1)
    assert max(tries) == (2 if killed else 1)
    assert {name: each.slots for name, each in last.operators.items()} == {"seen": 2, "heights": 2, "again": 2, "gathered": 1}


@st.composite
def killed_rescales(draw):
    pipeline = draw(st.sampled_from(["chained", "timed"]))
    counts = st.integers(1, GROUPS)
    some = st.dictionaries(st.sampled_from(PIPELINES[pipeline][1]), counts, min_size=1)
    slots = [draw(st.none() | counts | some) for _ in range(EPOCHS)]
    point = draw(st.sampled_from(["pull", "serve", "process", "answer"]))
    return pipeline, draw(st.integers(0, 3)), slots, point, draw(st.integers(1, 20))


@pytest.mark.soak
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(killed_rescales())
def test_workers_that_are_killed_in_rescaled_runs_change_nothing(tmp_path_factory, case):
    pipeline, seed, slots, point, nth = case
    folder = tmp_path_factory.mktemp("killed")
    assert run(folder, pipeline, seed, slots, Fault(point, folder, nth=nth))[0] == control(pipeline, seed)
