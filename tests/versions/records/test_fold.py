"""The pure fold: what each update changes, and what it refuses."""

import random

import msgspec
import pytest

from floodplain.tiers import paths
from floodplain.versions.records import groups
from floodplain.versions.records.edit import (
    AdvanceHorizon,
    AdvancePublished,
    CommitEpoch,
    DropEpochs,
    DropTable,
    DropTag,
    Edit,
    PutSchema,
    ReleaseLease,
    RenameTable,
    ReplaceRuns,
    SetTag,
    SourcePosition,
    TakeLease,
    Update,
)
from floodplain.versions.records.manifest import REMEMBERED_EDITS, BrokenHistory, EpochMark, Lease, Manifest, apply
from floodplain.versions.records.vouched import FileSum
from tests.versions.world import GROUPS, run, schema

EMPTY = Manifest("s", 16)
STAGED = paths.staged(1, "1-3-0", "op", "main", "0")


def edit(manifest: Manifest, *updates: Update, token: int = 0, expires_ms: int = 0) -> Edit:
    position = manifest.position + 1
    return Edit("s", position, manifest.chain, f"n{position}", position * 10, token, updates, expires_ms)


def fold(manifest: Manifest, *updates: Update, token: int = 0, expires_ms: int = 0) -> Manifest:
    return apply(manifest, edit(manifest, *updates, token=token, expires_ms=expires_ms), f"c{manifest.position + 1}")


def summary(manifest: Manifest) -> str:
    """What a golden compares, one line for each part."""
    lines = [
        f"position {manifest.position} chain {manifest.chain} at {manifest.at_ms} epoch {manifest.epoch}",
        f"lease {manifest.lease.token} {manifest.lease.owner} until {manifest.lease.expires_ms}",
        f"published {manifest.published} horizon {manifest.horizon} watermarks {manifest.watermarks} tags {manifest.tags}",
        *(f"epoch {mark.epoch} at position {mark.position}, {mark.at_ms} ms, {mark.chain}" for mark in manifest.epochs),
        *(f"{table} v{versions[-1].id}" for table, versions in manifest.schemas.items()),
        *(f"{run.object} {run.low}..{run.high} {run.groups}" for runs in manifest.runs.values() for run in runs),
    ]
    return "\n".join(lines)


def started() -> Manifest:
    manifest = fold(EMPTY, PutSchema(schema("t")), TakeLease(1, "me", 500))
    manifest = fold(manifest, CommitEpoch(1, (run("runs/a", 1, 1),), watermarks={"w": 7}), token=1, expires_ms=900)
    return fold(manifest, CommitEpoch(2, (run("runs/b", 2, 2),)), SetTag("gold", 1), AdvancePublished(1))


def test_golden() -> None:
    manifest = started()
    assert summary(manifest) == (
        "position 3 chain c3 at 30 epoch 2\n"
        "lease 1 me until 900\n"
        "published 1 horizon 0 watermarks {'w': 7} tags {'gold': 1}\n"
        "epoch 1 at position 2, 20 ms, c2\n"
        "epoch 2 at position 3, 30 ms, c3\n"
        "t v1\n"
        "runs/b 2..2 ((0, 16),)\n"
        "runs/a 1..1 ((0, 16),)"
    )
    half = ((0, 8),)
    manifest = fold(manifest, ReplaceRuns("t", half, ("runs/a@0", "runs/b@0"), (run("runs/c", 1, 2, half),)), AdvanceHorizon(2))
    manifest = fold(manifest, CommitEpoch(3, ()), DropTag("gold"), DropTag("none"), DropEpochs((1,)), PutSchema(schema("t", 2)))
    assert summary(manifest) == (
        "position 5 chain c5 at 50 epoch 3\n"
        "lease 1 me until 900\n"
        "published 1 horizon 2 watermarks {'w': 7} tags {}\n"
        "epoch 2 at position 3, 30 ms, c3\n"
        "epoch 3 at position 5, 50 ms, c5\n"
        "t v2\n"
        "runs/c 1..2 ((0, 8),)\n"
        "runs/b 2..2 ((8, 16),)\n"
        "runs/a 1..1 ((8, 16),)"
    )
    assert manifest.nonces == tuple((n, f"n{n}") for n in range(1, 6))


