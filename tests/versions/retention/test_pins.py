"""Pins: a reader either holds its files or is told that it does not."""

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import BadInput, SnapshotExpired, Unavailable
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.history import History
from floodplain.versions.retention.garbage import Collected, collect
from floodplain.versions.retention.pins import Pin, pin, share
from tests.faults import Answers, At, FaultyBlobs, crashed, interleaved
from tests.versions.world import (
    SETTINGS,
    check_clean,
    check_manifest,
    check_store,
    compact,
    create,
    epochs,
    memory,
    names,
    reopen,
    sweep,
)


def churn(history: History, times: int = 2) -> None:
    """Replace every run and forget every epoch but the newest three."""
    for _ in range(times):
        epochs(history, 4)
        compact(history)
        collect(history, horizon=history.head.position)


def store() -> tuple[Blobs, ManualClock]:
    blobs, clock = memory(), ManualClock()
    epochs(create(blobs, clock), 5)
    return blobs, clock


def test_a_pin_holds_its_epoch_through_everything() -> None:
    blobs, clock = store()
    writer, reader = reopen(blobs, clock), reopen(blobs, clock)
    with pin(reader, 4) as held:
        churn(writer, 3)
        held.check()
        check_manifest(held.manifest, blobs)
        assert held.epoch == 4
        with pytest.raises(SnapshotExpired):
            writer.at(4)
    assert not names(blobs, paths.PINS)
    check_clean(blobs, sweep(blobs, clock))


def test_the_newest_by_default() -> None:
    blobs, clock = store()
    with pin(reopen(blobs, clock)) as held:
        assert held.epoch == 5
    with pin(create(memory())) as empty:
        assert empty.epoch == 0
        assert empty.manifest.objects() == set()


def test_what_cannot_be_pinned() -> None:
    blobs, clock = store()
    history = reopen(blobs, clock)
    collect(history)
    with pytest.raises(SnapshotExpired):
        pin(history, 1)
    with pytest.raises(BadInput):
        pin(history, 6)
    assert not names(blobs, paths.PINS)


def test_an_expired_pin_says_so_and_is_removed() -> None:
    blobs, clock = store()
    writer = reopen(blobs, clock)
    held = pin(reopen(blobs, clock), 3)
    clock.advance_ms(SETTINGS.pin_ms - 1)
    held.check()
    clock.advance_ms(1)
    with pytest.raises(SnapshotExpired, match="the pin on epoch 3 ran out"):
        held.check()
    with pytest.raises(SnapshotExpired):
        held.renew()
    churn(writer)
    check_manifest(held.manifest, blobs)
    clock.advance_ms(SETTINGS.lease_ms)
    assert collect(writer).pins == 1
    with pytest.raises(Exception, match="does not exist"):
        check_manifest(held.manifest, blobs)
    held.close()


def test_renewing_holds_on() -> None:
    blobs, clock = store()
    writer = reopen(blobs, clock)
    held = pin(reopen(blobs, clock), 3)
    for _ in range(4):
        clock.advance_ms(SETTINGS.pin_ms - 1)
        held.renew()
        churn(writer, 1)
    held.check()
    assert held.expires_ms == clock.now_ms() + SETTINGS.pin_ms
    check_manifest(held.manifest, blobs)


