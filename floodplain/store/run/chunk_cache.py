"""An LRU cache of verified, decoded chunks: each is checked once per process and decompressed rarely."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol, TypeAlias

import pyarrow as pa

ChunkKey: TypeAlias = tuple[str, int]
"""(id of the run, number of the chunk)"""


class Arrivals(Protocol):
    """Chunks that are being fetched in the background."""

    def take(self, key: ChunkKey) -> pa.RecordBatch | None:
        """The chunk, once it is there; None if it is not coming: then the caller fetches it. Raises what fetching it raised."""


class ChunkCache:
    """Chunks by run and number, evicted least recently used first. Chunks in a mapped file do not count against the limit.

    Who asks for a chunk that is being fetched in the background waits for it, so that no chunk travels twice.
    """

    def __init__(self, size_bytes: int) -> None:
        self._limit = size_bytes
        self._used = 0
        self._chunks: OrderedDict[ChunkKey, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._coming: dict[ChunkKey, Arrivals] = {}
        self._lock = threading.Lock()

    def get(self, run: str, chunk: int) -> pa.RecordBatch | None:
        coming = self._coming.get((run, chunk))
        if coming is not None and (arrived := coming.take((run, chunk))) is not None:
            self.put(run, chunk, arrived, held=False)
            return arrived
        with self._lock:
            batch = self._chunks.get((run, chunk))
            if batch is None:
                return None
            self._chunks.move_to_end((run, chunk))
            return batch[0]

    def has(self, run: str, chunk: int) -> bool:
        """Whether ``get`` finds the chunk, maybe after waiting for it."""
        with self._lock:
            return (run, chunk) in self._chunks or (run, chunk) in self._coming

    def expect(self, keys: Iterable[ChunkKey], arrivals: Arrivals) -> None:
        """From now on, ``get`` takes these chunks from ``arrivals``."""
        with self._lock:
            self._coming.update(dict.fromkeys(keys, arrivals))

    def expect_no_more(self, keys: Iterable[ChunkKey], arrivals: Arrivals) -> None:
        with self._lock:
            for key in keys:
                if self._coming.get(key) is arrivals:
                    del self._coming[key]

    def put(self, run: str, chunk: int, batch: pa.RecordBatch, *, held: bool) -> None:
        """``held``: the batch's memory belongs to a mapping, not to this process."""
        cost = 0 if held else batch.nbytes
        if cost > self._limit:
            return
        with self._lock:
            if (run, chunk) in self._chunks:
                return
            self._chunks[run, chunk] = (batch, cost)
            self._used += cost
            while self._used > self._limit:
                self._used -= self._chunks.popitem(last=False)[1][1]

    def drop(self, run: str, chunks: Iterable[int]) -> None:
        """Evict these chunks."""
        with self._lock:
            for chunk in chunks:
                self._used -= self._chunks.pop((run, chunk), (None, 0))[1]

    def drop_all_but(self, runs: set[str]) -> None:
        """Evict the chunks of all other runs."""
        with self._lock:
            for key in [key for key in self._chunks if key[0] not in runs]:
                self._used -= self._chunks.pop(key)[1]
