"""Read-ahead: bounds on requests and bytes, one request for what is near, and nothing that travels twice."""

import threading
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Corrupt, Unavailable
from floodplain.keys import hash_columns
from floodplain.metrics import Counters
from floodplain.settings import CacheSettings
from floodplain.store.rows.definition import Column, value_table
from floodplain.store.run.lookup_keys import Source
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.run.read_ahead import ReadAhead, requests
from floodplain.store.store import Store
from floodplain.tier_use import UseTally, tallied
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.cached import CachedBlobs
from tests.operators.kernel.remote import Remote, wait
from tests.store import world

KEYS = pa.table({"k": [f"key{number}" for number in range(400)]})


class Runs:
    """A table in many chunks, on a store whose answers a test controls."""

    def __init__(self, tables: int = 1, cache: CacheSettings | None = None, value_bytes: int = 0) -> None:
        self.blobs = Remote()
        blobs: Blobs = self.blobs
        if cache is not None:
            blobs = CachedBlobs(blobs, cache, clock=ManualClock(0), counters=Counters())
        self.store: Store = world.open_store(blobs, ManualClock(0), world.settings(chunk_bytes=1))
        writer = world.force_writer(self.store)
        self.names = [f"t{number}" for number in range(tables)]
        for name in self.names:
            writer.define(value_table(name, {"k": pa.string()}, {"v": Column(pa.int64()), "more": Column(pa.binary())}))
        epoch, more = writer.epoch(), pa.array([Random(number).randbytes(value_bytes) for number in range(len(KEYS))])
        for name in self.names:
            epoch.put(name, KEYS.append_column("v", pa.array(range(len(KEYS)))).append_column("more", more))
        epoch.commit()
        self.open_runs = self.store.open_runs
        self.blobs.asked.clear()

    def sources(self) -> list[Source]:
        """Open, with their membership filters."""
        manifest = self.store.head
        sources = [source for name in self.names for source in self.open_runs.sources(manifest, name)]
        for source in sources:
            source.reader.load_parts()
        return sources

    def read(self) -> list[int]:
        rows = self.store.snapshot().stored("t0").multi_get(KEYS).aligned()
        return rows.column("v").to_pylist()


def chunks_of(sources: list[Source]) -> list[tuple]:
    return [(source.reader, chunk) for source in sources for chunk in range(len(source.reader.count))]


def ahead_of(open_runs: OpenRuns, requests_: int = 16, budget_bytes: int = 1 << 30) -> ReadAhead:
    return open_runs.read_ahead(requests_, budget_bytes)


def test_one_request_brings_what_is_near_of_all_tables():
    runs = Runs(tables=3)
    sources = runs.sources()
    wanted = requests(chunks_of(sources))
    assert len(wanted) == 1 and len({source.reader.ref.id for source in sources}) == 3
    runs.blobs.asked.clear()
    ahead = ahead_of(runs.open_runs)
    ahead.add(wanted)
    ahead.close()
    assert len(runs.blobs.asked) == 1 and len(runs.blobs.asked[0][1]) == len(chunks_of(sources)) > 30
    assert runs.read() == list(range(len(KEYS))) and len(runs.blobs.asked) == 1


def test_what_came_is_in_the_cache_of_the_machine(tmp_path):
    runs = Runs(cache=CacheSettings(str(tmp_path / "cache"), 64 << 20), value_bytes=2000)
    for file in (tmp_path / "cache").iterdir():
        file.unlink() if file.is_file() else None
    runs.open_runs.keep_only(())
    wanted = requests(chunks_of(runs.sources()))
    runs.blobs.asked.clear()
    ahead = ahead_of(runs.open_runs)
    ahead.add(wanted)
    assert runs.read() == list(range(len(KEYS)))
    ahead.close()
    assert len(runs.blobs.asked) == len(wanted) == 1
    assert all(reader.far(range(len(reader.count))) == [] and reader.mapped for reader, _ in wanted[0].chunks[:1])
    other = world.open_store(runs.store.history.blobs, ManualClock(0), world.settings(chunk_bytes=1))
    view = other.snapshot().stored("t0")
    assert view.multi_get(KEYS).aligned().column("v").to_pylist() == list(range(len(KEYS)))
    assert len(runs.blobs.asked) == 1


def test_who_wants_a_chunk_under_way_waits_for_it():
    runs = Runs()
    chunks, answered = chunks_of(runs.sources()), threading.Event()
    runs.blobs.asked.clear()
    runs.blobs.answer = lambda name: wait(answered)
    ahead = ahead_of(runs.open_runs)
    ahead.add(requests(chunks))
    reading = threading.Thread(target=lambda: values.extend(runs.read()))
    values: list[int] = []
    reading.start()
    assert not values
    answered.set()
    reading.join()
    ahead.close()
    assert values == list(range(len(KEYS))) and len(runs.blobs.asked) == 1


