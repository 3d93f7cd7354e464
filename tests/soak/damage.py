"""Damage to the files of a store: before it is opened, and while a process has them open."""

import atexit
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from floodplain.clock import SeededRandomness
from floodplain.metrics import Counters
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store
from floodplain.tiers.directory import DirectoryBlobs
from tests.faults import clone
from tests.soak.outcome import Bag, Trial
from tests.store import forge
from tests.store import test_changed_on_disk as open_files
from tests.store.test_damage import SETTINGS, World, directory, flipped, folder, made, newest_edit, read

COMPACTED = 0.2
"""The share of trials in which the damaged store is compacted as well."""


def bag(rows: pa.Table) -> Bag:
    return Counter(map(repr, rows.to_pylist()))


@cache
def world_of(tier: str) -> World:
    """The same bytes in every process."""
    forge._seeds = itertools.count(1)
    if tier == "object":
        return made(forge.objects(), forge.objects())
    folders = [TemporaryDirectory(prefix=f"soak-{name}-") for name in ("store", "other")]
    for folder_ in folders:
        atexit.register(folder_.cleanup)
    return made(*(directory(Path(folder_.name)) for folder_ in folders))


def any_world(rng: random.Random) -> World:
    return world_of(rng.choice(["mapped", "object"]))


@cache
def _places(tier: str) -> dict[str, list[tuple[str, range]]]:
    """Part of a file, as a kind (``chunk``, ``filter``, ``footer, count``, ``log head`` …) → where it is."""
    world, places = world_of(tier), {}
    for name in world.files:
        for part, span in world.parts(name).items():
            kind = re.sub(r"run at \d+: |\d+", "", part).strip()
            places.setdefault(f"{folder(name)} {kind}", []).append((name, span))
    return places


@contextmanager
def replaced(world: World, files: dict[str, bytes | None]) -> Iterator[None]:
    """With these files in the place of those of the same name; None: with none."""
    for name, data in files.items():
        if data is None:
            world.blobs.delete([name])
        else:
            world.blobs.put(name, data)
    try:
        yield
    finally:
        for name in files:
            world.blobs.put(name, world.files[name])


def look(trial: Trial, world: World, damaged: tuple[str, ...], *, gone: bool = False) -> None:
    """Every retained epoch by both ways of reading, a verification, and now and then a compaction: each equal, or refused.

    A file that is ``gone`` may be one that nothing needs: then it need not be named.
    """
    with trial.may_refuse(*damaged):
        store = forge.reopen(world.blobs, SETTINGS)
        for epoch in world.manifests:
            with trial.may_refuse(*damaged):
                snapshot = store.at(epoch)
                for name, rows in read(snapshot, snapshot.tables).items():
                    trial.compare(f"{name} of epoch {epoch}", bag(world.content[epoch][name]), bag(rows))
        named = {damage.file for damage in store.verify().damages}
        trial.require(named <= set(damaged) if trial.faulty else not named, f"verify names {named}, damaged: {damaged}")
        trial.require(not trial.faulty or gone or trial.refused or bool(named), f"verify does not name {damaged}")
    if trial.rng.random() < COMPACTED:
        _compact(trial, world, damaged)


def _compact(trial: Trial, world: World, damaged: tuple[str, ...]) -> None:
    with trial.may_refuse(*damaged):
        store = forge.reopen(clone(world.blobs), SETTINGS)
        list(store.compact(full=True))
        newest = max(world.content)
        for name, rows in read(store.snapshot(), store.snapshot().tables).items():
            trial.compare(f"{name}, compacted", bag(world.content[newest][name]), bag(rows))


def flip(trial: Trial) -> None:
    """One to three bits of one part of a file, every kind of part as often as any other."""
    tier = trial.rng.choice(["mapped", "object"])
    world, places = world_of(tier), _places(tier)
    kind = trial.rng.choice(sorted(places))
    name, span = trial.rng.choice(places[kind])
    data = world.files[name]
    bits = trial.rng.sample(range(8 * span.start, 8 * span.stop), min(trial.rng.choice((1, 1, 1, 2, 3)), 8 * len(span)))
    for bit in bits:
        data = flipped(data, bit)
    trial.note(f"{tier}: bits {bits} of {name} ({kind})")
    with replaced(world, {name: data} if trial.faulty else {}):
        look(trial, world, (name,))