def test_keeping_renews_it_when_half_of_its_time_is_over() -> None:
    blobs, clock = store()
    held = pin(reopen(blobs, clock), 3)
    before_ms = held.expires_ms
    clock.advance_ms(SETTINGS.pin_ms // 2)
    held.keep()
    assert held.expires_ms == before_ms
    clock.advance_ms(1)
    held.keep()
    assert held.expires_ms == clock.now_ms() + SETTINGS.pin_ms


def test_a_pin_is_shared_with_other_processes() -> None:
    blobs, clock = store()
    writer, record = reopen(blobs, clock), pin(reopen(blobs, clock), 3).record
    for _ in range(4):
        churn(writer, 1)
        clock.advance_ms(SETTINGS.pin_ms - 1)
        held = share(reopen(blobs, clock), record)
        held.check()
        check_manifest(held.manifest, blobs)
        assert held.epoch == 3 and held.expires_ms == clock.now_ms() + SETTINGS.pin_ms, "the one before kept it for longer"
    assert len(names(blobs, paths.PINS)) == 1


def test_a_shared_pin_that_ran_out_is_made_anew_if_its_epoch_is_retained() -> None:
    blobs, clock = store()
    record = pin(reopen(blobs, clock), 5).record
    clock.advance_ms(SETTINGS.pin_ms)
    assert share(reopen(blobs, clock), record).epoch == 5
    churn(reopen(blobs, clock))
    clock.advance_ms(SETTINGS.pin_ms + SETTINGS.lease_ms)
    churn(reopen(blobs, clock))
    with pytest.raises(SnapshotExpired):
        share(reopen(blobs, clock), record)


def test_a_renewal_that_comes_too_late_does_not_count() -> None:
    blobs, clock = store()
    faulty = FaultyBlobs(blobs)
    held = pin(reopen(faulty, clock), 3)

    def long_pause() -> None:
        clock.advance_ms(SETTINGS.pin_ms + SETTINGS.lease_ms)
        churn(reopen(blobs, clock))

    faulty.plan = At(len(faulty.ops), "before", long_pause)
    with pytest.raises(SnapshotExpired):
        held.renew()
    assert not names(blobs, paths.PINS)
    with pytest.raises(SnapshotExpired):
        held.check()


def test_a_pin_that_took_too_long_to_place() -> None:
    blobs, clock = store()
    faulty = FaultyBlobs(blobs)
    history = reopen(faulty, clock)
    creates = Answers("create", paths.PINS, [])
    creates.after = lambda op: clock.advance_ms(SETTINGS.pin_ms) if op.method == "create" else None  # type: ignore[method-assign]
    faulty.plan = creates
    with pytest.raises(SnapshotExpired, match="ran out"):
        pin(history, 3)
    assert not names(blobs, paths.PINS)


def test_closing_during_an_outage_is_left_to_time() -> None:
    blobs, clock = store()
    history = reopen(FaultyBlobs(blobs, Answers("delete", paths.PINS, [("before", Unavailable("down"))])), clock)
    with pin(history, 3):
        pass
    assert len(names(blobs, paths.PINS)) == 1


def test_a_collection_at_any_moment_of_pinning() -> None:
    blobs, clock = store()
    outcomes = set()

    def act(blobs: Blobs) -> Pin:
        return pin(reopen(blobs, clock), 3)

    for label, after, outcome in interleaved(blobs, act, lambda blobs: churn(reopen(blobs, clock))):
        outcomes.add(type(outcome).__name__)
        check_store(after, clock)
        if isinstance(outcome, SnapshotExpired):
            assert not names(after, paths.PINS), label
            continue
        assert isinstance(outcome, Pin), (label, outcome)
        check_manifest(outcome.manifest, after)
        churn(reopen(after, clock))
        check_manifest(outcome.manifest, after)
    assert outcomes == {"Pin", "SnapshotExpired"}


def test_a_pin_at_any_moment_of_a_collection() -> None:
    blobs, clock = store()
    history = reopen(blobs, clock)
    compact(history)
    epochs(history, 3)
    collect(history, horizon=history.head.position)
    epochs(history, 2)
    compact(history)
    outcomes: list[Pin | SnapshotExpired] = []

    def other(blobs: Blobs) -> None:
        try:
            outcomes.append(pin(reopen(blobs, clock), 7))
        except SnapshotExpired as expired:
            outcomes.append(expired)

    def act(blobs: Blobs) -> None:
        history = reopen(blobs, clock)
        collect(history, horizon=history.head.position)

    for label, after, outcome in interleaved(blobs, act, other):
        assert outcome is None, (label, outcome)
        held = outcomes[-1]
        check_store(after, clock)
        if isinstance(held, Pin):
            check_manifest(held.manifest, after)
            churn(reopen(after, clock))
            check_manifest(held.manifest, after)
        else:
            assert not names(after, paths.PINS), label
    assert {type(held) for held in outcomes} == {Pin, SnapshotExpired}


def test_a_reader_that_died_anywhere_does_not_stop_collections() -> None:
    blobs, clock = store()

    def act(blobs: Blobs) -> None:
        history = reopen(blobs, clock)
        with pin(history, 3) as held:
            held.renew()

    for _, after in crashed(blobs, act):
        later = ManualClock(clock.now_ms())
        churn(reopen(after, later), 3)
        check_store(after, later)
        later.advance_ms(SETTINGS.pin_ms + SETTINGS.lease_ms)
        check_clean(after, sweep(after, later))


def test_a_reader_that_lets_go_at_any_moment_of_a_collection_while_another_collects() -> None:
    """Neither collection has anything to commit, so the log does not show that the other was there."""
    blobs, clock = store()
    history = reopen(blobs, clock)
    pin(history, 3)
    churn(history)
    for _ in range(3):
        collect(history)

    def let_go(blobs: Blobs) -> None:
        blobs.delete(names(blobs, paths.PINS))
        assert collect(reopen(blobs, clock)).runs

    for label, after, outcome in interleaved(blobs, lambda blobs: collect(reopen(blobs, clock)), let_go):
        assert isinstance(outcome, Collected), (label, outcome)
        check_store(after, clock)
        check_clean(after, sweep(after, clock))


def test_a_pin_stored_after_its_epoch_was_trimmed_holds_nothing_up() -> None:
    """Its owner died before it could find out."""
    blobs, clock = store()
    slow = FaultyBlobs(blobs)
    history = reopen(slow, clock)
    pin(history, 3).close()
    writes = next(index for index, op in enumerate(slow.ops) if op.method == "create" and op.name.startswith(paths.PINS))
    before = next(index for index, op in enumerate(slow.ops) if op.name == paths.FORMAT)

    def dies() -> None:
        raise KeyboardInterrupt

    slow = FaultyBlobs(blobs)
    slow.plan = At(writes - before, "before", lambda: churn(reopen(blobs, clock), 4))
    slow.plan.after = lambda op: dies() if op.index == writes - before else None  # type: ignore[method-assign]
    slow.delete = lambda names: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        pin(reopen(slow, clock), 3)
    assert len(names(blobs, paths.PINS)) == 1
    history = reopen(blobs, clock)
    epochs(history, 4)
    compact(history)
    epochs(history, 4)
    assert collect(history, horizon=history.head.position).runs
    check_store(blobs, clock)
