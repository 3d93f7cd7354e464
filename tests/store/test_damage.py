"""Every bit of every file: damage is named or harmless, never used."""

import itertools
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Corrupt, StoreNotFound
from floodplain.metrics import Counters
from floodplain.settings import RetentionSettings
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.run.footer import Footer, decode
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.manifest import Manifest
from tests.store import forge

USERS = [f"u{n}" for n in range(5)]
KEYS = pa.table({"user": [*USERS, "absent", None]})
SETTINGS = replace(forge.SETTINGS, checkpoint_every=3, chunk_bytes=100, retention=RetentionSettings(newest=2, every_ms=()))
BITS_OF_A_PART = 2
"""Of each value, set and not set, that are flipped in each part of a file."""

Content = dict[int, dict[str, pa.Table]]


def build(blobs: Blobs, salt: int = 0) -> Store:
    """Four epochs, of which three can still be read; compacted, tagged, trimmed and pinned."""
    store = forge.create(blobs, SETTINGS, ManualClock(forge.NOW_MS + salt))
    users = pa.array(USERS)
    with store.writer("test") as writer:
        writer.define(
            value_table("counts", {"user": pa.string()}, {"n": Column(pa.int64(), merge="sum", default=0)}, ttl_ms=10_000)
        )
        writer.define(map_table("pages", {"user": pa.string()}, {"page": pa.string()}, {"hits": pa.list_(pa.int32())}))
        writer.define(list_table("trail", {"user": pa.string()}, {"step": Column(pa.string(), ttl_ms=5_000)}))
        writer.define(timer_table("timers", {"user": pa.string()}))
        epoch = writer.epoch()
        epoch.put("counts", pa.table({"user": users, "n": pa.array([salt, 2, 3, 4, 5])}))
        epoch.put("timers", pa.table({"user": users, "at": pa.array([1, 2, -3, salt, 5])}))
        epoch.commit()
        store.tag("first")
        epoch = writer.epoch()
        epoch.merge("counts", pa.table({"user": users[:3], "n": pa.array([10, 1, 1 + salt])}))
        epoch.delete("counts", pa.table({"user": users[4:]}))
        hits = pa.array([[1], [], None, [1, None], [salt]], pa.list_(pa.int32()))
        epoch.put("pages", pa.table({"user": users, "page": ["x", "y", "z", None, "x"], "hits": hits}))
        epoch.commit()
        list(store.compact(full=True))
        epoch = writer.epoch()
        epoch.clear("timers", pa.table({"user": users[1:2]}))
        steps = pa.table({"user": users, "position": pa.array([1] * 5, pa.uint64()), "step": ["a", "b", None, "d", ""]})
        epoch.put("trail", steps)
        epoch.commit()
        epoch = writer.epoch()
        epoch.merge("counts", pa.table({"user": users[:3], "n": pa.array([salt, 1, 1])}))
        epoch.commit()
        writer.collect_garbage()
        writer.collect_garbage()
    store.at(3, pinned=True)
    return store


def read(snapshot: Snapshot, tables: Iterable[str]) -> dict[str, pa.Table]:
    """All of these tables, by both ways of reading."""
    found = {}
    for name in tables:
        table = snapshot.table(name)
        lookup = table.multi_get(KEYS)
        found[name] = table.to_arrow()
        found[f"{name} by key"] = lookup.rows.append_column("lookup key", pa.array(lookup.key_number))
    return found