def test_the_fold_does_not_change_what_it_is_given() -> None:
    manifest = started()
    copy = msgspec.msgpack.encode(manifest)
    fold(manifest, CommitEpoch(3, (run("runs/x", 3, 3),), watermarks={"w": 9}), SetTag("t", 2), PutSchema(schema("u")))
    assert msgspec.msgpack.encode(manifest) == copy


def test_the_newest_epoch_brings_its_own_source_position_and_outputs() -> None:
    manifest = fold(started(), CommitEpoch(3, (), source=SourcePosition("q", 4, "o"), outputs=(STAGED,)))
    assert (manifest.source, manifest.outputs) == (SourcePosition("q", 4, "o"), (STAGED,))
    assert fold(manifest, CommitEpoch(4, ())).outputs == ()


def test_what_sources_have_noted_adds_up() -> None:
    """Until it is to be forgotten; an epoch without rows leaves it as it is."""
    noted = SourcePosition("q", 4, "o", {"sources/0/3": "three", "sources/0/4": "four"})
    manifest = fold(fold(started(), CommitEpoch(3, (), source=noted)), CommitEpoch(4, ()))
    assert manifest.source == noted
    more = SourcePosition("q", 5, "p", {"sources/0/5": "five"}, ("sources/0/3",))
    manifest = fold(manifest, CommitEpoch(5, (), source=more))
    assert manifest.source == SourcePosition("q", 5, "p", {"sources/0/4": "four", "sources/0/5": "five"})
    whole = SourcePosition("q", 6, "r", {"sources/0/6.compact": "six"})
    manifest = fold(manifest, CommitEpoch(6, (), source=whole))
    assert manifest.source == whole, "what replaces all before it"


def test_all_outputs_of_an_epoch_are_vouched_for_or_none_is() -> None:
    sums = (FileSum(1, 2), FileSum(3, 4))
    manifest = fold(started(), CommitEpoch(3, (), outputs=(STAGED, STAGED), sums=sums))
    assert manifest.sums == sums and fold(manifest, CommitEpoch(4, ())).sums == ()
    assert fold(started(), CommitEpoch(3, (), outputs=(STAGED, STAGED))).sums == ()
    with pytest.raises(BrokenHistory, match="checksums of 2 outputs, or none"):
        fold(started(), CommitEpoch(3, (), outputs=(STAGED, STAGED), sums=sums[:1]))


def test_a_lease_is_renewed_by_edits_under_it_and_ends_when_released() -> None:
    manifest = started()
    assert fold(manifest, DropTag("x"), token=1, expires_ms=950).lease == Lease(1, "me", 950, length_ms=910)
    assert fold(manifest, DropTag("x"), expires_ms=950).lease == Lease(1, "me", 900, length_ms=880)
    released = fold(manifest, ReleaseLease(1), token=1, expires_ms=950)
    assert released.lease == Lease(1, "me", 0, length_ms=910)
    assert fold(released, DropTag("x"), token=1, expires_ms=960).lease == Lease(1, "me", 0, length_ms=910)
    assert fold(released, TakeLease(2, "you", 70)).lease == Lease(2, "you", 70, length_ms=20)
    assert fold(released, TakeLease(2, "you", 7)).lease == Lease(2, "you", 7), "an end in the past has no length"


