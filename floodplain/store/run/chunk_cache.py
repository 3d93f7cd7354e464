"""An LRU cache of verified, decoded chunks: each is checked once per process and decompressed rarely."""

import threading
from collections import OrderedDict
from collections.abc import Iterable

import pyarrow as pa


class ChunkCache:
    """Chunks by run and number, evicted least recently used first. Chunks in a mapped file do not count against the limit."""

    def __init__(self, size_bytes: int) -> None:
        self._limit = size_bytes
        self._used = 0
        self._chunks: OrderedDict[tuple[str, int], tuple[pa.RecordBatch, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, run: str, chunk: int) -> pa.RecordBatch | None:
        with self._lock:
            batch = self._chunks.get((run, chunk))
            if batch is None:
                return None
            self._chunks.move_to_end((run, chunk))
            return batch[0]

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