@dataclass
class World:
    """A store, what it says, and what its files hold."""

    blobs: Blobs
    files: dict[str, bytes]
    manifests: dict[int, Manifest]
    """Of the retained epochs."""
    content: Content
    others: dict[str, list[bytes]]
    """By folder: the files of another store that was made alike."""

    def dead(self, name: str) -> list[range]:
        """The bytes of an object that no retained epoch reads: padding between runs, and runs that were compacted away."""
        if not name.startswith(paths.RUNS):
            return []
        live = {run.offset: run.length for manifest in self.manifests.values() for run in runs_of(manifest) if run.object == name}
        bounds = [0, *(bound for offset in sorted(live) for bound in (offset, offset + live[offset])), len(self.files[name])]
        return [range(first, end) for first, end in zip(bounds[::2], bounds[1::2], strict=True) if first < end]

    def parts(self, name: str) -> dict[str, range]:
        """The bytes of a file by the check that covers them: the envelope of metadata, and what retained runs consist of."""
        size = len(self.files[name])
        if not name.startswith(paths.RUNS):
            return {"head": range(14), "payload": range(14, size - 16), "checksum": range(size - 16, size)}
        live = {run.offset: run for manifest in self.manifests.values() for run in runs_of(manifest) if run.object == name}
        return {f"run at {at}: {part}": span for at, run in live.items() for part, span in self._parts_of_run(run).items()}

    def _parts_of_run(self, run: RunRef) -> dict[str, range]:
        at, end = run.offset, run.offset + run.length
        data = self.files[run.object][end - run.footer_length : end]
        footer = decode(pa.py_buffer(data), run, next(iter(self.manifests.values())).store)
        places = {
            f"chunk {number}": (int(offset), int(length))
            for number, (offset, length) in enumerate(zip(footer.column("offset"), footer.column("length"), strict=True))
        }
        if footer.index is not None:
            places["index"] = (footer.index.offset, footer.index.length)
        if footer.filter is not None:
            places["filter"] = (footer.filter.offset, footer.filter.length)
        places["schema"] = (0, len(footer.arrow))
        tail = run.length - run.footer_length
        places |= {f"footer, {name}": (tail + offset, length) for name, (offset, length) in fields_of(data).items()}
        return {part: range(at + offset, at + offset + length) for part, (offset, length) in places.items()}

    def examine(self, name: str, data: bytes | None, *, verify: bool = True, dead: bool = False) -> None:
        """With ``data`` in place of a file (None: none), every epoch reads as it did or ``Corrupt`` names the file, and
        verifying names it too, unless it is ``dead``."""
        if data is None:
            self.blobs.delete([name])
        else:
            self.blobs.put(name, data)
        try:
            store = forge.reopen(self.blobs, SETTINGS)
            hurt = self.read_all(store, name)
            assert not (dead and hurt)
            if verify:
                noticed = not dead and (hurt or data is not None)
                assert {damage.file for damage in store.verify().damages} == ({name} if noticed else set())
        except Corrupt as damage:
            assert damage.file == name
        finally:
            self.blobs.put(name, self.files[name])

    def read_all(self, store: Store, name: str) -> bool:
        """Whether any epoch could not be read because of the file of this name.

        An epoch whose manifest is the same reads the same from all runs but the one of this name.
        """
        hurt = False
        for epoch, manifest in self.manifests.items():
            tables = {run.table for run in runs_of(manifest) if run.object == name}
            try:
                snapshot = store.at(epoch)
                found = read(snapshot, tables)
            except Corrupt as damage:
                assert damage.file == name
                hurt = True
            else:
                assert snapshot.manifest == manifest
                assert found == {table: self.content[epoch][table] for table in found}
        return hurt


def fields_of(footer: bytes) -> dict[str, tuple[int, int]]:
    """Where the values of an encoded footer are: most are held against something else as well, some only by its checksum."""
    values = msgspec.msgpack.decode(footer, type=dict[str, msgspec.Raw])
    sizes = {name: len(msgspec.msgpack.encode(name)) for name in values}
    at = len(footer) - sum(sizes[name] + len(bytes(value)) for name, value in values.items())
    found = {}
    for name, value in values.items():
        found[name] = (at + sizes[name], len(bytes(value)))
        at += sizes[name] + len(bytes(value))
    assert at == len(footer)
    return found


def runs_of(manifest: Manifest) -> list[RunRef]:
    return [run for runs in manifest.runs.values() for run in runs]


def made(blobs: Blobs, other: Blobs) -> World:
    store = build(blobs)
    build(other, salt=7)
    snapshots = {mark.epoch: store.at(mark.epoch) for mark in store.head.epochs}
    assert list(snapshots) == [1, 3, 4]
    content = {epoch: read(snapshot, snapshot.tables) for epoch, snapshot in snapshots.items()}
    others: dict[str, list[bytes]] = {}
    for name, data in files_of(other).items():
        others.setdefault(folder(name), []).append(data)
    return World(blobs, files_of(blobs), {epoch: snapshot.manifest for epoch, snapshot in snapshots.items()}, content, others)


def files_of(blobs: Blobs) -> dict[str, bytes]:
    return {info.name: blobs.get(info.name).to_pybytes() for info in blobs.list("")}


def folder(name: str) -> str:
    return name.partition("/")[0]


