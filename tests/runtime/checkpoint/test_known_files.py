"""The set of files that a query has read: an edit has those of its own batch, objects have the rest, and all of it comes back."""

import random
from pathlib import Path

import msgspec
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Corrupt
from floodplain.metrics import Counters
from floodplain.runtime.checkpoint.known_files import Known, SeenReader
from floodplain.runtime.checkpoint.spark_checkpoint import agree, batch_entry, is_replay
from floodplain.settings import RetentionSettings, StoreSettings
from floodplain.store.store import Writer
from floodplain.tiers import paths
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.records.edit import CommitEpoch, Edit, SourcePosition
from floodplain.versions.records.frame import Kind, decode, encode
from floodplain.versions.records.sealing import FAN_IN, KEPT_BYTES
from floodplain.versions.records.seen import SeenFiles, load
from floodplain.versions.records.vouched import FileSum
from tests.runtime.checkpoint.file_log import QUERY, FileLog, entries_below
from tests.store import forge

SETTINGS = StoreSettings(key_groups=16, checkpoint_every=8, retention=RetentionSettings(newest=1, every_ms=()))


class Writing(MemoryBlobs):
    """Counts the bytes that are written, by the kind of object."""

    def __init__(self) -> None:
        super().__init__("memory://seen", Counters())
        self.written: dict[str, int] = {}
        self.largest: dict[str, int] = {}

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        kind = name.partition("/")[0]
        self.written[kind] = self.written.get(kind, 0) + len(data)
        self.largest[kind] = max(self.largest.get(kind, 0), len(data))


class Query:
    """Reads what a checkpoint says, batch by batch, and commits it. No rows: what was read is all that matters here."""

    def __init__(self, log: FileLog, blobs: MemoryBlobs | None = None) -> None:
        self.log = log
        self.blobs = Writing() if blobs is None else blobs
        self.store = forge.create(self.blobs, SETTINGS, ManualClock())
        self.writer: Writer = self.store.writer("query", force=True)

    @property
    def reader(self) -> SeenReader:
        return SeenReader(self.blobs, self.store.head.store)

    def batch(self, files: int) -> None:
        self.log.begin(files)
        self.commit()
        self.log.end()

    def commit(self) -> None:
        before = self.store.head.source
        entry = batch_entry(self.log.folder, self.log.batch, before, self.reader)
        assert not is_replay(before, entry.position)
        self.writer.epoch().commit(source=entry.position)
        head = self.store.head.source
        assert is_replay(head, batch_entry(self.log.folder, self.log.batch, head, self.reader).position)

    def rebuilt(self, folder: Path) -> dict[str, str]:
        agree(folder, self.store.head.source, 0, load=self.reader)
        return entries_below(folder, self.log.source)

    def edits(self) -> list[tuple[Edit, int]]:
        found = [(self.blobs.get(info.name), info.name) for info in self.blobs.list(paths.LOG)]
        return [(decode(Kind.EDIT, Edit, data, name), len(data)) for data, name in found]


def test_a_hundred_thousand_files(tmp_path):
    """Edits and manifests stay small, each name is written a few times at most, and a lost checkpoint comes back as it was."""
    rng = random.Random(7)
    query = Query(FileLog(tmp_path / "checkpoint"))
    while len(query.log.lines) < 100_000:
        query.batch(rng.choice([1, 30, 300, 3000]))
    size = sum(len(line) + 1 for line in query.log.lines)
    blobs = query.blobs
    assert size > 15_000_000
    assert blobs.largest["log"] < 64 << 10 and blobs.largest["manifest"] < 64 << 10
    assert blobs.written["seen"] < 5 * size, "as often as there are tiers"
    assert len(query.store.head.source.seen) < 5 * FAN_IN
    assert query.rebuilt(tmp_path / "rebuilt") == query.log.files()
    query.writer.collect_garbage()
    stored = {info.name: info.size_bytes for info in blobs.list(paths.SEEN)}
    assert set(stored) == query.store.head.objects()
    assert sum(stored.values()) < 1.1 * size + KEPT_BYTES
    assert query.store.verify().good


def test_one_batch_of_very_many_files(tmp_path):
    query = Query(FileLog(tmp_path / "checkpoint"))
    query.batch(1)
    query.batch(100_000)
    query.batch(1)
    assert query.blobs.largest["log"] < 64 << 10
    assert query.rebuilt(tmp_path / "rebuilt") == query.log.files()


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("interval", [1, 2, 10, 10_000])
def test_entries_come_back_whatever_spark_puts_together(tmp_path, interval, clears):
    """Also where objects have entries that Spark has not compacted yet."""
    rng = random.Random(interval)
    query = Query(FileLog(tmp_path / "checkpoint", interval, clears=clears))
    for batch in range(45):
        query.batch(rng.choice([0, 1, 20, 200]))
        if batch % 9 == 0:
            assert query.rebuilt(tmp_path / f"rebuilt{batch}") == query.log.files()
    agree(query.log.folder, query.store.head.source, 0, load=query.reader)
    assert query.rebuilt(tmp_path / "last") == query.log.files()
    assert query.store.head.source.seen
    known = Known(query.store.head.source, query.reader)
    assert known.lines(query.log.source) == set(query.log.lines)


def test_each_edit_has_its_own_batch_only(tmp_path):
    query = Query(FileLog(tmp_path / "checkpoint", interval=3))
    for _ in range(9):
        query.batch(2)
    found = [update.source for edit, _ in query.edits() for update in edit.updates if getattr(update, "source", None)]
    lines = query.log.lines
    for batch, position in enumerate(found):
        assert position.sources == {f"sources/0/{batch}": "\n".join(["v1", *lines[2 * batch : 2 * batch + 2]])}