def replace(trial: Trial) -> None:
    """A file cut, longer, gone, exchanged for another, for an older one, or for one of another store."""
    world = any_world(trial.rng)
    if trial.rng.random() < 0.05:
        _take_for_another_store(trial, world)
        return
    how = trial.rng.choice(sorted(_WAYS))
    files = _WAYS[how](world, trial.rng)
    trial.note(f"{how}: {sorted(files)}, {[None if data is None else len(data) for data in files.values()]} bytes")
    with replaced(world, files if trial.faulty else {}):
        look(trial, world, tuple(files), gone=None in files.values())


def _take_for_another_store(trial: Trial, world: World) -> None:
    """With the file that names another store, all others are strangers."""
    trial.note("the format of another store")
    with replaced(world, {"format": world.others["format"][0]} if trial.faulty else {}):
        look(trial, world, tuple(world.files), gone=True)
    trial.require(trial.refused == trial.faulty, "a store of another id was opened")


def _any(world: World, rng: random.Random) -> str:
    return rng.choice(sorted(world.files))


def _cut(world: World, rng: random.Random) -> dict[str, bytes | None]:
    name = _any(world, rng)
    data = world.files[name]
    return {name: data[: rng.choice((0, 1, len(data) - 1, rng.randrange(len(data))))]}


def _longer(world: World, rng: random.Random) -> dict[str, bytes | None]:
    name = _any(world, rng)
    data = world.files[name]
    return {name: data + rng.choice((b"\0", rng.randbytes(64), data))}


def _gone(world: World, rng: random.Random) -> dict[str, bytes | None]:
    """Not the newest edit, which nothing can tell from one that was never made, nor the format: without it this is no store."""
    return {rng.choice(sorted(world.files.keys() - {"format", newest_edit(world)})): None}


def _another(world: World, rng: random.Random) -> dict[str, bytes | None]:
    name = rng.choice(sorted(world.files.keys() - {"format"}))
    alike = [data for other, data in sorted(world.files.items()) if folder(other) == folder(name)]
    others = [*alike, *world.others[folder(name)], world.files["format"]]
    return {name: rng.choice([data for data in others if data != world.files[name]])}


def _swapped(world: World, rng: random.Random) -> dict[str, bytes | None]:
    kind = rng.choice(["log", "runs"])
    one, two = rng.sample(sorted(name for name in world.files if folder(name) == kind), 2)
    return {one: world.files[two], two: world.files[one]}


_WAYS: dict[str, Callable[[World, random.Random], dict[str, bytes | None]]] = {
    "cut": _cut,
    "longer": _longer,
    "gone": _gone,
    "another file in its place": _another,
    "two swapped": _swapped,
}


def change_open_file(trial: Trial) -> None:
    """A bit of a chunk flips, or the file loses its end, after this process has verified and mapped it.

    What replaces runs verifies them again, and reading notices the length.
    """
    rng, root = trial.rng, trial.folder / "state"
    blobs = DirectoryBlobs(root, sync=False, randomness=SeededRandomness(3), counters=Counters())
    table = value_table("t", {"k": pa.int64()}, {"v": pa.string()})
    store = forge.with_table(table, blobs, open_files.SETTINGS)
    expected = Counter[str]()
    for number in range(rng.randint(1, 4)):
        given = {"k": open_files.KEYS, "v": [f"{number}-{key}-{rng.randrange(10**6)}" for key in open_files.KEYS]}
        forge.write(store, "t", ("put", given))
        expected = Counter(f"{key}={value}" for key, value in zip(*given.values(), strict=True))
    _compare_rows(trial, store, expected)
    run = rng.choice(store.head.runs["t"])
    file = root / run.object
    if rng.random() < 0.3:
        length = rng.randrange(run.object_size)
        trial.note(f"{run.object} cut to {length} bytes while it is mapped")
        with open_files.shortened(file, length if trial.faulty else run.object_size), trial.may_refuse(run.object):
            _compare_rows(trial, store, expected)
    else:
        span = rng.choice(open_files.chunks(store, root, run))
        bit, work = rng.randrange(8 * span.start, 8 * span.stop), rng.choice([open_files.compact, open_files.make_anew])
        trial.note(f"bit {bit} of {run.object} flipped while it is mapped, then {work.__name__}")
        if trial.faulty:
            with open_files.flipped(file, bit), trial.may_refuse(run.object):
                work(store)
        else:
            work(store)
    _compare_rows(trial, store, expected)


def _compare_rows(trial: Trial, store: Store, expected: Bag) -> None:
    trial.compare("rows", expected, Counter(f"{row['k']}={row['v']}" for row in open_files.read(store)))
