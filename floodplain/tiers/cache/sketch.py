"""Recent access frequencies of keys: a count-min sketch shared by all processes."""

import mmap
import os
import struct
from pathlib import Path

import numpy as np
import xxhash

from floodplain.tiers.files.modes import AS_UMASK, Modes

_ROWS = 4
_HEADER_BYTES = 8
_MOST = 15
"""Counts stop here, so that what was hot once cools in a few halvings."""
_HASHES = struct.Struct(f"<{_ROWS}I")


class Sketch:
    """A count-min sketch in a file that every process maps: an estimate is the true count, up to 15, or a little more.

    Two processes that add at once may lose a count; a guess about the future can bear that.
    """

    def __init__(self, path: Path, width: int, modes: Modes = AS_UMASK) -> None:
        self._width = width
        fd = modes.open(path, os.O_RDWR)
        try:
            os.ftruncate(fd, file_bytes(width))
            view = memoryview(mmap.mmap(fd, file_bytes(width)))
        finally:
            os.close(fd)
        self._seen = view[:_HEADER_BYTES].cast("Q")
        self._counts = view[_HEADER_BYTES:]

    def add(self, key: str) -> None:
        self._seen[0] += 1
        cells = self._cells(key)
        lowest = min(self._counts[cell] for cell in cells)
        if lowest < _MOST:
            for cell in cells:
                if self._counts[cell] == lowest:
                    self._counts[cell] = lowest + 1

    def estimate(self, key: str) -> int:
        return min(self._counts[cell] for cell in self._cells(key))

    def age(self) -> None:
        """Halve all counts once enough keys were seen, so that the past fades. Requires: only one process at a time."""
        if self._seen[0] >= 8 * self._width:
            counts = np.frombuffer(self._counts, np.uint8)
            counts >>= 1
            self._seen[0] = 0

    def _cells(self, key: str) -> list[int]:
        hashes = _HASHES.unpack(xxhash.xxh3_128_digest(key.encode()))
        return [row * self._width + hashed % self._width for row, hashed in enumerate(hashes)]


def width_for(size_bytes: int) -> int:
    """Cells per row for a cache of this size: about one for each entry of 64 KiB, and at most 4 MiB in all."""
    return 1 << min(20, max(10, (size_bytes >> 16).bit_length()))


def file_bytes(width: int) -> int:
    return _HEADER_BYTES + _ROWS * width
