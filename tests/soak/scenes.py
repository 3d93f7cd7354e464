"""Stores whose every epoch is known beforehand, and how they are held against that."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.metrics import Counters
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.store import Writer
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.log import lease
from tests.soak.outcome import Trial
from tests.store.model import Contents
from tests.store.scene import Scene

FIRST = 7
"""Epochs that a scene begins with; behind them lie compactions, a collection, and garbage."""
SHAPES = (
    {},
    {"inline_bytes": 0, "tasks": 2},
    {"inline_bytes": 6000, "tasks": 2, "checkpoint_every": 1},
    {"checkpoint_every": 4, "inline_bytes": 0, "tasks": 2},
)


def any_scene(trial: Trial, epochs: int = 40) -> tuple[Scene, Blobs]:
    scene = Scene(trial.rng.randrange(10**6), epochs=epochs, **trial.rng.choice(SHAPES))
    return scene, scene.create(FIRST)


def in_directory(blobs: Blobs, root: Path) -> DirectoryBlobs:
    """The same store in a folder."""
    copy = DirectoryBlobs(root, sync=False, randomness=SeededRandomness(5), counters=Counters())
    for info in blobs.list(""):
        copy.create(info.name, blobs.get(info.name))
    return copy


def take(scene: Scene, blobs: Blobs, owner: str, clock: ManualClock | None = None) -> Writer:
    """As a process that starts once the lease of the one before has ended by its clock."""
    scene.clock = clock or scene.clock
    store = scene.open(blobs)
    return Writer(store, lease.take(store.history, owner))


def compare(trial: Trial, scene: Scene, blobs: Blobs, told: Iterable[int]) -> int:
    """Every epoch up to the newest one is there once, those that a writer was ``told`` of among them, and all that are retained
    have their content. Returns the newest."""
    store = scene.open(blobs)
    head = store.snapshot()
    newest = max([head.epoch, *told])
    written = map(int, head.manifest.source.offsets.split())
    trial.compare("epochs", Counter(range(1, newest + 1)), Counter(written))
    for mark in head.manifest.epochs:
        _compare_tables(trial, scene, store.at(mark.epoch))
    return head.epoch


def _compare_tables(trial: Trial, scene: Scene, snapshot: Snapshot) -> None:
    epochs = tuple(map(int, snapshot.manifest.source.offsets.split()))
    for name, seen in scene.seen(epochs).items():
        rows = snapshot.table(name).to_arrow().to_pylist()
        found = Counter(_line(seen.table.entry_of(row), seen.table.values_of(row)) for row in rows)
        trial.compare(f"{name} of epoch {snapshot.epoch}", _bag(seen.contents), found)


def _bag(contents: Contents) -> "Counter[str]":
    return Counter(_line(entry, values) for entry, values in contents.items())


def _line(entry: object, values: dict[int, object]) -> str:
    return f"{entry}: {sorted(values.items(), key=lambda item: item[0])}"
