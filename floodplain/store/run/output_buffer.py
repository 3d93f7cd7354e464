"""The output buffer of a run: memory first, then a temporary file."""

import io
from bisect import bisect_left
from typing import Any

import pyarrow as pa

from floodplain.scratch import Scratch
from floodplain.tiers.blobs import Gathered


class RunSink(io.RawIOBase):
    """Remembers what Arrow writes where it lies. Fresh memory to copy it to costs more than all the rest of writing.

    What is more than ``held_bytes`` goes to a temporary file, which is mapped in the end; None: all of it is held.
    """

    def __init__(self, held_bytes: int | None = None) -> None:
        self._limit = held_bytes
        self._parts: list[bytes | pa.Buffer] = []
        self._starts: list[int] = []
        self._size = self._spooled = 0
        self._scratch: Scratch | None = None
        self._file: io.BufferedWriter | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        self._parts.append(data)
        self._starts.append(self._size)
        self._size += len(data)
        return len(data)

    def since(self, start: int) -> list[bytes | pa.Buffer]:
        """The bytes from this offset on. Requires: a write began here, after the last ``advance``."""
        return self._parts[bisect_left(self._starts, start) :]

    def advance(self) -> None:
        """The bytes so far are not read again and may spill to disk."""
        if self._limit is not None and self._size - self._spooled > self._limit:
            self._spool()

    def gathered(self) -> Gathered:
        """All bytes written. Ends writing."""
        if self._file is None or self._scratch is None:
            return Gathered(self._parts)
        self._spool()
        self._file.close()
        with pa.memory_map(self._file.name) as mapped:
            whole = mapped.read_buffer()
        # What is mapped stays readable when the file is gone.
        self._scratch.remove()
        return Gathered([whole])

    def _spool(self) -> None:
        if self._file is None:
            self._scratch = Scratch("run")
            self._file = (self._scratch.path / "run").open("wb")
        for part in self._parts:
            self._file.write(part)
        self._parts, self._starts, self._spooled = [], [], self._size
