"""Chunks that were verified in this process, so that each is checked once and decompressed seldom."""

import threading
from collections import OrderedDict

import pyarrow as pa


class ChunkCache:
    """Least recently used chunks by run and number. Chunks that lie in a mapped file are kept free of charge."""

    def __init__(self, size_bytes: int) -> None:
        self._limit = size_bytes
        self._used = 0
        self._chunks: OrderedDict[tuple[str, int], tuple[pa.RecordBatch, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, run: str, chunk: int) -> pa.RecordBatch | None:
        with self._lock:
            found = self._chunks.get((run, chunk))
            if found is None:
                return None
            self._chunks.move_to_end((run, chunk))
            return found[0]

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

    def drop_all_but(self, runs: set[str]) -> None:
        """Let go of the chunks of runs that are not among ``runs``."""
        with self._lock:
            for key in [key for key in self._chunks if key[0] not in runs]:
                self._used -= self._chunks.pop(key)[1]
