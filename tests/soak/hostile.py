"""State folders from elsewhere: names that climb, links, pipes, records that lie under valid checksums. All refused."""

from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from floodplain.clock import SeededRandomness
from floodplain.metrics import Counters
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.records import frame
from floodplain.versions.retention.pins import pin
from tests.soak.outcome import Trial
from tests.store import forge
from tests.store import test_hostile as lies
from tests.store import test_hostile_names as names
from tests.tiers import test_hostile_directory as kinds

ABSURD_FIELDS = ("offset", "length", "footer_length", "footer_checksum", "object_size", "rows", "schema_id", "low", "high")


def open_folder(trial: Trial) -> None:
    trial.rng.choice([_climb, _no_file, _no_file, _lie])(trial)


def _climb(trial: Trial) -> None:
    """A name in an edit or a manifest that leads out of the folder, or to what it should not mean."""
    root = trial.folder / "state"
    beside = trial.folder / "beside.run"
    beside.write_text("mine")
    blobs = DirectoryBlobs(root, sync=False, randomness=SeededRandomness(3), counters=Counters())
    store = forge.with_table(names.TABLE, blobs)
    forge.write(store, "t", ("put", {"user": ["a"], "n": [1]}))
    file = _forge(trial, store) if trial.faulty else ""
    before = kinds.content(trial.folder)
    with trial.may_refuse(file):
        rows = forge.rows(forge.reopen(blobs), "t")
        trial.compare("rows", Counter({"('a', 1)": 1}), Counter(str((row["user"], row["n"])) for row in rows))
    trial.require(trial.refused == trial.faulty, "a name that leads elsewhere was taken in")
    trial.compare("files", Counter(map(str, before.items())), Counter(map(str, kinds.content(trial.folder).items())))


def _forge(trial: Trial, store: Store) -> str:
    """Returns the file that has the name."""
    head, rng = store.head, trial.rng
    if rng.random() < 0.5:
        place = rng.choice(sorted(names.UPDATES))
        bad, update = names.UPDATES[place]
        name = rng.choice(bad)
        forge.append(store, update(store, name))
        file = paths.log(head.position + 1)
    else:
        place = rng.choice(sorted(names.MANIFESTS))
        bad, changes = names.MANIFESTS[place]
        name = rng.choice(bad)
        ahead = msgspec.structs.replace(head, position=head.position + 1, **changes(head, name))
        file = paths.manifest(ahead.position)
        store.history.blobs.create(file, frame.encode(frame.Kind.MANIFEST, ahead))
    trial.note(f"{place} called {name[:60]!r}")
    return file


def _no_file(trial: Trial) -> None:
    """A link, pipe, socket or device in the place of a folder or a file: what it leads to is as it was, and nothing blocks."""
    root, outside = trial.folder / "state", trial.folder / "outside"
    store = forge.with_table(kinds.TABLE, kinds.blobs_at(root))
    forge.write(store, "t", ("put", {"user": ["a"], "n": [1]}))
    pin(store.history)
    for name in kinds.FOLDERS:
        (root / name).mkdir(exist_ok=True)
    if not trial.faulty:
        trial.require(kinds.refusals(root) < len(list(kinds.everything(root))), "all that is honest is refused")
        trial.compare("rows", Counter(a=1), Counter(row["user"] for row in forge.rows(store, "t") if row["user"] == "a"))
        return
    kind = trial.rng.choice(kinds.KINDS)
    place = _moved(trial, root, outside)
    try:
        kind(place, outside)
    except pytest.skip.Exception:
        kinds.link(place, outside)
    trial.note(f"{kind.__name__} as {place.relative_to(root)}")
    before, mode = kinds.content(trial.folder / "outside") if outside.is_dir() else outside.read_bytes(), place.lstat().st_mode
    for act in kinds.everything(root):
        with trial.may_refuse(place.name, place.parent.name, str(root)):
            act()
    after = kinds.content(outside) if outside.is_dir() else outside.read_bytes()
    trial.require(after == before, "what it leads to was changed")
    trial.require(place.lstat().st_mode == mode, "it was replaced")


def _moved(trial: Trial, root: Path, outside: Path) -> Path:
    """Takes a folder or a file out of the store; returns its place."""
    if trial.rng.random() < 0.5:
        place = root / trial.rng.choice(kinds.FOLDERS)
        place.rename(outside)
        (outside / "kept").write_bytes(b"kept")
        return place
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.parent.name != "tmp")
    place = trial.rng.choice(files)
    place.rename(outside)
    return place


def _lie(trial: Trial) -> None:
    """What an edit says of a run is absurd, and every checksum is right."""
    shape = trial.rng.choice(sorted(lies.TABLES))
    store = lies.store_of(shape)
    built = lies.honest(store, shape, filtered=trial.rng.random() < 0.5)
    field, value = trial.rng.choice(ABSURD_FIELDS), trial.rng.choice(lies.ABSURD)
    trial.note(f"{shape}: {field} {value}")
    forge.commit_runs(store, built, **({field: value} if trial.faulty else {}))
    blobs = store.history.blobs
    expected = Counter(map(str, _plain(lies.columns(shape))))
    with trial.may_refuse("runs/", "log/"):
        found = forge.reopen(blobs).snapshot().table("t").to_arrow()
        trial.compare("rows", expected, Counter(map(str, _plain(found))))
        lies.everything(store)


def _plain(rows: pa.Table) -> list[dict[str, object]]:
    return [dict(sorted(row.items())) for row in rows.to_pylist()]
