"""Where a run that is at hand has a hash: for one key, without the machinery of a multi-get."""

from bisect import bisect_left

import numpy as np
import pyarrow as pa

from floodplain.store.rows import layout
from floodplain.store.rows.layout import HASH
from floodplain.store.run.reader import RunReader


class PointIndex:
    """Of one open run. Requires: it is mapped, and has no hash twice."""

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader
        self._first, self._last = reader.first.tolist(), reader.last.tolist()
        self._chunks: dict[int, tuple[np.ndarray, list[pa.Array]]] = {}

    def find(self, hash_: int) -> tuple[list[pa.Array], int] | None:
        """The columns of the chunk, and the row in it. Chunks are verified when they are first used, as for every reader."""
        chunk = bisect_left(self._last, hash_)
        if chunk == len(self._last) or self._first[chunk] > hash_:
            return None
        self.reader.check_length()
        hashes, columns = self._chunks.get(chunk) or self._opened(chunk)
        row = int(hashes.searchsorted(np.uint64(hash_)))
        return (columns, row) if int(hashes[row]) == hash_ else None

    def _opened(self, chunk: int) -> tuple[np.ndarray, list[pa.Array]]:
        batch = self.reader.fetch([chunk])[chunk]
        opened = layout.numbers(batch, HASH), batch.columns
        if self.reader.at_hand(chunk):
            self._chunks[chunk] = opened
        return opened
