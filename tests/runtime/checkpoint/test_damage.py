"""Every file of a checkpoint, damaged in every way: what is gone on from is what the state says, or what Spark wrote."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from floodplain.errors import BadInput
from floodplain.metrics import Counters
from floodplain.runtime.checkpoint.files import read, write
from floodplain.runtime.checkpoint.spark_checkpoint import agree, batch_entry, is_replay
from floodplain.tiers import paths
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.records import seen, sources
from floodplain.versions.records.edit import SeenRef, SourcePosition
from floodplain.versions.records.sealing import Maker, sealed
from floodplain.versions.records.seen import SeenEntry

QUERY = "9c028b8c-e29b-46be-a0fe-68c0b7ab022d"
WATERMARK_MS = 7


def planned(batch: int) -> str:
    return f'v1\n{{"batchWatermarkMs":{batch},"batchTimestampMs":{1000 + batch}}}\n{{"logOffset":{batch}}}'


def listed(*batches: int) -> str:
    return "\n".join(["v1", *(f'{{"path":"file:///in/{n}","timestamp":{n},"batchId":{n}}}' for n in batches)])


@dataclass(frozen=True)
class Scene:
    """A checkpoint as Spark may leave it, and the last batch in the state beside it."""

    last: int
    begun: int
    done: int
    entries: dict[str, str]
    """Of the source, that count."""
    known: int
    """So many of these are in the state."""
    in_objects: bool = False
    """Not as text."""

    @property
    def committed(self) -> SourcePosition:
        if self.last < 0:
            return SourcePosition()
        noted = dict(list(self.entries.items())[: self.known])
        position = SourcePosition(QUERY, self.last, planned(self.last), {**noted, "batches/monday": "done"})
        if self.in_objects:
            position = sources.advanced(SourcePosition(), sealed(SourcePosition(), position, MAKER, 0))
        return position

    @property
    def files(self) -> dict[str, str]:
        return {
            "metadata": json.dumps({"id": QUERY}),
            **{f"offsets/{batch}": planned(batch) for batch in range(self.begun + 1)},
            **{f"commits/{batch}": f'v1\n{{"nextBatchWatermarkMs":{batch + 1}}}' for batch in range(self.done + 1)},
            **self.entries,
        }

    def laid_out(self, folder: Path) -> Path:
        for name, text in self.files.items():
            write(folder / name, text)
        return folder


BLOBS = MemoryBlobs("memory://seen", Counters())


def keep(name: str, data: bytes) -> None:
    BLOBS.put(name, data)


def load(ref: SeenRef) -> tuple[SeenEntry, ...]:
    return seen.load(BLOBS, "store", ref)


MAKER = Maker("store", lambda part: paths.seen(1, "1-1-0", part), load, keep)


def numbered(batches: range) -> dict[str, str]:
    return {f"sources/0/{batch}": listed(batch) for batch in batches}


COMPACT = {"sources/0/1.compact": listed(0, 1), **numbered(range(2, 3))}
SCENES = {
    "all noted": Scene(2, 2, 2, numbered(range(3)), 3),
    "last not noted": Scene(2, 2, 1, numbered(range(3)), 3),
    "first not noted": Scene(0, 0, -1, numbered(range(1)), 1),
    "listed": Scene(2, 2, 2, numbered(range(4)), 3),
    "begun": Scene(2, 3, 2, numbered(range(4)), 3),
    "put together": Scene(2, 2, 2, COMPACT, 2),
    "begun behind put together": Scene(2, 3, 2, COMPACT | {"sources/0/3": listed(3)}, 2),
    "begun by putting together": Scene(2, 3, 2, {**numbered(range(3)), "sources/0/3.compact": listed(0, 1, 2, 3)}, 3),
    "nothing in the state": Scene(-1, 0, -1, numbered(range(1)), 0),
    "nothing in the state, listed": Scene(-1, -1, -1, numbered(range(1)), 0),
}
SCENES |= {f"{name}, in objects": replace(scene, in_objects=True) for name, scene in SCENES.items() if scene.last >= 0}


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "without its end": lambda data: data[:-1],
    "without its last line": lambda data: data.rpartition(b"\n")[0],
    "first bit flipped": lambda data: flipped(data, 0),
    "a bit in the middle flipped": lambda data: flipped(data, len(data) // 2),
    "last digit flipped": lambda data: flipped(data, max(at for at, byte in enumerate(data) if chr(byte).isdigit())),
    "no text": lambda data: b"\xff" + data[1:],
    "no JSON": lambda data: data.replace(b"{", b"("),
    "other version": lambda data: b"v9" + data[2:],
    "longer": lambda data: data + b"\n{}",
    "zeros": lambda data: bytes(len(data)),
}
CASES = [(scene, name, damage) for scene in SCENES for name in SCENES[scene].files for damage in DAMAGES]


def damage(folder: Path, name: str, kind: str, *, checksum: bool) -> None:
    path = folder / name
    data = DAMAGES[kind](path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    if not checksum:
        path.with_name(f".{path.name}.crc").unlink()


def check_sound(folder: Path, scene: Scene) -> None:
    """All files are those that Spark wrote or that the state has, and together they are a checkpoint at its place."""
    committed, last = scene.committed, scene.last
    found = {str(path.relative_to(folder)): read(path) for path in folder.rglob("[!.]*") if path.is_file()}
    for name, file in found.items():
        stand_in = committed.offsets if name == f"offsets/{last - 1}" else f'v1\n{{"nextBatchWatermarkMs": {WATERMARK_MS}}}'
        assert file.text in (scene.files.get(name), stand_in) and file.vouched, name
    if last >= 0:
        replaced = f"sources/0/{last + 1}.compact" in found
        noted = {} if replaced else dict(list(scene.entries.items())[: scene.known])
        must = {"metadata": json.dumps({"id": QUERY}), f"offsets/{last}": committed.offsets, **noted}
        assert {name: found[name].text for name in must} == must
        assert f"offsets/{max(last - 1, 0)}" in found
    if f"offsets/{last + 1}" in found:
        assert "metadata" in found and (last < 0 or f"commits/{last}" in found)
        assert found.keys() & {f"sources/0/{last + 1}", f"sources/0/{last + 1}.compact"}
        assert not is_replay(committed, batch_entry(folder, last + 1, committed, load).position)
    elif last >= 0 and not scene.entries.keys() & found.keys() - set(list(scene.entries)[: scene.known]):
        assert is_replay(committed, batch_entry(folder, last, committed, load).position)


@pytest.mark.parametrize("scene", SCENES)
def test_one_that_is_as_spark_leaves_it_is_left_alone(tmp_path, scene, caplog):
    folder = SCENES[scene].laid_out(tmp_path)
    agree(folder, SCENES[scene].committed, WATERMARK_MS, load=load)
    assert {name: read(folder / name).text for name in SCENES[scene].files} == SCENES[scene].files
    assert not caplog.records


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("scene", SCENES)
def test_any_damage_is_made_good_or_refused_by_name(tmp_path, scene, checksum, caplog):
    outcomes = set()
    for number, (_, name, kind) in enumerate(case for case in CASES if case[0] == scene):
        folder = SCENES[scene].laid_out(tmp_path / str(number))
        damage(folder, name, kind, checksum=checksum)
        caplog.clear()
        outcomes.add(outcome(folder, SCENES[scene], name, kind, caplog))
    assert "made anew" in outcomes or "refused" in outcomes


def outcome(folder: Path, scene: Scene, name: str, kind: str, caplog: pytest.LogCaptureFixture) -> str:
    before = read(folder / name).data
    try:
        agree(folder, scene.committed, WATERMARK_MS, load=load)
    except BadInput as error:
        told = str(error)
        assert str(folder) in told and "elete the checkpoint to re" in told, told
        assert name in told or "is at batch" in told or "of query" in told, told
        return "refused"
    try:
        check_sound(folder, scene)
    except Exception as error:
        raise AssertionError(f"{name}, {kind}: gone on from what is not sound") from error
    may_be_gone = name not in list(scene.entries)[: scene.known] or f"sources/0/{scene.last + 1}.compact" in scene.files
    if before is None and may_be_gone and not caplog.records:
        return "as if Spark had not got so far, or had cleared away what it has put together"
    if before == scene.files[name].encode():
        return "not damaged"
    assert [record.levelno for record in caplog.records] == [logging.WARNING], (name, kind)
    assert name in caplog.text or (kind == "missing" and "expected an entry" in caplog.text), (name, kind)
    return "made anew"


@pytest.mark.parametrize("scene", [name for name, scene in SCENES.items() if scene.last > 0])
@pytest.mark.parametrize("checksum", [True, False])
def test_one_file_in_the_place_of_another_is_found(tmp_path, scene, checksum, caplog):
    """As from a backup, with its own checksum or with none."""
    here = SCENES[scene]
    files = [name for name in here.files if name.startswith(("offsets/", "sources/"))]
    used = [name for name in files if name.startswith("sources/") or name in ("offsets/2", "offsets/3")]
    pairs = [(to, other) for to in used for other in files if other != to and other.split("/")[0] == to.split("/")[0]]
    for number, (to, other) in enumerate(pairs):
        folder = here.laid_out(tmp_path / str(number))
        (folder / to).with_name(f".{Path(to).name}.crc").unlink()
        (folder / to).write_text(here.files[other])
        if checksum:
            write(folder / to, here.files[other])
        caplog.clear()
        agree(folder, here.committed, WATERMARK_MS, load=load)
        check_sound(folder, here)
        assert to in caplog.text, (to, other)


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("scene", [name for name in SCENES if name.startswith(("begun,", "begun behind")) or name == "begun"])
def test_a_batch_is_not_run_on_what_is_no_longer_as_the_state_says(tmp_path, scene, checksum):
    here = SCENES[scene]
    trusted = ["metadata", "offsets/2", *list(here.entries)[: here.known]]
    taken = [] if not checksum else ["offsets/3", "sources/0/3"]
    for number, (name, kind) in enumerate((name, kind) for name in trusted + taken for kind in DAMAGES):
        folder = here.laid_out(tmp_path / str(number))
        entry = batch_entry(folder, 3, here.committed, load)
        assert entry.position.sources == {"sources/0/3": listed(3)} and not is_replay(here.committed, entry.position)
        damage(folder, name, kind, checksum=checksum)
        if read(folder / name).data == here.files[name].encode():
            continue
        with pytest.raises(BadInput) as raised:
            is_replay(here.committed, batch_entry(folder, 3, here.committed, load).position)
        if kind != "missing" or name != "sources/0/3":
            assert str(folder / name) in str(raised.value) or "of query" in str(raised.value), (name, kind)
        assert "to rebuild it from the state" in str(raised.value)
