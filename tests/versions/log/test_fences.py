"""Fences prove that a position was never taken before, without a listing, whatever is delayed or lost."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace as change

from floodplain.clock import ManualClock
from floodplain.errors import AlreadyExists, Conflict, Fenced, Unavailable
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import commit as committing
from floodplain.versions.log import fences, follow, lease
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.records.edit import DropTag, PutSchema
from floodplain.versions.retention.garbage import collect
from tests.faults import FaultyBlobs, Op, Plan, clone, crashed, interleaved, operations
from tests.versions.world import check_store, compact, create, epochs, memory, names, next_epoch, positions, reopen, schema

CLOCK = ManualClock()


def trim(blobs: Blobs, least: int = 6) -> None:
    """Others commit, and trim all that was there before."""
    other = reopen(blobs, CLOCK)
    token = lease.take(other, "other", force=True)
    end = other.head.position + least
    while not positions(blobs, paths.LOG) or positions(blobs, paths.LOG)[0] <= end:
        epochs(other, 3, token)
        collect(other, token=token)


def fenced_store(segment: int = 2) -> Blobs:
    blobs = memory()
    epochs(create(blobs, CLOCK, log_segment=segment), 2)
    return blobs


@pytest.mark.parametrize("length", [1, 3, 256])
def test_segments_cover_each_position_once(length: int) -> None:
    for position in range(1, 3 * length + 2):
        segment = fences.segment_of(position, length)
        assert segment * length < position <= (segment + 1) * length


def test_writers_at_the_end_of_the_log_list_nothing() -> None:
    """Epochs, compactions, checkpoints, looks by other processes; only the collection lists, once."""
    faulty = FaultyBlobs(memory())
    history = create(faulty, CLOCK, log_segment=16)
    token = lease.take(history, "one")
    reader = reopen(faulty, CLOCK)
    next_epoch(history, token)
    faulty.ops.clear()
    for number in range(200):
        next_epoch(history, token)
        maybe_checkpoint(history)
        assert reader.refresh() == history.head
        if number % 8 == 7:
            compact(history)
        if number % 40 == 39:
            collect(history, token=token)
    assert [op.name for op in faulty.ops if op.method == "list"] == [""] * 5
    assert positions(faulty, paths.LOG)[0] > 150
    check_store(faulty, CLOCK)


def test_a_commit_is_one_put_and_two_gets_of_what_is_not_there() -> None:
    blobs = fenced_store()
    history = reopen(FaultyBlobs(blobs), CLOCK)
    history.blobs.ops.clear()
    position = commit(history, [DropTag("x")]).position
    fence = paths.fence(fences.segment_of(position, 2))
    assert [(op.method, op.name) for op in history.blobs.ops] == [
        ("create", paths.log(position)),
        ("get", fence),
        ("get", paths.log(position + 1)),
    ]


def test_each_segment_that_loses_an_edit_has_a_fence() -> None:
    blobs = fenced_store(segment=3)
    trim(blobs, 20)
    gone = range(1, positions(blobs, paths.LOG)[0])
    assert len(gone) > 20
    assert set(names(blobs, paths.FENCES)) == {paths.fence(fences.segment_of(position, 3)) for position in gone}


def test_fences_are_for_good() -> None:
    blobs = fenced_store()
    trim(blobs)
    before = names(blobs, paths.FENCES)
    trim(blobs, 40)
    assert before
    assert set(before) < set(names(blobs, paths.FENCES))


def mine(history: History) -> str:
    """An edit that can be told from all others; returns its nonce."""
    nonces: list[str] = []
    original = history.randomness.nonce
    history.randomness.nonce = lambda: nonces.append(original()) or nonces[-1]  # type: ignore[method-assign]
    commit(history, [DropTag("x")])
    return nonces[-1]


@pytest.mark.parametrize("segment", [1, 2, 64])
def test_whenever_others_trim_the_log_an_edit_counts_once_or_not_at_all(segment: int) -> None:
    for label, after, outcome in interleaved(fenced_store(segment), lambda blobs: mine(reopen(blobs, CLOCK)), trim):
        head = check_store(after, CLOCK).head
        assert isinstance(outcome, str), label
        assert [nonce for _, nonce in head.nonces].count(outcome) == 1, label


@pytest.mark.parametrize("segment", [1, 2, 64])
def test_whenever_others_trim_the_log_a_reader_sees_all_of_it(segment: int) -> None:
    """What was committed before a reader looked it has seen after it; what it has seen is history."""
    blobs = fenced_store(segment)

    def look(blobs: Blobs) -> History:
        history = reopen(blobs, CLOCK)
        for _ in range(2):
            history.refresh()
        return history

    for label, after, reader in interleaved(blobs, look, trim):
        writer = check_store(after, CLOCK)
        assert isinstance(reader, History), label
        assert reader.head.position in (reopen(blobs, CLOCK).head.position, writer.head.position), label
        assert reader.refresh() == writer.head, label


@dataclass
class Late(Plan):
    """Creates of the log are answered ``Unavailable``, and arrive when ``deliver`` says so: long after they were given up."""

    at: set[int]
    seen: int = 0
    late: list[Callable[[], object]] = field(default_factory=list)

    def carried(self, op: Op, act: Callable[[], object]) -> object:
        if op.method == "create" and op.name.startswith(paths.LOG):
            self.seen += 1
            if self.seen in self.at:
                self.late.append(act)
                raise Unavailable("no answer")
        return act()

    def deliver(self) -> None:
        for act in self.late:
            with suppress(AlreadyExists):
                act()


@pytest.mark.parametrize("at", [{1}, {1, 2}, {1, 2, 3}, {2, 3, 4}])
@pytest.mark.parametrize("trims", [0, 1, 2])
def test_an_edit_that_arrives_late_changes_no_history(at: set[int], trims: int) -> None:
    """Two writers, of which one has its requests delayed beyond its own end and beyond any number of trims."""
    blobs = fenced_store()
    plan = Late(at)
    slow = reopen(FaultyBlobs(blobs, plan), CLOCK)
    committed = 0
    try:
        for _ in range(2):
            next_epoch(slow)
            committed += 1
    except Unavailable:
        pass
    for _ in range(trims):
        trim(blobs)
    before = reopen(blobs, CLOCK).head
    reader = reopen(blobs, CLOCK)
    plan.deliver()
    head = check_store(blobs, CLOCK).head
    assert reader.refresh() == head
    assert head.epoch >= 2 + committed
    if trims:
        assert head == before
    trim(blobs)
    check_store(blobs, CLOCK)


def test_a_superseded_writer_learns_of_it_with_the_commit_that_it_slept_in() -> None:
    """Its edit counts, and what came after is in the manifest that it gets: it must not publish."""
    blobs = fenced_store()
    token = lease.take(reopen(blobs, CLOCK), "one", force=True)

    def act(blobs: Blobs) -> bool:
        history = reopen(blobs, CLOCK)
        return next_epoch(history, token).lease.token == token

    def other(blobs: Blobs) -> None:
        lease.take(reopen(blobs, CLOCK), "two", force=True)

    ops = operations(blobs, act)
    outcomes = {label: outcome for label, _, outcome in interleaved(blobs, act, other)}
    created = next(op.index for op in ops if op.method == "create" and op.name.startswith(paths.LOG))
    assert ops[-1].name.startswith(paths.LOG)
    assert ops[-1].index > created
    for label, outcome in outcomes.items():
        index = int(label.rpartition(" ")[2].rstrip(")"))
        if "before" in label and index <= created:
            assert isinstance(outcome, Fenced), label
        elif "before" in label:
            assert outcome is False, label
        else:
            assert outcome is True, label


def test_a_collection_that_dies_anywhere_fools_no_writer() -> None:
    blobs = fenced_store(segment=1)
    paused = reopen(blobs, CLOCK)
    history = reopen(blobs, CLOCK)
    token = lease.take(history, "two", force=True)
    epochs(history, 3, token)
    collect(history, token=token)
    epochs(history, 3, token)

    def collection(blobs: Blobs) -> None:
        collect(reopen(blobs, CLOCK), token=token)

    trimmed = 0
    for label, after in crashed(blobs, collection):
        copy = clone(after)
        late = History(copy, paused.format, settings=paused.settings, clock=CLOCK, randomness=paused.randomness)
        late.advance(paused.head)
        trimmed += paths.log(paused.head.position + 1) not in names(copy, paths.LOG)
        with pytest.raises(Conflict):
            next_epoch(late)
        check_store(copy, CLOCK), label
    assert trimmed


def test_where_an_earlier_release_may_have_trimmed_checkpoints_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its edits say nothing of fences, and it trims without."""
    edit = committing._edit
    with monkeypatch.context() as earlier:
        earlier.setattr(committing, "_edit", lambda *given: change(edit(*given), fences=False))
        earlier.setattr(fences, "create", lambda *_: None)
        blobs = fenced_store()
        paused, reader = reopen(blobs, CLOCK), reopen(blobs, CLOCK)
        assert not paused.head.fenced
        trim(blobs)
    assert paths.log(paused.head.position + 1) not in names(blobs, paths.LOG)
    assert not names(blobs, paths.FENCES)
    head = reopen(blobs, CLOCK).head
    assert reader.refresh() == head
    after = commit(paused, [PutSchema(schema("u"))])
    assert (after.position, after.fenced) == (head.position + 1, head.position + 1)
    assert check_store(blobs, CLOCK).head == after
    ops = operations(blobs, lambda blobs: commit(reopen(blobs, CLOCK), [DropTag("x")]))
    assert [op.method for op in ops[-3:]] == ["create", "get", "get"]


def test_who_is_far_behind_lists() -> None:
    blobs = fenced_store(segment=256)
    near, far = reopen(FaultyBlobs(blobs), CLOCK), reopen(FaultyBlobs(blobs), CLOCK)
    writer = reopen(blobs, CLOCK)
    for history, behind, lists in ((near, follow.MOST - 8, False), (far, 60, True)):
        epochs(writer, behind - (writer.head.position - history.head.position))
        history.blobs.ops.clear()
        assert history.refresh() == writer.head
        assert any(op.method == "list" for op in history.blobs.ops) == lists


def test_a_gap_is_no_end() -> None:
    blobs = fenced_store(segment=256)
    writer, reader = reopen(blobs, CLOCK), reopen(blobs, CLOCK)
    epochs(writer, 6)
    missing = paths.log(reader.head.position + 2)
    data = blobs.get(missing)
    blobs.delete([missing])
    with pytest.raises(Exception, match="no such file, while later ones exist"):
        reader.refresh()
    blobs.create(missing, data)
    assert reader.refresh() == writer.head