@pytest.fixture(scope="module", params=["mapped", "compressed"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    if request.param == "compressed":
        return made(forge.objects(), forge.objects())
    return made(*(directory(tmp_path_factory.mktemp(name)) for name in ("store", "other")))


def directory(root: Path) -> DirectoryBlobs:
    return DirectoryBlobs(root, sync=False, randomness=SeededRandomness(3), counters=Counters())


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << (bit % 8)
    return bytes(damaged)


def is_dead(world: World, name: str, byte: int) -> bool:
    return any(byte in span for span in world.dead(name))


def test_the_world_has_every_kind_of_file(world: World) -> None:
    kinds = {folder(name) for name in world.files}
    assert kinds == {"fence", "format", "log", "manifest", "pins", "runs"}
    dead = {name: world.dead(name) for name in world.files if world.dead(name)}
    assert dead, "nothing that only padding or a compacted run holds"


def test_flipped_bits(world: World) -> None:
    """Of every part of every file, some bits that are set and some that are not: a filter with one more loses no key, with one
    less it does. So every check is the only one that can notice some of them."""
    rng = random.Random(11)
    for name, data in world.files.items():
        for part in world.parts(name).values():
            for bit in sampled_bits(data, part, rng):
                world.examine(name, flipped(data, bit))


def sampled_bits(data: bytes, part: range, rng: random.Random) -> list[int]:
    bits: dict[bool, list[int]] = {False: [], True: []}
    for bit in range(8 * part.start, 8 * part.stop):
        bits[is_set(data, bit)].append(bit)
    return [bit for alike in bits.values() for bit in rng.sample(alike, min(BITS_OF_A_PART, len(alike)))]


def is_set(data: bytes, bit: int) -> bool:
    return bool(data[bit // 8] >> (bit % 8) & 1)


def test_the_parts_are_those_that_checks_cover(world: World) -> None:
    kinds = {re.sub(r"run at \d+: |\d+", "", part).strip() for name in world.files for part in world.parts(name)}
    runs = {"schema", "chunk", "index", *(f"footer, {name}" for name in Footer.__struct_fields__)}
    assert kinds == {"head", "payload", "checksum", *runs, *(["filter"] if world.blobs.tier == "object" else [])}
    for name in world.files:
        covered = {byte for part in world.parts(name).values() for byte in part}
        assert not any(is_dead(world, name, byte) for byte in covered)


def test_dead_bytes_are_harmless(world: World) -> None:
    for name, data in world.files.items():
        for span in world.dead(name):
            wiped = data[: span.start] + bytes(byte ^ 0xFF for byte in data[span.start : span.stop]) + data[span.stop :]
            world.examine(name, wiped, dead=True)


def test_truncated_and_extended(world: World) -> None:
    rng = random.Random(12)
    for name, data in world.files.items():
        lengths = {0, 1, len(data) - 1, *rng.sample(range(len(data)), 4)}
        for length in lengths:
            world.examine(name, data[:length])
        for extra in (b"\0", b"x" * 64, data):
            world.examine(name, data + extra)


def test_another_file_in_its_place(world: World) -> None:
    """One of the same kind, of another kind, and one of another store."""
    for name, data in world.files.items():
        alike = [world.files[other] for other in world.files if folder(other) == folder(name)]
        strange = [*alike, *world.others[folder(name)], world.files["format"]]
        for other in strange if name != "format" else []:
            if other != data:
                world.examine(name, other)


def test_the_format_of_another_store(world: World) -> None:
    """Every other file then looks like a stranger; the first of them is named, with both ids."""
    world.blobs.put("format", world.others["format"][0])
    with pytest.raises(Corrupt, match=r"expected store .* found store"):
        forge.reopen(world.blobs, SETTINGS)
    world.blobs.put("format", world.files["format"])


def test_deleted(world: World) -> None:
    for name in world.files.keys() - {"format", newest_edit(world)}:
        world.examine(name, None)


def test_a_deleted_format_is_no_store(world: World) -> None:
    world.blobs.delete(["format"])
    with pytest.raises(StoreNotFound):
        forge.reopen(world.blobs, SETTINGS)
    world.blobs.put("format", world.files["format"])


def test_a_deleted_newest_edit_undoes_just_that_edit(world: World) -> None:
    """Nothing can tell it from an edit that was never made, but what it did is gone as a whole."""
    name = newest_edit(world)
    world.blobs.delete([name])
    store = forge.reopen(world.blobs, SETTINGS)
    assert paths.log(store.head.position + 1) == name
    assert not world.read_all(store, name)
    world.blobs.put(name, world.files[name])


def newest_edit(world: World) -> str:
    return max(name for name in world.files if name.startswith(paths.LOG))


def test_two_swapped(world: World) -> None:
    """Each has the other's bytes at once, so that both look like files of this store."""
    for kind in ("log", "manifest", "runs"):
        names = sorted(name for name in world.files if folder(name) == kind)
        for one, two in itertools.combinations(names, 2):
            world.blobs.put(one, world.files[two])
            world.blobs.put(two, world.files[one])
            with pytest.raises(Corrupt) as raised:
                store = forge.reopen(world.blobs, SETTINGS)
                named = {damage.file for damage in store.verify().damages}
                assert named == {one, two}
                for epoch in world.manifests:
                    snapshot = store.at(epoch)
                    found = read(snapshot, snapshot.tables)
                    assert found == world.content[epoch]
            assert raised.value.file in (one, two)
            world.blobs.put(one, world.files[one])
            world.blobs.put(two, world.files[two])


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_bit_and_every_length(world: World) -> None:
    """All of the mapped store; of the compressed one, whose metadata is alike, the runs."""
    files = {name: data for name, data in world.files.items() if world.blobs.tier == "directory" or folder(name) == "runs"}
    total, done = sum(9 * len(data) for data in files.values()), 0
    for name, data in files.items():
        for byte in range(len(data)):
            dead = is_dead(world, name, byte)
            for bit in range(8):
                world.examine(name, flipped(data, 8 * byte + bit), verify=bit == byte % 8, dead=dead)
            world.examine(name, data[:byte])
            done += 9
            if byte % 256 == 0:
                print(f"{done:,} of {total:,} damages: {name} byte {byte:,} of {len(data):,}", flush=True)
