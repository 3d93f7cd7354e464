"""Going back to an epoch: its content is that of a new one, at once or not at all, and nothing that it needs is deleted."""

from typing import Any

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import BadInput, Conflict, Corrupt, Fenced, LeaseHeld, SnapshotExpired
from floodplain.settings import RetentionSettings
from floodplain.store.compaction import policy
from floodplain.store.compaction.compactor import compact
from floodplain.store.compaction.policy import Proposal
from floodplain.store.rollback import check_readable
from floodplain.store.rows.definition import Column, value_table
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.versions.log.commit import commit
from floodplain.versions.records.edit import AdvancePublished, DropEpochs, DropTable, RestoreEpoch, SourcePosition
from floodplain.versions.records.manifest import content_of
from floodplain.versions.records.schema import TableSchema
from tests.store import forge

KEY = {"k": pa.int64()}


def table(name: str = "t", ttl_ms: int = 0, **values: Any) -> TableSchema:
    return value_table(name, KEY, values or {"a": pa.int64()}, ttl_ms=ttl_ms)


def put(store: Store, keys: list[int], value: int, **more: Any) -> None:
    forge.write(store, "t", ("put", {"k": keys, "a": [value] * len(keys)}), **more)


def written(epochs: int = 3, **more: Any) -> Store:
    """Epoch n has the keys up to n, all of value n, and has read batch n - 1."""
    store = forge.with_table(table(**more))
    for epoch in range(1, epochs + 1):
        place = SourcePosition("q", epoch - 1, f"v1\n{{}}\n{epoch - 1}", {f"sources/0/{epoch - 1}": "files"})
        more_of = {"watermarks": {"event_time": epoch * 1000}, "counts": {"late": epoch}}
        put(store, list(range(1, epoch + 1)), epoch, now_ms=forge.NOW_MS + 100 * epoch, source=place, **more_of)
    return store


def contents(store: Store, epoch: int | None = None) -> dict[int, int]:
    view = (store.snapshot() if epoch is None else store.at(epoch)).table("t")
    return {row["k"]: row["a"] for row in view.to_arrow().to_pylist()}


def define(store: Store, schema: TableSchema) -> None:
    with store.writer("test") as writer:
        writer.define(schema)


def test_all_that_an_epoch_held_is_there_again_under_a_new_number() -> None:
    store = written()
    store.tag("good", 1)
    told = store.rollback(tag="good")
    head, past = forge.reopen(store.history.blobs).head, store.history.at(1)
    assert (told.epoch, told.restored, told.before, head.epoch) == (4, 1, 3, 4)
    assert content_of(head) == content_of(past)
    assert head.source.batch_id == 0 and head.source.sources == {"sources/0/0": "files"}
    assert head.watermarks["event_time"] == 1000 and head.counts == {"late": 1}
    assert (head.tags, head.assignment, head.horizon) == ({"good": 1}, past.assignment, past.horizon)
    assert contents(store) == {1: 1}
    assert [contents(store, epoch) for epoch in (1, 2, 3)] == [{1: 1}, {1: 2, 2: 2}, {1: 3, 2: 3, 3: 3}]
    assert [place.batch_id for place in head.left] == [2]


def test_it_is_undone_by_going_back_to_the_epoch_before() -> None:
    store = written()
    before = content_of(store.head)
    store.rollback(1)
    told = store.rollback(3)
    assert content_of(store.head) == before and told.epoch == 5
    assert contents(store) == {1: 3, 2: 3, 3: 3}


def test_the_state_goes_on_from_there() -> None:
    store = written()
    store.rollback(1)
    put(store, [9], 9, source=SourcePosition("q", 1, "other"), watermarks={"event_time": 1500})
    assert contents(store) == {1: 1, 9: 9}
    assert store.head.left == (), "it has read on"
    list(store.compact(full=True))
    assert contents(store) == {1: 1, 9: 9} and contents(store, 3) == {1: 3, 2: 3, 3: 3}
    assert store.verify().good


def test_a_dry_run_tells_and_changes_nothing() -> None:
    store = written()
    position = store.head.position
    told = store.rollback(1, dry_run=True)
    assert store.history.refresh().position == position
    (change,) = told.tables
    assert (told.dry_run, told.epoch, told.batch_before, told.batch_after) == (True, 4, 2, 0)
    assert (change.name, change.runs_before, change.runs_after, change.rows_before, change.rows_after) == ("t", 3, 1, 6, 1)


