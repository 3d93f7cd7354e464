"""Renewals: work of any length keeps its lease, and nothing that it relies on moves by them."""

import threading

import pytest

from floodplain.clock import ManualClock, SystemClock
from floodplain.errors import Conflict, Fenced, LeaseHeld, Unavailable
from floodplain.settings import StoreSettings
from floodplain.tiers import paths
from floodplain.versions.log import lease
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.renewal import BEATS, Renewal
from floodplain.versions.log.requirements import RequireEpoch, RequireStart
from floodplain.versions.records.edit import AdvancePublished, CommitEpoch
from floodplain.versions.retention.garbage import collect
from tests.faults import Answers, FaultyBlobs, interleaved
from tests.versions.world import SETTINGS, check_store, create, epochs, memory, next_epoch, positions, put_run, reopen

PATIENCE_S = 60
SHORT = StoreSettings(lease_ms=60, retry=SETTINGS.retry)


def renewal(history: History, token: int, wanted: bool = True) -> Renewal:
    return Renewal(history, token, lambda: wanted, lambda error: None)


def work(clock: ManualClock, kept: Renewal, leases: float) -> None:
    """So many times as long as a lease lasts."""
    for _ in range(round(leases * BEATS)):
        clock.advance_ms(SETTINGS.lease_ms // BEATS)
        kept.beat()


def test_work_of_any_length_keeps_the_lease_and_costs_few_edits() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    before = history.head.position
    work(clock, renewal(history, token), leases=10)
    with pytest.raises(LeaseHeld):
        lease.take(reopen(blobs, clock), "two")
    assert 20 <= history.head.position - before <= 30
    assert positions(blobs, paths.MANIFESTS), "opening reads no more of the log than it does after as many epochs"


@pytest.mark.parametrize("set_back_ms", [1, 10_000, 86_400_000])
def test_a_clock_that_is_set_back_does_not_keep_it_from_renewing(set_back_ms: int) -> None:
    """Others wait for the length of a lease, not for its end by a clock."""
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    kept = renewal(history, lease.take(history, "one"))
    clock.advance_ms(-set_back_ms)
    before = history.head.position
    kept.beat()
    kept.beat()
    assert history.head.position == before + 1
    assert history.head.lease.expires_ms == clock.now_ms() + SETTINGS.lease_ms


def test_a_lease_that_is_not_wanted_runs_out() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    work(clock, renewal(history, lease.take(history, "one"), wanted=False), leases=1)
    assert lease.take(reopen(blobs, clock), "two") == 2


def test_an_epoch_of_several_leases_is_committed_though_others_collect_garbage() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    start = epochs(history, 5, token)
    run = put_run(history, 6, 6)
    for _ in range(5):
        work(clock, renewal(history, token), leases=1)
        collect(reopen(blobs, clock))
    commit(history, [CommitEpoch(6, (run,))], [RequireEpoch(5), RequireStart(start.position)], token=token)
    assert check_store(blobs, clock).head.epoch == 6


def test_without_renewals_such_an_epoch_is_cut_off() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    start = epochs(history, 5, token)
    clock.advance_ms(5 * SETTINGS.lease_ms)
    collect(reopen(blobs, clock))
    with pytest.raises(Conflict, match="horizon"):
        commit(history, [CommitEpoch(6, ())], [RequireEpoch(5), RequireStart(start.position)], token=token)


def test_a_renewal_at_any_moment_of_an_epoch_leaves_it_alone() -> None:
    blobs, clock = memory(), ManualClock()
    token = lease.take(create(blobs, clock), "one")

    def act(blobs) -> int:
        history = reopen(blobs, clock)
        next_epoch(history, token)
        return next_epoch(history, token, [AdvancePublished(1)]).epoch

    for label, after, outcome in interleaved(blobs, act, lambda blobs: lease.renew(reopen(blobs, clock), token)):
        head = check_store(after, clock).head
        assert (outcome, head.epoch, head.published) == (2, 2, 1), label


def test_an_epoch_at_any_moment_of_a_renewal_leaves_it_alone() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    next_epoch(history, token)

    def other(blobs) -> None:
        next_epoch(reopen(blobs, clock), token, [AdvancePublished(1)])

    for label, after, outcome in interleaved(blobs, lambda blobs: lease.renew(reopen(blobs, clock), token), other):
        head = check_store(after, clock).head
        assert (outcome, head.epoch, head.published) == (None, 2, 1), label


def test_a_lease_that_another_has_and_renews_is_lost() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    kept = renewal(history, lease.take(history, "one"))
    lease.take(reopen(blobs, clock), "two", force=True)
    kept.beat()
    history.refresh()
    with pytest.raises(Fenced):
        kept.beat()


def test_who_lost_the_lease_is_told() -> None:
    blobs = memory()
    history = create(blobs, SystemClock(), SHORT)
    told, reasons = threading.Event(), []

    def lost(error: Exception) -> None:
        reasons.append(error)
        told.set()

    kept = Renewal(history, lease.take(history, "one"), lambda: True, lost)
    lease.take(reopen(blobs, SystemClock(), SHORT), "two", force=True)
    kept.start()
    try:
        assert told.wait(PATIENCE_S)
    finally:
        kept.stop()
    assert isinstance(reasons[0], Fenced)


def test_a_tier_that_does_not_answer_for_a_while_costs_no_lease() -> None:
    blobs = FaultyBlobs(memory())
    history = create(blobs, SystemClock(), SHORT)
    token = lease.take(history, "one")
    silent = [("before", Unavailable("no answer"))] * 3 * SHORT.retry.attempts
    plan = blobs.plan = Answers("create", paths.LOG, silent)
    lost: list[Exception] = []
    renewed, before_ms = threading.Event(), history.head.lease.expires_ms

    def wanted() -> bool:
        if history.head.lease.expires_ms > before_ms:
            renewed.set()
        return True

    kept = Renewal(history, token, wanted, lost.append)
    kept.start()
    try:
        assert renewed.wait(PATIENCE_S)
    finally:
        kept.stop()
    assert plan.given > len(silent) and not lost
