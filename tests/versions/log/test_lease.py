"""Leases: the token fences, the clock only advises."""

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import BadName, Fenced, LeaseHeld
from floodplain.host import Process
from floodplain.versions.log import lease
from floodplain.versions.records.manifest import Lease
from tests.faults import interleaved
from tests.versions.world import SETTINGS, check_store, create, memory, next_epoch, reopen


def test_another_owner_waits_until_the_lease_ends() -> None:
    blobs, clock = memory(), ManualClock(0)
    history = create(blobs, clock)
    assert lease.take(history, "one") == 1
    other = reopen(blobs, clock)
    with pytest.raises(LeaseHeld, match="'one' holds lease 1 until 1970-01-01T00:00:30"):
        lease.take(other, "two")
    clock.advance_ms(SETTINGS.lease_ms - 1)
    with pytest.raises(LeaseHeld):
        lease.take(other, "two")
    clock.advance_ms(1)
    assert lease.take(other, "two") == 2
    with pytest.raises(Fenced):
        next_epoch(history, 1)


def test_every_epoch_renews() -> None:
    blobs, clock = memory(), ManualClock(0)
    history = create(blobs, clock)
    token = lease.take(history, "one")
    for _ in range(5):
        clock.advance_ms(SETTINGS.lease_ms - 1)
        next_epoch(history, token)
    with pytest.raises(LeaseHeld):
        lease.take(reopen(blobs, clock), "two")
    assert history.head.lease.expires_ms == clock.now_ms() + SETTINGS.lease_ms


def test_a_lease_that_ended_by_the_clock_still_works_until_another_takes_it() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    clock.advance_ms(10 * SETTINGS.lease_ms)
    assert next_epoch(history, token).epoch == 1


def test_force() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    assert lease.take(reopen(blobs, clock), "two", force=True) == token + 1
    with pytest.raises(Fenced, match="superseded by lease 2 of 'two': stop this writer"):
        next_epoch(history, token)


def test_the_same_owner_comes_back_at_once_and_fences_its_former_self() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    again = reopen(blobs, clock)
    assert lease.take(again, "one") == token + 1
    with pytest.raises(Fenced):
        next_epoch(history, token)


def test_release_lets_the_next_in_and_ends_the_writer() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    lease.release(history, token)
    lease.release(history, token)
    with pytest.raises(Fenced, match="was released: take a new lease"):
        next_epoch(history, token)
    other = reopen(blobs, clock)
    new = lease.take(other, "two")
    lease.release(history, token)
    assert next_epoch(other, new).epoch == 1


def test_owner_names_are_checked() -> None:
    with pytest.raises(BadName):
        lease.take(create(memory()), "../x")


def test_whoever_comes_between_only_one_lease_is_the_newest() -> None:
    blobs, clock = memory(), ManualClock()
    create(blobs, clock)
    tokens: list[int] = []

    def other(blobs) -> None:
        tokens.append(lease.take(reopen(blobs, clock), "other", force=True))

    def act(blobs) -> int:
        history = reopen(blobs, clock)
        token = lease.take(history, "mine", force=True)
        next_epoch(history, token)
        return token

    for label, after, outcome in interleaved(blobs, act, other):
        head = check_store(after, clock).head
        theirs = tokens[-1]
        if isinstance(outcome, Fenced):
            assert (head.lease.token, head.epoch) == (theirs, 0), label
        elif outcome > theirs:
            assert (head.lease.token, head.epoch) == (outcome, 1), label
        else:
            assert (head.lease.token, head.epoch) == (theirs, 1), label


def test_a_holder_that_is_known_to_be_gone_has_it_no_more() -> None:
    blobs, clock = memory(), ManualClock(0)
    history = create(blobs, clock)
    lease.take(history, "one", holder=Process("here", 7, "boot", 1))
    other = reopen(blobs, clock)
    asked: list[Process] = []
    with pytest.raises(LeaseHeld, match=r"'one' \(process 7 on here\) holds lease 1"):
        lease.take(other, "two", is_gone=lambda process: bool(asked.append(process)))
    assert asked == [Process("here", 7, "boot", 1)]
    assert lease.take(other, "two", is_gone=lambda process: process.pid == 7) == 2
    assert other.head.lease.holder is None
    with pytest.raises(LeaseHeld, match="'two' holds"):
        lease.take(history, "three", is_gone=lambda process: True)


@pytest.mark.parametrize("length_ms", [0, 1_000, SETTINGS.lease_ms, 10 * SETTINGS.lease_ms])
@pytest.mark.parametrize("left_ms", [-5, 0, 1, 999, 1_000, 1_001, SETTINGS.lease_ms, SETTINGS.lease_ms + 1, 10**9])
def test_a_lease_lasts_no_longer_than_it_was_to_last(length_ms: int, left_ms: int) -> None:
    """However far ahead the clock of its holder is. One that does not tell its length is taken to have ours."""
    clock = ManualClock(5_000)
    history = create(memory(), clock)
    held = Lease(1, "one", clock.now_ms() + left_ms, length_ms=length_ms)
    assert lease.left_ms(held, history) == max(0, min(left_ms, length_ms if length_ms else SETTINGS.lease_ms))
