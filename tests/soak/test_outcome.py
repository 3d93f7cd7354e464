"""The classes of the table: a trial that loses, repeats, makes up or mumbles is seen as just that."""

import random
from collections import Counter

import pytest

from floodplain.errors import Corrupt, Refused
from tests.faults import Crash
from tests.soak.outcome import Outcome, Trial, difference, judge

EVENTS = Counter({"a": 1, "b": 2})


def lost(trial):
    trial.compare("rows", EVENTS, Counter({"a": 1, "b": 1}))


def duplicated(trial):
    trial.compare("rows", EVENTS, Counter({"a": 2, "b": 2}))


def wrong(trial):
    trial.compare("rows", EVENTS, Counter({"a": 1, "b": 2, "c": 1}))


def changed(trial):
    trial.compare("rows", Counter(["a=1"]), Counter(["a=2"]))


def lost_and_duplicated(trial):
    trial.compare("rows", EVENTS, Counter({"b": 3}))


def asserted(trial):
    raise AssertionError("two of one epoch")


def not_raised(trial):
    with pytest.raises(Corrupt):
        trial.compare("rows", EVENTS, EVENTS)


def broken_promise(trial):
    trial.compare("rows", EVENTS, EVENTS)
    trial.require(False, "verify found nothing")


def fine(trial):
    trial.compare("rows", EVENTS, EVENTS)
    trial.require(True, "verify found it")


def refused(trial):
    trial.compare("other rows", EVENTS, EVENTS)
    with trial.may_refuse("runs/a.run"):
        raise Corrupt("runs/a.run", "4 bytes", "3 bytes")


def refused_by_another_name(trial):
    with trial.may_refuse("runs/a.run"):
        raise Corrupt("runs/b.run", "4 bytes", "3 bytes")


def refused_without_a_reason(trial):
    trial.compare("rows", EVENTS, EVENTS)
    raise Refused("no")


def trace(trial):
    with trial.may_refuse("runs/a.run"):
        raise KeyError("runs/a.run")


def crashed(trial):
    raise Crash


def nothing_compared(trial):
    trial.note("something was done")


def refused_but_lost(trial):
    refused(trial)
    lost(trial)


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (lost, Outcome.LOST),
        (duplicated, Outcome.DUPLICATED),
        (wrong, Outcome.SILENTLY_WRONG),
        (changed, Outcome.SILENTLY_WRONG),
        (lost_and_duplicated, Outcome.LOST),
        (asserted, Outcome.SILENTLY_WRONG),
        (not_raised, Outcome.SILENTLY_WRONG),
        (broken_promise, Outcome.SILENTLY_WRONG),
        (fine, Outcome.OK),
        (refused, Outcome.REFUSED),
        (refused_by_another_name, Outcome.UNCLEAR_ERROR),
        (refused_without_a_reason, Outcome.UNCLEAR_ERROR),
        (trace, Outcome.UNCLEAR_ERROR),
        (crashed, Outcome.UNCLEAR_ERROR),
        (nothing_compared, Outcome.UNCLEAR_ERROR),
        (refused_but_lost, Outcome.LOST),
    ],
)
def test_each_kind_of_end_is_in_its_class(tmp_path, run, outcome):
    verdict = judge(run, Trial(random.Random(1), tmp_path))
    assert verdict.outcome is outcome and verdict.told


def test_a_control_has_nothing_to_refuse(tmp_path):
    assert judge(refused, Trial(random.Random(1), tmp_path, faulty=False)).outcome is Outcome.UNCLEAR_ERROR


def test_every_difference_of_two_small_bags_is_in_the_class_that_its_counts_say():
    items, rng = "abc", random.Random(5)
    for _ in range(500):
        expected, found = (Counter({item: rng.randrange(3) for item in items}) for _ in range(2))
        expected, found = +expected, +found
        more = {item for item in items if found[item] > expected[item]}
        fewer = {item for item in items if found[item] < expected[item]}
        outcome, _ = difference(expected, found)
        if any(not expected[item] for item in more):
            assert outcome is Outcome.SILENTLY_WRONG
        elif fewer:
            assert outcome is Outcome.LOST
        else:
            assert outcome is (Outcome.DUPLICATED if more else Outcome.OK)


def test_interrupting_goes_through(tmp_path):
    def interrupted(trial):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(interrupted, Trial(random.Random(1), tmp_path))
