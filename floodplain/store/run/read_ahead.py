"""Read-ahead: chunks travel in the background while those at hand are used."""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from floodplain.errors import NotFound
from floodplain.store.run.chunk_cache import ChunkCache, ChunkKey
from floodplain.store.run.footer import damaged
from floodplain.store.run.reader import RunReader
from floodplain.tier_use import carried_tally
from floodplain.tiers.ranges import GAP_BYTES

_MOST_REQUEST_BYTES = 8 << 20
"""Of one request: longer ranges are split, so that they travel side by side and their first chunks can be used early."""

ChunkOf: TypeAlias = tuple[RunReader, int]


@dataclass(frozen=True, slots=True)
class Request:
    """Chunks near each other in one object, of any of its runs: one request brings them."""

    chunks: tuple[ChunkOf, ...]

    @property
    def decoded_bytes(self) -> int:
        return sum(int(reader.decoded_bytes[chunk]) for reader, chunk in self.chunks)

    @property
    def first_hash(self) -> int:
        return min(int(reader.first[chunk]) for reader, chunk in self.chunks)

    def without(self, claimed: set[ChunkKey]) -> "Request":
        return Request(tuple(chunk for chunk in self.chunks if key_of(chunk) not in claimed)) if claimed else self

    def bring(self) -> dict[ChunkKey, pa.RecordBatch]:
        """The chunks, verified. Raises ``Corrupt`` for what is damaged, and what the tier raises."""
        first = self.chunks[0][0]
        # What the cache of this machine keeps decoded, it need not keep as it is stored.
        read = first.blobs.get_ranges if first.cached is None else first.blobs.fetch_ranges
        try:
            parts = read(first.ref.object, [reader.place(chunk) for reader, chunk in self.chunks])
        except NotFound as error:
            raise damaged(first.ref, "the file", "no such file") from error
        data: dict[RunReader, dict[int, pa.Buffer]] = {}
        for (reader, chunk), stored in zip(self.chunks, parts, strict=True):
            data.setdefault(reader, {})[chunk] = stored
        for reader, stored in data.items():
            if reader.cached is not None:
                reader.cached.count_misses(len(stored))
        admitted = {reader: reader.admitted(stored) for reader, stored in data.items()}
        return {key_of((reader, chunk)): batch for reader, batches in admitted.items() for chunk, batch in batches.items()}


def key_of(chunk: ChunkOf) -> ChunkKey:
    return chunk[0].ref.id, chunk[1]


def requests(chunks: Iterable[ChunkOf]) -> list[Request]:
    """The fewest requests that bring these chunks without joining ranges far apart, in the order of key hashes."""
    by_object: dict[str, list[tuple[int, int, ChunkOf]]] = {}
    for reader, chunk in chunks:
        by_object.setdefault(reader.ref.object, []).append((*reader.place(chunk), (reader, chunk)))
    made = [Request(tuple(near)) for placed in by_object.values() for near in _joined(placed)]
    return sorted(made, key=lambda request: request.first_hash)


def _joined(placed: list[tuple[int, int, ChunkOf]]) -> list[list[ChunkOf]]:
    joined: list[list[ChunkOf]] = []
    start = end = -GAP_BYTES - 1
    for offset, length, chunk in sorted(placed, key=lambda place: place[:2]):
        if offset > end + GAP_BYTES or offset + length - start > _MOST_REQUEST_BYTES:
            joined.append([])
            start = offset
        joined[-1].append(chunk)
        end = offset + length
    return joined


class _State:
    """Marks a chunk that is not there yet."""


_QUEUED: Final = _State()
_UNDER_WAY: Final = _State()


class ReadAhead:
    """Fetches chunks in the background, in order, with bounds on requests under way and on bytes that wait to be used.

    A reader that wants a chunk under way waits for it; one that is only queued it fetches itself, so that nothing waits for
    what the bounds hold back. What a request raises is raised once, by the first reader of one of its chunks.
    """

    def __init__(self, cache: ChunkCache, *, most_requests: int, budget_bytes: int) -> None:
        self._cache = cache
        self._bring = carried_tally(Request.bring)
        """As if the thread that made this asked."""
        self._most_requests = most_requests
        self._budget_bytes = budget_bytes
        self._changed = threading.Condition()
        self._queue: deque[Request] = deque()
        self._chunks: dict[ChunkKey, _State | BaseException | pa.RecordBatch] = {}
        self._sizes: dict[ChunkKey, int] = {}
        self._ahead_bytes = 0
        """Decoded, of the chunks that are under way or wait to be used."""
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._closed = False

    def add(self, wanted: Sequence[Request]) -> None:
        """Queues requests, and returns at once."""
        with self._changed:
            for request in wanted:
                for chunk in request.chunks:
                    self._chunks[key_of(chunk)] = _QUEUED
                    self._sizes[key_of(chunk)] = int(chunk[0].decoded_bytes[chunk[1]])
            self._cache.expect((key_of(chunk) for request in wanted for chunk in request.chunks), self)
            self._queue += wanted
            fresh = min(self._most_requests, len(self._queue)) - self._running
            threads = [threading.Thread(target=self._work, name="floodplain-read-ahead", daemon=True) for _ in range(fresh)]
            self._running += len(threads)
            self._threads += threads
        for thread in threads:
            thread.start()

    def take(self, key: ChunkKey) -> pa.RecordBatch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._chunks.get(key) is not _UNDER_WAY)
            state = self._chunks.pop(key, None)
            taken = [key]
            if isinstance(state, BaseException):
                # The error of a request is that of all its chunks: who asks again fetches them for himself.
                taken += [other for other, its in self._chunks.items() if its is state]
                for other in taken[1:]:
                    del self._chunks[other]
            self._cache.expect_no_more(taken, self)
            if isinstance(state, BaseException | pa.RecordBatch):
                self._ahead_bytes -= sum(self._sizes[each] for each in taken)
                self._changed.notify_all()
        if isinstance(state, BaseException):
            raise state
        return state if isinstance(state, pa.RecordBatch) else None

    def close(self) -> None:
        """Waits for requests under way and starts no more. What has arrived and was not used goes to the cache."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        with self._changed:
            left, self._chunks = self._chunks, {}
            self._cache.expect_no_more(left, self)
        for (run, chunk), state in left.items():
            if isinstance(state, pa.RecordBatch):
                self._cache.put(run, chunk, state, held=False)

    def _work(self) -> None:
        while (request := self._next()) is not None:
            came: dict[ChunkKey, pa.RecordBatch | BaseException]
            try:
                came = {**self._bring(request)}
            except BaseException as error:  # raised where the chunk is wanted
                came = dict.fromkeys(map(key_of, request.chunks), error)
            with self._changed:
                self._chunks.update(came)
                self._changed.notify_all()

    def _next(self) -> Request | None:
        """The next request, without the chunks that were claimed; waits while the budget is used up."""
        with self._changed:
            while True:
                self._changed.wait_for(self._may_go_on)
                if not self._queue:
                    self._running -= 1
                    return None
                request = self._queue.popleft()
                request = request.without({key for key in map(key_of, request.chunks) if key not in self._chunks})
                if request.chunks:
                    self._ahead_bytes += request.decoded_bytes
                    self._chunks.update(dict.fromkeys(map(key_of, request.chunks), _UNDER_WAY))
                    return request

    def _may_go_on(self) -> bool:
        if self._closed or not self._queue or not self._ahead_bytes:
            return True
        return self._ahead_bytes + self._queue[0].decoded_bytes <= self._budget_bytes
