"""A state folder from elsewhere: names in its records that lead out of it, or to what they should not mean.

Each kind of bad name stands at each place where a record has one. The file is refused as it is folded, so before anything is
read, written or deleted by that name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from floodplain.clock import SeededRandomness
from floodplain.errors import Corrupt
from floodplain.metrics import Counters
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.records import frame
from floodplain.versions.records.edit import (
    CommitEpoch,
    Content,
    DropTag,
    PutSchema,
    RenameTable,
    ReplaceRuns,
    RestoreEpoch,
    RunRef,
    SeenRef,
    SetTag,
    SourcePosition,
    TakeLease,
    Update,
)
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.vouched import FileSum
from tests.store import forge

TABLE = value_table("t", {"user": pa.string()}, {"n": pa.int64()})
CLIMBS = ["", ".", "..", "../x", "../../x", "a/../../x", "/etc/x", "//x", "a//b", "a/", "x\0y", "a\nb", "a\\b", "..\\x", "C:\\x"]
CLIMBS += ["~/x", "%2e%2e/x", "é", "a b", ".hidden", "a" * 5000]
OURS = ["format", "log/00000000000000000001.edit", "manifest/00000000000000000001.manifest", "pins/a.pin", "tmp/x"]


def names(prefix: str) -> list[str]:
    return [*(prefix + climb for climb in CLIMBS), *(climb for climb in CLIMBS), *OURS]


RUNS, STAGED, SOURCES = names(paths.RUNS), names(paths.STAGED), names(paths.SOURCES)
STAGED += [paths.staged(1, "1-1-0", "op", "main", climb) for climb in CLIMBS if climb not in ("", ".", "..", ".hidden")]
WORDS = [*CLIMBS, "A", "a" * 65]


def run_called(store: Store, name: str) -> RunRef:
    return msgspec.structs.replace(store.head.runs["t"][0], object=name)


def restored(store: Store, **content: Any) -> RestoreEpoch:
    head = store.head
    return RestoreEpoch(head.epoch + 1, head.epoch, head.epochs[-1].chain, Content(schemas=head.schemas, **content))


Forged = Callable[[Store, str], Update]
UPDATES: dict[str, tuple[list[str], Forged]] = {
    "run": (RUNS, lambda store, name: CommitEpoch(2, (run_called(store, name),))),
    "compacted": (RUNS, lambda store, name: ReplaceRuns("t", ((0, 16),), (), (run_called(store, name),))),
    "restored run": (RUNS, lambda store, name: restored(store, runs={"t": (run_called(store, name),)})),
    "staged": (STAGED, lambda _, name: CommitEpoch(2, (), outputs=(name,))),
    "source": (SOURCES, lambda _, name: CommitEpoch(2, (), SourcePosition("q", 1, "", {name: "x"}))),
    "restored source": (SOURCES, lambda store, name: restored(store, source=SourcePosition("q", 1, "", {name: "x"}))),
    "tag": (WORDS, lambda _, name: SetTag(name, 1)),
    "dropped tag": (WORDS, lambda _, name: DropTag(name)),
    "owner": (WORDS, lambda _, name: TakeLease(2, name, 0)),
    "table": (WORDS, lambda _, name: PutSchema(msgspec.structs.replace(TABLE, table=name))),
    "renamed table": (WORDS, lambda _, name: RenameTable("t", name)),
}
MANIFESTS: dict[str, tuple[list[str], Callable[[Manifest, str], dict[str, Any]]]] = {
    "run": (RUNS, lambda head, name: {"runs": {"t": (msgspec.structs.replace(head.runs["t"][0], object=name),)}}),
    "staged": (STAGED, lambda _, name: {"outputs": (name,)}),
    "source": (SOURCES, lambda _, name: {"source": SourcePosition("q", 1, "", {name: "x"})}),
    "left source": (SOURCES, lambda _, name: {"left": (SourcePosition("q", 1, "", {name: "x"}),)}),
    "tag": (WORDS, lambda _, name: {"tags": {name: 1}}),
    "table": (WORDS, lambda head, name: {"schemas": head.schemas | {name: head.schemas["t"]}}),
}


def seen_in(name: str, source: str = "sources/0") -> SourcePosition:
    some = FileSum(1, 1)
    return SourcePosition("q", 1, "", seen=(SeenRef(source, 0, 0, name, some, some),))


def folder_seen(name: str) -> SourcePosition:
    return seen_in(paths.seen(9, "1-1-0", "seen0"), name)


def replacing(name: str) -> SourcePosition:
    return SourcePosition("q", 1, "", compacts={name: FileSum(1, 1)})


POSITIONS: dict[str, tuple[list[str], Callable[[str], SourcePosition]]] = {
    "seen": ([*names(paths.SEEN), "runs/x.run"], seen_in),
    "seen folder": ([*SOURCES, "sources", "sources/0/1"], folder_seen),
    "replacing": ([*SOURCES, "sources/0/1", "sources/0/x.compact", "sources/1.compact"], replacing),
}
for place, (bad_names, position_of) in POSITIONS.items():
    UPDATES[place] = bad_names, lambda _, name, made=position_of: CommitEpoch(2, (), made(name))
    UPDATES[f"restored {place}"] = bad_names, lambda store, name, made=position_of: restored(store, source=made(name))
    MANIFESTS[place] = bad_names, lambda _, name, made=position_of: {"source": made(name)}
    MANIFESTS[f"left {place}"] = bad_names, lambda _, name, made=position_of: {"left": (made(name),)}


def written() -> Store:
    store = forge.with_table(TABLE)
    forge.write(store, "t", ("put", {"user": ["a"], "n": [1]}))
    return store


@pytest.mark.parametrize("place", UPDATES)
def test_an_edit_with_a_name_that_is_none(place: str) -> None:
    bad, forged = UPDATES[place]
    for name in bad:
        store = written()
        forge.append(store, forged(store, name))
        with pytest.raises(Corrupt, match="the name of") as caught:
            forge.reopen(store.history.blobs)
        assert caught.value.file == paths.log(store.head.position + 1), name
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("place", MANIFESTS)
def test_a_manifest_checkpoint_with_a_name_that_is_none(place: str) -> None:
    bad, forged = MANIFESTS[place]
    for name in bad:
        store = written()
        head = store.head
        ahead = msgspec.structs.replace(head, position=head.position + 1, **forged(head, name))
        file = paths.manifest(ahead.position)
        store.history.blobs.create(file, frame.encode(frame.Kind.MANIFEST, ahead))
        with pytest.raises(Corrupt, match="the name of") as caught:
            forge.reopen(store.history.blobs)
        assert caught.value.file == file, name


@pytest.mark.parametrize("climb", [*CLIMBS, "-"])
def test_a_store_whose_id_would_become_a_path(climb: str) -> None:
    """Names of output files begin with it."""
    store = written()
    format_ = msgspec.structs.replace(store.history.format, store=climb)
    store.history.blobs.put(paths.FORMAT, frame.encode(frame.Kind.FORMAT, format_))
    with pytest.raises(Corrupt, match="format"):
        forge.reopen(store.history.blobs)


def test_names_that_we_make_are_taken_in() -> None:
    store = written()
    staged = paths.staged(7, "1-2-0", "my_operator", "main", "12-0123456789abcdef")
    notes = {"sources/0/0": "", "sources/1/9.compact": "", "batches/../any text, since it is no file\0": "done"}
    run, source = run_called(store, "runs/any.run"), SourcePosition("q", 1, "", notes)
    forge.append(store, CommitEpoch(2, (run,), source, outputs=(staged,)))
    assert forge.reopen(store.history.blobs).head.outputs == (staged,)


def test_nothing_outside_is_touched_and_nothing_of_the_store_is_deleted(tmp_path: Path) -> None:
    """The edit names files that are there: one of the store, and one beside it."""
    beside = tmp_path / "beside.run"
    beside.write_text("mine")
    root = tmp_path / "state"
    store = forge.with_table(TABLE, DirectoryBlobs(root, sync=False, randomness=SeededRandomness(3), counters=Counters()))
    for name in ("../beside.run", str(beside), "staged/../../beside.run", paths.FORMAT, "staged/../format"):
        forge.append(store, CommitEpoch(1, (), outputs=(name,)))
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(Corrupt):
            forge.reopen(store.history.blobs)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        (root / paths.log(store.head.position + 1)).unlink()