def test_a_file_that_does_not_go_on_from_what_is_known_is_kept_whole(tmp_path):
    """A source other than Spark's own may drop or reorder entries when it compacts them."""
    query = Query(FileLog(tmp_path / "checkpoint", interval=5))
    for _ in range(4):
        query.batch(100)
    query.log.lines = query.log.lines[50:][::-1]
    for _ in range(7):
        query.batch(100)
    assert query.rebuilt(tmp_path / "rebuilt") == query.log.files()
    assert Known(query.store.head.source, query.reader).lines("sources/0") == set(query.log.lines)


def test_several_sources_share_what_stays_as_text(tmp_path):
    query = Query(FileLog(tmp_path / "checkpoint", interval=4))
    others = [FileLog(tmp_path / "checkpoint", interval=7, source=number) for number in (1, 2)]
    for _ in range(12):
        for other in others:
            other.begin(40)
        query.batch(30)
        texts = query.store.head.source.sources
        assert sum(len(text.encode()) for text in texts.values()) <= KEPT_BYTES
    agree(tmp_path / "rebuilt", query.store.head.source, 0, load=query.reader)
    for log in (query.log, *others):
        assert entries_below(tmp_path / "rebuilt", log.source) == log.files()


def test_a_state_that_has_the_text_of_such_files_goes_on(tmp_path):
    """As it was written before: all in the edit."""
    query = Query(FileLog(tmp_path / "checkpoint", interval=4))
    for _ in range(6):
        query.log.begin(200)
        query.log.end()
    offsets = (tmp_path / "checkpoint/offsets/5").read_text()
    old = {f"sources/0/{name}": text for name, text in query.log.files().items()}
    forge.append(query.store, CommitEpoch(1, (), source=SourcePosition(QUERY, 5, offsets, old)))
    query.store.history.refresh()
    assert query.store.head.source.sources == old
    for _ in range(6):
        query.batch(200)
    position = query.store.head.source
    assert sum(map(len, position.sources.values())) <= KEPT_BYTES and not any("compact" in name for name in position.sources)
    assert query.rebuilt(tmp_path / "rebuilt") == query.log.files()
    agree(query.log.folder, position, 0, load=query.reader)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"x",
    "first bit": lambda data: flipped(data, 0),
    "middle bit": lambda data: flipped(data, len(data) // 2),
    "last bit": lambda data: flipped(data, len(data) - 1),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_object_is_found_and_never_used(tmp_path, damage):
    """The query goes on, since Spark has its own list; what would need the object says its name."""
    query = Query(FileLog(tmp_path / "checkpoint", interval=4))
    for _ in range(6):
        query.batch(100)
    ref = query.store.head.source.seen[0]
    data = DAMAGES[damage](query.blobs.get(ref.object).to_pybytes())
    query.blobs.delete([ref.object])
    if data is not None:
        query.blobs.create(ref.object, data)
    with pytest.raises(Corrupt, match=ref.object):
        query.rebuilt(tmp_path / "rebuilt")
    assert not (tmp_path / "rebuilt").exists(), "nothing is half rebuilt"
    found = query.store.verify()
    assert [one.file for one in found.damages] == [ref.object]
    first = next(epoch for epoch in range(1, 7) if ref.last < epoch)
    assert set(found.damages[0].epochs) == {mark.epoch for mark in query.store.head.epochs if mark.epoch >= first}
    for _ in range(20):
        query.batch(100)
    assert ref in query.store.head.source.seen, "it was not put together with others"


def test_going_back_needs_what_was_read_by_then(tmp_path):
    query = Query(FileLog(tmp_path / "checkpoint", interval=4))
    for _ in range(6):
        query.batch(100)
    files, position = query.log.files(), query.store.head.source
    query.store.tag("kept")
    for _ in range(20):
        query.batch(100)
    query.writer.collect_garbage()
    query.writer.rollback(6)
    left = query.store.head.left
    assert query.store.head.source == position and not any(place.seen or place.compacts or place.sources for place in left)
    assert query.rebuilt(tmp_path / "rebuilt") == files
    for ref in position.seen:
        query.blobs.delete([ref.object])
    query.writer.epoch().commit()
    with pytest.raises(Corrupt, match=position.seen[0].object):
        query.writer.rollback(6)


def test_an_object_that_is_not_what_it_is_said_to_be(tmp_path):
    """Whoever wrote it knew how to make checksums."""
    query = Query(FileLog(tmp_path / "checkpoint"))
    query.batch(300)
    ref, blobs, store = query.store.head.source.seen[0], query.blobs, query.store.head.store
    (entry,) = load(blobs, store, ref)
    bad = {
        "other store": SeenFiles("other", ref.source, (entry,)),
        "other source": SeenFiles(store, "sources/7", (entry,)),
        "other number": SeenFiles(store, ref.source, (msgspec.structs.replace(entry, number=5),)),
        "other text": SeenFiles(store, ref.source, (msgspec.structs.replace(entry, text="v1"),)),
        "twice": SeenFiles(store, ref.source, (entry, entry)),
    }
    for kind, record in bad.items():
        data = encode(Kind.SEEN, record)
        name = ref.object.replace("seen0", kind.replace(" ", "_"))
        blobs.create(name, data)
        with pytest.raises(Corrupt, match=name):
            load(blobs, store, msgspec.structs.replace(ref, object=name, sum=FileSum.of(data)))
