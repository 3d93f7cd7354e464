"""The commit protocol: one winner for each position, whatever the tier answers."""

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import AlreadyExists, BadInput, Conflict, Fenced, Refused, Unavailable
from floodplain.tiers import paths
from floodplain.versions.log import lease
from floodplain.versions.log.commit import commit
from floodplain.versions.log.requirements import (
    RequireAssignment,
    RequireEpoch,
    RequireLease,
    RequireRetained,
    RequireRuns,
    RequireSchema,
    RequireStart,
)
from floodplain.versions.records.edit import Assignment, CommitEpoch, DropTag, PutSchema, SetAssignment
from floodplain.versions.records.manifest import REMEMBERED_EDITS
from floodplain.versions.retention.garbage import collect
from tests.faults import Answers, At, FaultyBlobs, contents
from tests.versions.world import GROUPS, check_store, compact, create, epochs, memory, names, next_epoch, reopen, schema


def test_another_process_sees_what_was_committed() -> None:
    blobs = memory()
    writer = create(blobs)
    reader = reopen(blobs)
    head = epochs(writer, 5)
    assert reader.refresh() == head == reopen(blobs).head
    assert head.epoch == 5


def test_the_loser_of_a_position_takes_the_next_one() -> None:
    blobs = memory()
    one = create(blobs)
    two = reopen(blobs)
    commit(one, [PutSchema(schema("one"))])
    head = commit(two, [PutSchema(schema("two"))])
    assert set(head.schemas) == {"t", "one", "two"}
    assert one.refresh() == head


def test_two_writers_cannot_commit_the_same_epoch() -> None:
    blobs = memory()
    one = create(blobs)
    two = reopen(blobs)
    next_epoch(one)
    with pytest.raises(Conflict, match="last epoch is 1, not 0"):
        next_epoch(two)
    assert reopen(blobs).head.epoch == 1


def test_updates_that_do_not_fit_write_nothing() -> None:
    blobs = memory()
    history = create(blobs)
    before = contents(blobs)
    with pytest.raises(Conflict, match=r"do not fit.*need epoch 1, got epoch 7"):
        commit(history, [CommitEpoch(7, ())])
    with pytest.raises(BadInput, match="cannot be recorded"):
        commit(history, [CommitEpoch(epoch="1", runs=())])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="cannot be recorded"):
        commit(history, [])
    with pytest.raises(BadInput, match="cannot be recorded"):
        commit(history, [CommitEpoch(1, (), watermarks={"w": object()})])  # type: ignore[dict-item]
    assert contents(blobs) == before


@pytest.mark.parametrize(
    "answers",
    [
        [("after", Unavailable("the answer was lost"))],
        [("before", Unavailable("the request was lost"))],
        [("after", AlreadyExists("the client's own retry met its success"))],
        [("before", AlreadyExists("a 409 that stored nothing"))],
        [("before", Unavailable("1")), ("before", AlreadyExists("2"))],
        [("before", Unavailable("1")), ("after", Unavailable("2"))],
        [("after", Refused("stored, then refused"))],
    ],
    ids=lambda answers: " ".join(f"{when}-{type(error).__name__}" for when, error in answers),
)
def test_a_false_answer_is_settled_by_reading_back(answers: list[tuple[str, Exception]]) -> None:
    blobs = memory()
    create(blobs)
    faulty = FaultyBlobs(blobs, Answers("create", paths.LOG, answers))
    history = reopen(faulty)
    next_epoch(history)
    next_epoch(history)
    assert faulty.plan.given >= len(answers)
    assert check_store(blobs).head == history.head
    assert history.head.epoch == 2
    assert len(names(blobs, paths.LOG)) == 3


def test_a_lost_answer_that_hides_a_lost_race() -> None:
    blobs = memory()
    create(blobs)
    other = reopen(blobs)
    faulty = FaultyBlobs(blobs, Answers("create", paths.LOG, [("before", Unavailable("lost"))]))
    history = reopen(faulty)
    next_epoch(other)
    with pytest.raises(Conflict):
        next_epoch(history)
    assert check_store(blobs).head.epoch == 1


def test_a_create_refused_for_good_raises_and_leaves_the_head() -> None:
    blobs = memory()
    create(blobs)
    history = reopen(FaultyBlobs(blobs, Answers("create", paths.LOG, [("before", Refused("no space"))])))
    head = history.head
    with pytest.raises(Refused):
        commit(history, [PutSchema(schema("u"))])
    assert history.head is head
    commit(history, [PutSchema(schema("u"))])
    assert "u" in reopen(blobs).head.schemas


def test_an_outage_leaves_the_outcome_open_and_refresh_tells() -> None:
    blobs = memory()
    create(blobs)
    lost = ("after", Unavailable("lost"))
    faulty = FaultyBlobs(blobs, Answers("create", paths.LOG, [lost] * 3))
    history = reopen(faulty)
    gone = Answers("get", paths.LOG, [("before", Unavailable("lost"))] * 3)
    faulty.plan.before = lambda op, first=faulty.plan.before: (first(op), gone.before(op))  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        commit(history, [PutSchema(schema("u"))])
    assert "u" in history.refresh().schemas


def test_a_paused_writer_that_was_superseded_commits_nothing() -> None:
    blobs = memory()
    clock = ManualClock()
    paused = create(blobs, clock)
    old = lease.take(paused, "old")
    next_epoch(paused, old)
    other = reopen(blobs, clock)
    new = lease.take(other, "new", force=True)
    with pytest.raises(Fenced, match="superseded by lease 2 of 'new'"):
        next_epoch(paused, old)
    next_epoch(other, new)
    with pytest.raises(Fenced):
        commit(paused, [DropTag("x")], token=old)
    assert check_store(blobs).head.epoch == 2