def test_nonces_are_forgotten_at_last() -> None:
    manifest = EMPTY
    for _ in range(REMEMBERED_EDITS + 5):
        manifest = fold(manifest, DropTag("x"))
    assert len(manifest.nonces) == REMEMBERED_EDITS
    assert manifest.nonces[-1] == (manifest.position, f"n{manifest.position}")


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (CommitEpoch(2, ()), "epoch 3"),
        (CommitEpoch(4, ()), "epoch 3"),
        (CommitEpoch(3, (msgspec.structs.replace(run("runs/x", 3, 3), table="u"),)), "a run of a known table"),
        (CommitEpoch(3, (), watermarks={"w": 6}), "watermark w from 7 up"),
        (PutSchema(schema("t", 3)), "schema 2 of t"),
        (PutSchema(schema("u", 2)), "schema 1 of u"),
        (ReplaceRuns("t", GROUPS, ("x@0",), ()), "replaced runs that are there"),
        (ReplaceRuns("u", GROUPS, ("runs/a@0",), ()), "replaced runs that are there"),
        (TakeLease(1, "you", 1), "lease token 2"),
        (TakeLease(3, "you", 1), "lease token 2"),
        (ReleaseLease(2), "lease token 1"),
        (SetTag("x", 9), "a tag on a retained epoch"),
        (DropEpochs((2,)), "the newest epoch kept"),
        (DropEpochs((1,)), "tagged epochs kept"),
        (AdvanceHorizon(4), "a horizon from 0 to 3"),
        (AdvanceHorizon(-1), "a horizon from 0 to 3"),
        (AdvancePublished(0), "published from 1 up"),
        (AdvancePublished(3), "published from 1 up"),
    ],
    ids=lambda value: str(value).partition("(")[0] if not isinstance(value, str) else "",
)
def test_an_update_that_does_not_fit_is_refused(update: Update, expected: str) -> None:
    with pytest.raises(BrokenHistory) as caught:
        fold(started(), update)
    assert caught.value.args[0] == expected


def test_progress_never_goes_back() -> None:
    manifest = fold(started(), AdvanceHorizon(3), AdvancePublished(2))
    for update in (AdvanceHorizon(2), AdvancePublished(1)):
        with pytest.raises(BrokenHistory):
            fold(manifest, update)


def test_only_the_first_epoch_may_begin_at_a_number_of_its_own() -> None:
    begun = fold(EMPTY, CommitEpoch(42, (), begins=True), AdvancePublished(42))
    assert (begun.epoch, begun.published, [mark.epoch for mark in begun.epochs]) == (42, 42, [42])
    assert fold(begun, CommitEpoch(43, ())).epoch == 43
    for refused in (CommitEpoch(45, (), begins=True), CommitEpoch(1, ())):
        with pytest.raises(BrokenHistory, match="epoch 43"):
            fold(begun, refused)
    for refused in (CommitEpoch(42, ()), CommitEpoch(0, (), begins=True), CommitEpoch(-3, (), begins=True)):
        with pytest.raises(BrokenHistory, match="epoch 1"):
            fold(EMPTY, refused)


def test_a_run_begun_at_or_below_the_horizon_cannot_be_named_any_more() -> None:
    manifest = fold(started(), AdvanceHorizon(3))
    late, timely = (run(f"runs/{start:020d}-w-x.run", 3, 3) for start in (3, 4))
    for update in (CommitEpoch(3, (late,)), ReplaceRuns("t", GROUPS, (), (late,))):
        with pytest.raises(BrokenHistory, match="horizon 3"):
            fold(manifest, update)
    assert fold(manifest, CommitEpoch(3, (timely,))).epoch == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"store": "other"}, "store s"),
        ({"position": 3}, "position 4"),
        ({"position": 5}, "position 4"),
        ({"previous": "c2"}, "predecessor c3"),
        ({"token": 2}, "an edit under lease 1"),
    ],
)
def test_an_edit_from_elsewhere_is_refused(change: dict[str, object], expected: str) -> None:
    manifest = started()
    with pytest.raises(BrokenHistory) as caught:
        apply(manifest, msgspec.structs.replace(edit(manifest, DropTag("x")), **change), "c")
    assert caught.value.args[0] == expected


