"""Collections: what goes, what stays, and that nobody who runs beside one is harmed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import BadInput, Conflict, Fenced, SnapshotExpired
from floodplain.settings import RetentionSettings, StoreSettings
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import lease
from floodplain.versions.log.commit import commit
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.log.requirements import RequireEpoch, RequireStart
from floodplain.versions.records.edit import CommitEpoch
from floodplain.versions.records.manifest import EpochMark, Lease, Manifest
from floodplain.versions.retention.garbage import PROBE_MS, Collected, collect, default_horizon
from tests.faults import FaultyBlobs, clone, contents, interleaved, operations
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
    next_epoch,
    positions,
    put_run,
    reopen,
    sweep,
)


def busy_store() -> tuple[Blobs, ManualClock]:
    """Epochs forgotten and not, compacted and not, trimmed and not, and an orphan."""
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    epochs(history, 5)
    compact(history)
    collect(history, horizon=history.head.position)
    epochs(history, 3)
    compact(history)
    collect(history, horizon=history.head.position)
    epochs(history, 2)
    compact(history)
    next_epoch(history)
    put_run(history, 99, 99)
    return blobs, clock


def full_collect(blobs: Blobs, clock: ManualClock) -> Collected:
    history = reopen(blobs, clock)
    return collect(history, horizon=history.head.position)


def test_a_collection_reports_what_it_did() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    epochs(history, 5)
    compact(history)
    next_epoch(history)
    first = collect(history, horizon=history.head.position)
    assert first == Collected(epochs=(1, 2, 3), horizon=8)
    assert positions(blobs, paths.MANIFESTS) == [8]
    epochs(history, 3)
    second = collect(history, horizon=history.head.position)
    assert (second.epochs, second.runs, second.run_bytes) == ((4, 5, 6), 5, 15)
    assert (second.edits, second.checkpoints) == (8, 0)
    assert positions(blobs, paths.LOG) == [9, 10, 11, 12, 13]
    check_store(blobs)


def test_an_idle_collection_writes_nothing_more() -> None:
    blobs, clock = busy_store()
    history = sweep(blobs, clock)
    collect(history)
    collect(history)
    before = contents(blobs)
    assert collect(history) == Collected(horizon=history.head.horizon)
    assert contents(blobs) == before
    check_clean(blobs, history)


def test_an_orphan_goes_once_the_horizon_passed_its_start() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    next_epoch(history)
    orphan = put_run(history, 9, 9)
    assert collect(history, horizon=history.head.position - 1).runs == 0
    assert orphan.object in names(blobs, paths.RUNS)
    next_epoch(history)
    assert collect(history, horizon=history.head.position).runs == 1
    check_clean(blobs, history)


def test_a_commit_begun_below_the_horizon_is_refused() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    next_epoch(history)
    slow = reopen(blobs, clock)
    start = slow.head.position
    ref = put_run(slow, 2, 2)
    collect(history, horizon=history.head.position)
    assert ref.object not in names(blobs, paths.RUNS)
    with pytest.raises(Conflict, match="start over from the newest manifest"):
        commit(slow, [CommitEpoch(2, (ref,))], [RequireEpoch(1), RequireStart(start)])
    with pytest.raises(Conflict, match="begun after the horizon"):
        commit(slow, [CommitEpoch(2, (ref,))])
    check_store(blobs)


def test_a_running_epoch_survives_the_default_horizon_however_long_it_takes() -> None:
    blobs, clock = memory(), ManualClock()
    writer = create(blobs, clock)
    token = lease.take(writer, "w")
    next_epoch(writer, token)
    for _ in range(5):
        ref = put_run(writer, writer.head.epoch + 1, writer.head.epoch + 1)
        start = writer.head.position
        clock.advance_ms(SETTINGS.lease_ms * 2)
        collect(reopen(blobs, clock))
        commit(writer, [CommitEpoch(writer.head.epoch + 1, (ref,))], [RequireStart(start)], token=token)
    check_store(blobs)


def test_default_horizon() -> None:
    marks = tuple(EpochMark(n, n * 10, n * 1000, "") for n in range(1, 5))
    manifest = Manifest("s", 16, position=45, at_ms=4500, epoch=4, epochs=marks)
    assert [default_horizon(manifest, now_ms, 1000) for now_ms in (0, 2000, 4999, 5000, 5499, 5500)] == [0, 10, 30, 40, 40, 45]
    live = Manifest("s", 16, position=45, at_ms=4500, epoch=4, epochs=marks, lease=Lease(1, "w", 9000))
    assert [default_horizon(live, now_ms, 1000) for now_ms in (2000, 5500, 9999, 10_000)] == [10, 39, 39, 45]
    assert default_horizon(Manifest("s", 16, position=9, lease=Lease(1, "w", 9000)), 9999, 1000) == 0
    ahead = Manifest("s", 16, position=45, horizon=33)
    assert default_horizon(ahead, -5000, 1000) == 33


def test_horizons_that_cannot_be() -> None:
    history = create(memory())
    epochs(history, 3)
    with pytest.raises(BadInput, match="horizon 99 is beyond the log, which ends at 4"):
        collect(history, horizon=99)
    collect(history, horizon=4)
    assert collect(history, horizon=1).horizon == 4


def test_under_a_lost_lease_nothing_is_collected() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    token = lease.take(history, "one")
    epochs(history, 9, token)
    lease.take(reopen(blobs, clock), "two", force=True)
    before = set(names(blobs, paths.RUNS)) | set(names(blobs, paths.LOG))
    with pytest.raises(Fenced):
        collect(history, token=token)
    assert before <= set(names(blobs))


def test_a_probe_left_behind_goes_when_it_was_seen_long_enough() -> None:
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock)
    blobs.create(paths.probe("dead"), b"")
    assert collect(history).probes == 0
    clock.advance_ms(PROBE_MS - 1)
    blobs.create(paths.probe("running"), b"")
    assert collect(history).probes == 0
    clock.advance_ms(1)
    assert collect(history).probes == 1
    assert names(blobs, paths.PROBES) == [paths.probe("running")]


def test_it_takes_few_requests() -> None:
    blobs, clock = busy_store()
    history = sweep(blobs, clock)
    collect(history)
    collect(history)
    ops = operations(blobs, lambda blobs: collect(reopen(blobs, clock)))
    assert len(ops) <= 26


def other_actors() -> dict[str, Callable[[Blobs, ManualClock], object]]:
    def write(blobs: Blobs, clock: ManualClock) -> None:
        history = reopen(blobs, clock)
        epochs(history, 2)
        compact(history)

    def checkpoint(blobs: Blobs, clock: ManualClock) -> None:
        history = reopen(blobs, clock)
        epochs(history, 9)
        maybe_checkpoint(history)

    def everything(blobs: Blobs, clock: ManualClock) -> None:
        for _ in range(3):
            write(blobs, clock)
            full_collect(blobs, clock)

    return {"collect": full_collect, "write": write, "checkpoint": checkpoint, "everything": everything}


@pytest.mark.parametrize("other", other_actors())
def test_another_actor_at_any_moment_of_a_collection(other: str) -> None:
    blobs, clock = busy_store()
    step = other_actors()[other]
    for label, after, outcome in interleaved(blobs, lambda b: full_collect(b, clock), lambda b: step(b, clock)):
        assert isinstance(outcome, Collected), (label, outcome)
        check_store(after, clock)
        check_clean(after, sweep(after, clock))


@pytest.mark.parametrize("other", other_actors())
def test_another_actor_at_any_moment_of_an_epoch(other: str) -> None:
    """The epoch either commits whole or is refused, and its author can go on from there."""
    blobs, clock = busy_store()
    before = reopen(blobs, clock).head.epoch
    step = other_actors()[other]

    def act(blobs: Blobs) -> int:
        history = reopen(blobs, clock)
        return next_epoch(history).epoch

    for label, after, outcome in interleaved(blobs, act, lambda b: step(b, clock)):
        assert isinstance(outcome, int | Conflict), (label, outcome)
        history = check_store(after, clock)
        assert history.head.epoch >= before + isinstance(outcome, int), label
        next_epoch(history)
        check_store(after, clock)
        check_clean(after, sweep(after, clock))


@pytest.mark.parametrize("other", other_actors())
def test_another_actor_at_any_moment_of_opening_refreshing_and_time_travel(other: str) -> None:
    blobs, clock = busy_store()
    step = other_actors()[other]
    oldest = reopen(blobs, clock).head.epochs[0].epoch

    def act(blobs: Blobs) -> Manifest:
        history = reopen(blobs, clock)
        manifest = history.at(oldest)
        history.refresh()
        return manifest

    expected = act(clone(blobs))
    for label, after, outcome in interleaved(blobs, act, lambda b: step(b, clock)):
        assert outcome == expected or isinstance(outcome, SnapshotExpired), (label, outcome)
        check_store(after, clock)


@pytest.mark.parametrize("other", ["write", "everything"])
def test_a_process_stopped_at_any_moment_of_a_collection_goes_on_much_later(other: str) -> None:
    """The late half of a collection deletes nothing that became needed since."""
    blobs, clock = busy_store()
    step = other_actors()[other]

    def much_later(blobs: Blobs) -> None:
        for _ in range(3):
            step(blobs, clock)
            clock.advance_ms(SETTINGS.lease_ms)

    for label, after, outcome in interleaved(blobs, lambda b: full_collect(b, clock), much_later):
        assert isinstance(outcome, Collected), (label, outcome)
        history = check_store(after, clock)
        for mark in history.head.epochs:
            check_manifest(history.at(mark.epoch), after)


def test_a_late_checkpoint_is_harmless() -> None:
    """Its author folded the log, slept through a trim, and writes it now."""
    blobs, clock = busy_store()

    def act(blobs: Blobs) -> bool:
        history = reopen(blobs, clock)
        epochs(history, 9)
        maybe_checkpoint(history)
        return history.checkpoint_failure is None

    for label, after, outcome in interleaved(blobs, act, lambda b: other_actors()["everything"](b, clock)):
        assert outcome is True or isinstance(outcome, Conflict), (label, outcome)
        check_store(after, clock)
        check_clean(after, sweep(after, clock))


def retaining(count: int) -> tuple[Blobs, ManualClock, StoreSettings]:
    """A store that retains this many epochs and was never collected."""
    settings = replace(SETTINGS, retention=RetentionSettings(newest=count, every_ms=()))
    blobs, clock = memory(), ManualClock()
    history = create(blobs, clock, settings, log_segment=64)
    for number in range(count + 20):
        next_epoch(history)
        if number % 8 == 7:
            compact(history)
        maybe_checkpoint(history)
    return blobs, clock, settings


@pytest.mark.parametrize("count", [100, 800])
def test_requests_grow_with_the_retained_epochs_and_nothing_is_read_twice(count: int) -> None:
    """The first collection checkpoints each of them, the second, by another process, has to read each of them."""
    blobs, clock, settings = retaining(count)
    for _ in range(2):
        faulty = FaultyBlobs(blobs)
        history = reopen(faulty, clock, settings)
        next_epoch(history)
        faulty.ops.clear()
        collect(history, horizon=history.head.position)
        asked = Counter((op.method, op.name) for op in faulty.ops)
        assert sum(times for (method, _), times in asked.items() if method == "list") == 1
        created = {name for method, name in asked if method == "create"}
        again = {name for (method, name), times in asked.items() if method == "get" and times > 1 and name not in created}
        # The checkpoint that the log is trimmed to is looked at first, to find where that is; the fence at the end of the log is
        # looked for with each commit.
        assert len([name for name in again if not name.startswith(paths.FENCES)]) <= 1
        assert len([op for op in faulty.ops if op.method != "delete"]) <= 4 * (count + 20)
    check_store(blobs, clock)


def test_a_process_reads_each_retained_epoch_for_one_collection_only() -> None:
    blobs, clock, settings = retaining(100)
    faulty = FaultyBlobs(blobs)
    history = reopen(faulty, clock, settings)
    collect(history, horizon=history.head.position)
    for _ in range(3):
        next_epoch(history)
        compact(history)
        faulty.ops.clear()
        collect(history, horizon=history.head.position)
        assert len([op for op in faulty.ops if op.method == "get"]) <= 50
    check_store(blobs, clock)