def apart(runs: Runs) -> list:
    """A request for each chunk."""
    return [request for chunk in chunks_of(runs.sources()) for request in requests([chunk])]


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_requests_are_under_way_and_no_more(most):
    runs, full = Runs(), threading.Event()
    wanted = apart(runs)

    def answer(name: str) -> None:
        if runs.blobs.under_way == most:
            full.set()
        wait(full)

    runs.blobs.answer, runs.blobs.most_under_way = answer, 0
    ahead = ahead_of(runs.open_runs, most)
    ahead.add(wanted)
    assert runs.read() == list(range(len(KEYS)))
    ahead.close()
    # One more is that of the reader itself, for what was only queued.
    assert most <= runs.blobs.most_under_way <= most + 1


def test_what_is_beyond_the_budget_waits_until_something_is_used():
    runs = Runs()
    wanted = apart(runs)
    budget = wanted[0].decoded_bytes + wanted[1].decoded_bytes
    arrived = threading.Semaphore(0)
    ahead = ahead_of(runs.open_runs, 1, budget)
    runs.blobs.asked.clear()
    runs.blobs.answer = lambda name: arrived.release()
    ahead.add(wanted)
    for _ in range(2):
        assert arrived.acquire(timeout=20)
    (thread,) = ahead._threads
    while thread.is_alive() and not ahead._changed._waiters:
        thread.join(0.001)
    assert len(runs.blobs.asked) == 2
    reader, chunk = wanted[0].chunks[0]
    runs.open_runs._cache.get(reader.ref.id, chunk)
    assert arrived.acquire(timeout=20)
    ahead.close()
    assert len(runs.blobs.asked) == 3


def test_what_is_only_queued_is_fetched_by_who_wants_it():
    runs = Runs()
    wanted, answered = apart(runs), threading.Event()
    runs.blobs.asked.clear()
    first = threading.Event()

    def answer(name: str) -> None:
        if not first.is_set():
            first.set()
            wait(answered)

    runs.blobs.answer = answer
    ahead = ahead_of(runs.open_runs, 1)
    ahead.add(wanted)
    wait(first)
    reader, chunk = wanted[-1].chunks[0]
    assert len(reader.fetch([chunk])[chunk]) == reader.count[chunk]
    answered.set()
    assert runs.read() == list(range(len(KEYS)))
    ahead.close()
    ranges = [range_ for _, ranges in runs.blobs.asked for range_ in ranges]
    assert len(ranges) == len(set(ranges)) == len(wanted)


def test_what_travels_in_the_background_counts_for_who_asked():
    runs, tally = Runs(), UseTally()
    wanted = requests(chunks_of(runs.sources()))
    with tallied(tally, "sessions"):
        ahead = ahead_of(runs.open_runs)
    ahead.add(wanted)
    ahead.close()
    used = tally.uses()["sessions"]["object"]
    assert used.gets == 1 and used.read_bytes == sum(reader.place(chunk)[1] for reader, chunk in wanted[0].chunks)


def test_an_error_is_raised_once_where_its_chunk_is_wanted():
    runs = Runs()
    (wanted,) = requests(chunks_of(runs.sources()))

    def fail(name: str) -> None:
        raise Unavailable("no answer")

    runs.blobs.answer = fail
    ahead = ahead_of(runs.open_runs)
    ahead.add([wanted])
    with pytest.raises(Unavailable, match="no answer"):
        runs.read()
    runs.blobs.answer = lambda name: None
    assert runs.read() == list(range(len(KEYS)))
    ahead.close()


def test_damage_that_came_in_the_background_names_the_file():
    runs = Runs()
    wanted = requests(chunks_of(runs.sources()))
    object_ = wanted[0].chunks[0][0].ref.object
    damaged = bytearray(runs.blobs.get(object_).to_pybytes())
    offset, _ = wanted[0].chunks[0][0].place(0)
    damaged[offset + 40] ^= 1
    runs.blobs.put(object_, bytes(damaged))
    ahead = ahead_of(runs.open_runs)
    ahead.add(wanted)
    with pytest.raises(Corrupt) as error:
        runs.read()
    ahead.close()
    assert error.value.file == object_


def test_ranges_far_apart_and_long_ones_are_requests_of_their_own():
    runs = Runs()
    chunks = chunks_of(runs.sources())
    reader = chunks[0][0]
    offset, length = reader._offset.copy(), reader._length.copy()
    reader._offset = (np.arange(len(offset)) * (1 << 20)).astype(offset.dtype)
    assert len(requests(chunks)) == len(chunks)
    reader._length = np.full(len(length), 1 << 20).astype(length.dtype)
    assert [len(request.chunks) for request in requests(chunks)][:2] == [8, 8]


def test_requests_come_in_the_order_of_hashes():
    runs = Runs(tables=2)
    wanted = apart(runs)
    hashes = [request.first_hash for request in requests([chunk for request in wanted[::-1] for chunk in request.chunks])]
    assert hashes == sorted(hashes) and min(hash_columns([KEYS.column("k").combine_chunks()])) == hashes[0]