@pytest.mark.parametrize("behind", [20, REMEMBERED_EDITS + 20])
def test_a_paused_writer_cannot_reopen_a_trimmed_position(behind: int) -> None:
    blobs = memory()
    clock = ManualClock()
    paused = create(blobs, clock)
    old = lease.take(paused, "old")
    next_epoch(paused, old)
    other = reopen(blobs, clock)
    new = lease.take(other, "new", force=True)
    epochs(other, behind, new)
    collect(other, token=new)
    epochs(other, behind, new)
    collect(other, token=new)
    position = paused.head.position + 1
    assert paths.log(position) not in names(blobs, paths.LOG)
    head = other.head
    with pytest.raises(Fenced, match="superseded"):
        next_epoch(paused, old)
    assert check_store(blobs).head == head == other.refresh()


def test_a_reader_is_not_fooled_by_a_stray() -> None:
    """The position was trimmed, created again by a writer that then died: nobody may take its edit for history."""
    blobs = memory()
    clock = ManualClock()
    create(blobs, clock)
    stale_reader = reopen(blobs, clock)
    faulty = FaultyBlobs(blobs)
    paused = reopen(faulty, clock)
    other = reopen(blobs, clock)
    epochs(other, 20)
    collect(other)
    epochs(other, 5)
    collect(other)
    position = paused.head.position + 1
    faulty.plan = At(len(faulty.ops) + 1, "before", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        commit(paused, [PutSchema(schema("stray"))])
    assert paths.log(position) in names(blobs, paths.LOG)
    assert "stray" not in stale_reader.refresh().schemas
    assert stale_reader.head == other.head == check_store(blobs).head
    collect(other)
    assert paths.log(position) not in names(blobs, paths.LOG)


def test_a_writer_without_a_lease_goes_on_after_its_position_was_trimmed() -> None:
    blobs = memory()
    clock = ManualClock()
    create(blobs, clock)
    slow = reopen(blobs, clock)
    other = reopen(blobs, clock)
    epochs(other, 20)
    collect(other)
    epochs(other, 5)
    collect(other)
    stale = slow.head.position + 1
    head = commit(slow, [PutSchema(schema("late"))])
    assert head.position == other.head.position + 1
    assert paths.log(stale) not in names(blobs, paths.LOG)
    assert "late" in check_store(blobs).head.schemas


def test_a_commit_that_others_built_on_and_checkpointed_is_counted() -> None:
    blobs = memory()
    clock = ManualClock()
    create(blobs, clock)
    faulty = FaultyBlobs(blobs)
    slow = reopen(faulty, clock)

    def others() -> None:
        other = reopen(blobs, clock)
        epochs(other, 20)
        collect(other)
        epochs(other, 20)
        collect(other)

    faulty.plan = At(len(faulty.ops), "after", others)
    head = commit(slow, [PutSchema(schema("mine"))])
    assert "mine" in head.schemas
    assert head == check_store(blobs).head
    assert head.epoch == 40


def test_a_writer_that_slept_too_long_says_so() -> None:
    blobs = memory()
    clock = ManualClock()
    create(blobs, clock)
    faulty = FaultyBlobs(blobs)
    slow = reopen(faulty, clock)

    def others() -> None:
        other = reopen(blobs, clock)
        epochs(other, REMEMBERED_EDITS + 1)
        collect(other)
        epochs(other, 1)
        collect(other)

    faulty.plan = At(len(faulty.ops), "after", others)
    position = slow.head.position + 1
    with pytest.raises(Conflict) as caught:
        commit(slow, [PutSchema(schema("mine"))])
    behind = reopen(blobs, clock).head.position - position
    assert str(caught.value) == (
        f"this writer slept through {behind} commits, and whether its edit at position {position} "
        "counted can no longer be told: start over from the newest manifest"
    )
    check_store(blobs)


def test_each_requirement_says_what_to_do() -> None:
    history = create(memory())
    token = lease.take(history, "me")
    epochs(history, 2, token)
    commit(history, [SetAssignment(Assignment(3, 1, ((0, 0),)))])
    head = history.head
    ids = tuple(run.id for run in head.runs["t"])
    holding = [
        RequireLease(token),
        RequireEpoch(2),
        RequireRuns("t", dict.fromkeys(ids, GROUPS)),
        RequireRuns("t", dict.fromkeys(ids, ((3, 5),))),
        RequireStart(1),
        RequireSchema("t", 1),
        RequireSchema("u", 0),
        RequireRetained(1),
        RequireAssignment(3),
    ]
    for requirement in holding:
        requirement.check(head)
    failing = [
        (RequireLease(token + 1), "take a new lease"),
        (RequireEpoch(1), "build this epoch on it"),
        (RequireRuns("t", {"runs/x@0": GROUPS}), "plan anew"),
        (RequireRuns("t", dict.fromkeys(ids, ((0, 17),))), "no longer counts for key groups"),
        (RequireStart(0), "start over"),
        (RequireSchema("t", 2), "at schema 1, not 2"),
        (RequireSchema("u", 1), "at schema 0, not 1"),
        (RequireRetained(9), "choose a newer one"),
        (RequireAssignment(2), "version 3, not 2"),
    ]
    for failed, text in failing:
        with pytest.raises(Conflict, match=text):
            failed.check(head)


def test_a_run_replaced_meanwhile_is_a_conflict() -> None:
    blobs = memory()
    one = create(blobs)
    epochs(one, 3)
    two = reopen(blobs)
    compact(one)
    with pytest.raises(Conflict, match="replaced meanwhile"):
        compact(two)
    check_store(blobs)