def test_what_cannot_be_gone_back_to_is_refused() -> None:
    store = written()
    for epoch, error in [(3, BadInput), (4, BadInput), (0, SnapshotExpired)]:
        with pytest.raises(error):
            store.rollback(epoch)
    for given in ({}, {"epoch": 1, "tag": "x"}, {"tag": "x"}):
        with pytest.raises(BadInput):
            store.rollback(**given)
    commit(store.history, [DropEpochs((1,))])
    with pytest.raises(SnapshotExpired, match="epoch 1 is no longer retained"):
        store.rollback(1)
    assert contents(store) == {1: 3, 2: 3, 3: 3} and store.head.epoch == 3


def test_an_epoch_whose_files_are_not_whole_is_refused() -> None:
    for damage in ("gone", "cut", "footer"):
        store = written()
        blobs, (run,) = store.history.blobs, store.history.at(1).runs["t"]
        data = blobs.get(run.object).to_pybytes()
        blobs.delete([run.object])
        if damage == "cut":
            blobs.create(run.object, data[:-1])
        elif damage == "footer":
            blobs.create(run.object, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        with pytest.raises(Corrupt, match=run.object):
            forge.reopen(blobs).rollback(1)
        assert forge.reopen(blobs).head.epoch == 3


def test_a_live_lease_is_respected_unless_forced() -> None:
    store = written()
    driver = store.writer("driver")
    with pytest.raises(LeaseHeld, match=r"'driver' .*holds lease"):
        store.rollback(1)
    epoch = driver.epoch()
    assert store.rollback(1, force=True).epoch == 4
    with pytest.raises(Fenced):
        epoch.commit()
    assert contents(store) == {1: 1}
    assert not store.head.lease.expires_ms, "and let go"


def test_an_epoch_that_was_begun_before_does_not_fit_behind_it() -> None:
    store = written()
    with store.writer("test") as writer:
        epoch = writer.epoch()
        writer.rollback(1)
        with pytest.raises(Conflict, match="last epoch is 4"):
            epoch.commit()


def test_output_that_is_not_published_is_given_up_only_if_that_is_said() -> None:
    store = written()
    staged = paths.staged(1, "1-4-0", "op", "main", "0")
    put(store, [1], 4, outputs=[staged])
    with pytest.raises(BadInput, match="epoch 4 has output that was not published"):
        store.rollback(1)
    assert store.rollback(1, drop_output=True).unpublished == (staged,)
    assert store.head.outputs == ()
    put(store, [1], 5, outputs=[staged])
    commit(store.history, [AdvancePublished(6)])
    back = store.rollback(1)
    assert (back.unpublished, back.published) == ((), 6)
    assert store.head.published == 6, "which never goes back"


def test_definitions_go_on_so_that_no_id_is_used_twice() -> None:
    store = written()
    define(store, table(a=pa.int64(), b=Column(pa.int64(), default=5)))
    put(store, [1], 7)
    store.rollback(1)
    assert contents(store) == {1: 1}
    assert [field.name for field in store.head.schema("t").fields] == ["k", "a"]
    define(store, table(a=pa.int64(), c=Column(pa.string(), default="x")))
    assert forge.rows(store, "t") == [{"k": 1, "a": 1, "c": "x"}]
    ids = {field.id: field.name for schema in store.head.schemas["t"] for field in schema.fields}
    assert ids == {1: "k", 2: "a", 3: "b", 4: "c"}
    put(store, [2], 8)
    for older, sides in ((4, (0, 2, 1)), (5, (1, 0, 0))):
        found = list(store.diff("t", older, 6))
        assert tuple(sum(len(getattr(change, side)) for change in found) for side in ("added", "after", "deleted")) == sides


def test_fields_inside_columns_go_on_too() -> None:
    store = forge.with_table(table(a=pa.struct([("x", pa.int64())])))
    forge.write(store, "t", ("put", {"k": [1], "a": [{"x": 1}]}))
    for more in ("y", "z"):
        define(store, table(a=pa.struct([("x", pa.int64()), (more, pa.int64())])))
        forge.write(store, "t", ("put", {"k": [2], "a": [{"x": 1, more: 2}]}))
    store.rollback(1)
    define(store, table(a=pa.struct([("x", pa.int64()), ("y", pa.int64())])))
    (field,) = store.head.schema("t").values
    assert field.inner == (1, 4)
    assert forge.rows(store, "t") == [{"k": 1, "a": {"x": 1, "y": None}}]


def test_epochs_that_cannot_be_compared_say_so() -> None:
    store = forge.with_table(table(a=pa.int8()))
    forge.write(store, "t", ("put", {"k": [1], "a": pa.array([1], pa.int8())}))
    define(store, table(a=pa.int64()))
    put(store, [1], 1 << 40)
    store.rollback(1)
    with pytest.raises(BadInput, match="epoch 3 cannot be compared with that of epoch 2"):
        list(store.diff("t", 2, 3))


def test_tables_that_were_dropped_made_or_made_anew_are_as_they_were() -> None:
    store = written(1)
    define(store, table("later"))
    commit(store.history, [DropTable("t")])
    define(store, table(z=pa.string()))
    forge.write(store, "t", ("put", {"k": [1], "z": ["?"]}))
    told = store.rollback(1)
    assert contents(store) == {1: 1} and set(store.head.schemas) == {"t"}
    changed = {change.name: (change.dropped, change.redefined) for change in told.tables}
    assert changed == {"later": (True, False), "t": (False, True)}
    store.rollback(2)
    assert forge.rows(store, "t") == [{"k": 1, "z": "?"}] and set(store.head.schemas) == {"t", "later"}


FEW = forge.StoreSettings(
    key_groups=forge.GROUPS, sync=False, retry=forge.SETTINGS.retry, retention=RetentionSettings(newest=1, every_ms=())
)


def test_its_files_stay_although_their_writers_are_below_the_horizon() -> None:
    store = written()
    list(store.compact(full=True))
    with store.writer("test") as writer:
        writer.collect_garbage()
        writer.rollback(1)
        assert store.head.horizon > 0
    few = forge.reopen(store.history.blobs, FEW)
    with few.writer("test") as writer:
        collected = writer.collect_garbage()
    assert set(collected.epochs) == {1, 2, 3} and collected.runs
    assert contents(forge.reopen(store.history.blobs)) == {1: 1}
    assert few.verify().good


def test_an_epoch_that_is_forgotten_on_the_way_is_not_gone_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection gets in between the look at its files and the edit, before or after the files are gone."""
    for delete in (False, True):
        store = written()
        other = forge.reopen(store.history.blobs, FEW, ManualClock(forge.NOW_MS + 10**9))

        def checked(history: Any, manifest: Any, other: Store = other, delete: bool = delete) -> None:
            other.collect_garbage()
            if delete:
                check_readable(history, manifest)

        monkeypatch.setattr("floodplain.store.rollback.check_readable", checked)
        with pytest.raises(SnapshotExpired, match="cannot go back to epoch 1"):
            store.rollback(1)
        assert store.head.epoch == 3 and contents(forge.reopen(store.history.blobs)) == {1: 3, 2: 3, 3: 3}


def test_the_log_itself_refuses_epochs_that_are_not_retained_or_not_the_same() -> None:
    store = written()
    past = store.history.at(1)
    for update in [
        RestoreEpoch(4, 1, "other", content_of(past)),
        RestoreEpoch(5, 1, past.chain, content_of(past)),
        RestoreEpoch(4, 9, past.chain, content_of(past)),
    ]:
        with pytest.raises(Conflict, match="do not fit"):
            commit(store.history, [update])
    commit(store.history, [DropEpochs((1,))])
    with pytest.raises(Conflict, match="retained"):
        commit(store.history, [RestoreEpoch(4, 1, past.chain, content_of(past))])


def test_a_compaction_beside_it_does_not_matter() -> None:
    store = written()
    list(store.compact(full=True))
    store.rollback(2)
    list(store.compact(full=True))
    assert contents(store) == {1: 2, 2: 2} and contents(store, 3) == {1: 3, 2: 3, 3: 3}


def planned_compaction(store: Store, runs: slice) -> Any:
    manifest = store.history.refresh()
    chosen = manifest.runs["t"][runs]
    proposal = Proposal("t", policy.bands(manifest, "t", 1 << 30)[0], tuple(chosen), 1)
    return lambda: compact(store.history, store.open_runs, proposal, manifest)


def test_what_had_ended_by_then_is_not_compacted_away_behind_it() -> None:
    """The runs are still there, but the watermark by which their rows had ended is not."""
    store = forge.with_table(table(ttl_ms=100, a=pa.int64()))
    put(store, [1], 1, now_ms=forge.NOW_MS)
    put(store, [2], 2, now_ms=forge.NOW_MS)
    forge.write(store, "t", now_ms=forge.NOW_MS + 500)
    assert contents(store) == {}
    carry_out = planned_compaction(store, slice(0, 2))
    store.rollback(2)
    with pytest.raises(Conflict, match="went back to an earlier epoch"):
        carry_out()
    assert contents(store) == {1: 1, 2: 2}