def test_an_edit_under_an_older_lease_is_refused() -> None:
    manifest = fold(started(), TakeLease(2, "you", 900))
    with pytest.raises(BrokenHistory) as caught:
        fold(manifest, DropTag("x"), token=1)
    assert caught.value.args == ("an edit under lease 2", "one under lease 1")
    assert fold(manifest, DropTag("x"), token=2).lease.token == 2


def test_recency_is_by_interval_not_by_place() -> None:
    manifest = fold(started(), CommitEpoch(3, (run("runs/c", 3, 3),)))
    manifest = fold(manifest, ReplaceRuns("t", GROUPS, ("runs/a@0", "runs/b@0"), (run("runs/d", 1, 2),)))
    assert [run.object for run in manifest.runs["t"]] == ["runs/c", "runs/d"]


def test_marks() -> None:
    manifest = started()
    assert manifest.mark(1) == EpochMark(1, 2, 20, "c2")
    assert manifest.mark(3) is None
    assert manifest.objects() == {"runs/a", "runs/b"}
    assert manifest.schema("none") is None


def test_group_arithmetic_is_that_of_sets() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        a, b = ({group for group in range(24) if rng.random() < 0.5} for _ in range(2))
        assert groups.intersect(groups.from_members(a), groups.from_members(b)) == groups.from_members(a & b)
        assert groups.subtract(groups.from_members(a), groups.from_members(b)) == groups.from_members(a - b)
        assert groups.size(groups.from_members(a)) == len(a)


def test_a_dropped_table_goes_with_its_runs_and_may_be_made_anew() -> None:
    dropped = fold(started(), DropTable("t"))
    assert (dropped.schemas, dropped.runs) == ({}, {})
    assert fold(dropped, PutSchema(schema("t"))).schemas["t"][-1].id == 1
    with pytest.raises(BrokenHistory):
        fold(dropped, DropTable("t"))
    with pytest.raises(BrokenHistory):
        fold(dropped, CommitEpoch(3, (run("runs/x", 3, 3),)))


def test_counts_add_up() -> None:
    manifest = fold(EMPTY, CommitEpoch(1, (), counts={"a__late": 2}))
    manifest = fold(manifest, CommitEpoch(2, ()))
    manifest = fold(manifest, CommitEpoch(3, (), counts={"a__late": 3, "b__late": 1}))
    assert manifest.counts == {"a__late": 5, "b__late": 1}
    with pytest.raises(BrokenHistory):
        fold(manifest, CommitEpoch(4, (), counts={"a__late": -1}))


def test_a_renamed_table_keeps_its_versions_and_runs_and_knows_what_it_was_written_as() -> None:
    manifest = fold(started(), PutSchema(schema("t", 2)), PutSchema(schema("other")))
    there = fold(manifest, RenameTable("t", "u"))
    assert there.schemas == {"other": (schema("other"),), "u": (schema("u"), schema("u", 2))}
    change = msgspec.structs.replace
    assert there.runs == {"u": tuple(change(ref, table="u", written_as="t") for ref in manifest.runs["t"])}
    again = fold(there, RenameTable("u", "v"))
    assert again.runs == {"v": tuple(change(ref, table="v") for ref in there.runs["u"])}, "as it was written at first"
    assert fold(manifest, RenameTable("other", "free")).runs == manifest.runs, "one without runs has none afterwards"
    for table, to in (("none", "u"), ("t", "other"), ("t", "t")):
        with pytest.raises(BrokenHistory, match=f"a known table renamed to a free name, not {to}"):
            fold(manifest, RenameTable(table, to))


class Unheard(msgspec.Struct, frozen=True):
    """An update of no kind that there is."""


def test_an_update_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BrokenHistory) as caught:
        fold(started(), Unheard())
    assert caught.value.args == ("a known update", "Unheard")
