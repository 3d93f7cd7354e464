"""Files that change on disk after this process has verified and mapped them."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Corrupt
from floodplain.metrics import Counters
from floodplain.settings import CacheSettings
from floodplain.store.compaction.rewrite import rewrite
from floodplain.store.rows.definition import value_table
from floodplain.store.run.footer import decode
from floodplain.store.store import Store
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.records.edit import RunRef
from tests.store import forge

SETTINGS = replace(forge.SETTINGS, chunk_bytes=400, inline_bytes=0)
MAPS = Path("/proc/self/maps")
KEYS = list(range(40))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three runs of several chunks each, all of which this process has read, and so verified and mapped."""
    blobs = DirectoryBlobs(tmp_path, sync=False, randomness=SeededRandomness(3), counters=Counters())
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": pa.string()}), blobs, SETTINGS)
    for n in range(3):
        forge.write(store, "t", ("put", {"k": KEYS, "v": [f"{n}-{key}" for key in KEYS]}))
    read(store)
    return store


def read(store: Store) -> list[dict[str, Any]]:
    """As Python values: columns may lie in the file."""
    store.snapshot().table("t").multi_get(pa.table({"k": KEYS}))
    return forge.rows(store, "t")


def chunks(store: Store, root: Path, run: RunRef) -> list[range]:
    data = (root / run.object).read_bytes()
    end = run.offset + run.length
    footer = decode(pa.py_buffer(data[end - run.footer_length : end]), run, store.head.store)
    places = zip(footer.column("offset").tolist(), footer.column("length").tolist(), strict=True)
    return [range(run.offset + offset, run.offset + offset + length) for offset, length in places]


@contextmanager
def flipped(file: Path, bit: int) -> Iterator[None]:
    """In place: what is mapped changes with it."""
    fd = os.open(file, os.O_RDWR)
    byte = os.pread(fd, 1, bit // 8)
    try:
        os.pwrite(fd, bytes([byte[0] ^ (1 << bit % 8)]), bit // 8)
        yield
    finally:
        os.pwrite(fd, byte, bit // 8)
        os.close(fd)


@contextmanager
def shortened(file: Path, length: int) -> Iterator[None]:
    whole = file.read_bytes()
    try:
        os.truncate(file, length)
        yield
    finally:
        with file.open("r+b") as opened:
            opened.write(whole)


def compact(store: Store) -> None:
    list(store.compact(full=True))


def make_anew(store: Store) -> None:
    """As a change of a column's type does."""
    before = store.head.schemas["t"][-1]
    after = msgspec.structs.replace(before, id=before.id + 1)
    rewrite(store.history, store.open_runs, store.head, after, {"v": ("v", lambda values: values)})


@pytest.mark.parametrize("work", [compact, make_anew])
def test_what_replaces_runs_verifies_every_chunk_again(store: Store, tmp_path: Path, work: Callable[[Store], None]) -> None:
    rng, head, whole = random.Random(5), store.head, read(store)
    for run in head.runs["t"]:
        spans = chunks(store, tmp_path, run)
        assert len(spans) > 2
        for span in spans:
            bit = rng.randrange(8 * span.start, 8 * span.stop)
            with flipped(tmp_path / run.object, bit), pytest.raises(Corrupt) as raised:
                work(store)
            assert raised.value.file == run.object
            assert store.history.refresh() == head
    work(store)
    assert read(store) == whole


def test_a_chunk_is_used_as_it_was_when_it_was_verified(store: Store, tmp_path: Path) -> None:
    """No byte that a compaction holds lies in a file, where it could change between its check and its use."""
    for source in store.open_runs.afresh().sources(store.head, "t"):
        run = source.reader.ref
        (span, *_) = chunks(store, tmp_path, run)
        before = source.reader.fetch([0])[0]
        kept = before.to_pylist()
        for bit in range(8 * span.start, 8 * span.stop, 61):
            with flipped(tmp_path / run.object, bit):
                assert before.to_pylist() == kept


def test_a_mapped_file_that_lost_bytes_is_an_error(store: Store, tmp_path: Path) -> None:
    """Unnoticed, the rest of its last page reads as zeros, and a page behind that ends the process."""
    whole = read(store)
    for run in store.head.runs["t"]:
        for length in (1, run.object_size // 2, run.object_size - 1):
            with shortened(tmp_path / run.object, length), pytest.raises(Corrupt, match=rf"found {length} bytes") as raised:
                read(store)
            assert raised.value.file == run.object
    assert read(store) == whole


def unmapped(root: Path, memory_bytes: int) -> Store:
    return Store.open(root, settings=replace(SETTINGS, map=False, memory_bytes=memory_bytes))


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_a_file_that_lost_bytes_is_an_error_where_nothing_is_mapped(store: Store, tmp_path: Path, memory_bytes: int) -> None:
    """Whether it is cut before it is opened or while it is open, at the end of any part or within it."""
    whole = read(store)
    for run in store.head.runs["t"]:
        ends = [span.stop for span in chunks(store, tmp_path, run)]
        for length in (0, 1, *(end - 1 for end in ends), run.object_size - 1):
            opened = unmapped(tmp_path, memory_bytes)
            assert read(opened) == whole
            with shortened(tmp_path / run.object, length):
                with pytest.raises(Corrupt) as raised:
                    read(unmapped(tmp_path, memory_bytes))
                assert raised.value.file == run.object
                if memory_bytes or length >= ends[-1]:
                    assert read(opened) == whole, "what it needs of the file is in memory"
                else:
                    with pytest.raises(Corrupt) as raised:
                        read(opened)
                    assert raised.value.file == run.object


@pytest.mark.skipif(not MAPS.exists(), reason="needs a list of what is mapped")
def test_what_is_not_to_be_mapped_is_not(store: Store, tmp_path: Path) -> None:
    assert str(tmp_path) in MAPS.read_text()
    whole = read(store)
    store.close()
    held = unmapped(tmp_path, 1 << 20)
    assert read(held) == whole
    compact(held)
    assert held.verify().good
    assert str(tmp_path) not in MAPS.read_text()


@pytest.mark.skipif(not MAPS.exists(), reason="needs a list of what is mapped")
@pytest.mark.parametrize("mapped", [True, False])
def test_a_cache_maps_only_where_it_may(tmp_path: Path, mapped: bool) -> None:
    settings = CacheSettings(str(tmp_path), 1 << 20)
    cached = CachedBlobs(forge.objects(), settings, mapped=mapped, clock=ManualClock(), counters=Counters())
    cached.create("runs/x", b"0123456789")
    for _ in range(2):
        found = [cached.get("runs/x"), *cached.get_ranges("runs/x", [(2, 3)])]
        assert [data.to_pybytes() for data in found] == [b"0123456789", b"234"]
    assert (cached.map("runs/x") is not None) == mapped
    assert (str(tmp_path) in MAPS.read_text()) == mapped


def test_a_mapped_file_that_was_deleted_is_still_read(store: Store, tmp_path: Path) -> None:
    """As for a snapshot whose files a collection takes away."""
    whole = read(store)
    for run in store.head.runs["t"]:
        (tmp_path / run.object).unlink()
    assert read(store) == whole
