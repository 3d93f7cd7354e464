"""The pieces that a worker keeps for owners of slots: in memory up to a budget, then on the local disk.

Both are files without a name, so that another process on the host can be given them, and a kill frees them.
"""

import mmap
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from floodplain.runtime.pieces import PieceKey, Segment
from floodplain.tiers.files.errors import no_space_as_ours

MEMORY, DISK = 0, 1
"""The files of a piece."""


class NotKept(Exception):
    """Rows that are asked for, or come, for a try that this worker does not work at."""


class RowStream(NamedTuple):
    """Rows as an Arrow stream, and what vouches for its bytes wherever they go."""

    data: Any
    rows: int
    checksum: int

    @classmethod
    def of(cls, rows: pa.Table) -> "RowStream":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        data = sink.getvalue()
        return cls(data, len(rows), checksum_of(data))


def checksum_of(data: Any) -> int:
    return xxhash.xxh3_64_intdigest(data)


@dataclass
class _Kept:
    files: list[int | None] = field(default_factory=lambda: [None, None])
    sizes: list[int] = field(default_factory=lambda: [0, 0])
    segments: list[Segment] = field(default_factory=list)


class PieceStore:
    """The pieces of one try. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nonce = ""
        self._budget_bytes = 0
        self._pieces: dict[PieceKey, _Kept] = {}
        self.spilled_bytes = 0

    def begin(self, nonce: str, budget_bytes: int) -> None:
        """Drop what belongs to other tries; the first ``budget_bytes`` of this one stay in memory."""
        with self._lock:
            if nonce != self._nonce:
                self._drop()
                self._nonce, self._budget_bytes = nonce, budget_bytes

    def drop(self, nonce: str) -> None:
        with self._lock:
            if nonce == self._nonce:
                self._drop()
                self._nonce = ""

    def close(self) -> None:
        with self._lock:
            self._drop()
            self._nonce = ""

    def _drop(self) -> None:
        for piece in self._pieces.values():
            for fd in piece.files:
                if fd is not None:
                    os.close(fd)
        self._pieces.clear()
        self.spilled_bytes = 0

    def add(self, nonce: str, key: PieceKey, slot: int, stream: RowStream) -> Segment:
        """Append rows of a slot. Raises ``NotKept``."""
        length = memoryview(stream.data).nbytes
        with self._lock, no_space_as_ours("rows between workers"):
            if nonce != self._nonce:
                raise NotKept("another try has begun")
            piece = self._pieces.setdefault(key, _Kept())
            at = MEMORY if length <= self._budget_bytes else DISK
            if at == MEMORY:
                self._budget_bytes -= length
            else:
                self.spilled_bytes += length
            fd = piece.files[at]
            if fd is None:
                fd = piece.files[at] = _memory() if at == MEMORY else _disk()
            segment = Segment(slot, at, piece.sizes[at], length, stream.rows, stream.checksum)
            _write(fd, stream.data, segment.offset)
            piece.sizes[at] += length
            piece.segments.append(segment)
            return segment

    def segments(self, nonce: str, key: PieceKey) -> tuple[Segment, ...]:
        """Those of a piece that may still grow. Raises ``NotKept``."""
        with self._lock:
            if nonce != self._nonce:
                raise NotKept("another try has begun")
            piece = self._pieces.get(key)
            return () if piece is None else tuple(piece.segments)

    def files(self, nonce: str, key: PieceKey) -> list[int]:
        """Copies of the files of a piece, to be closed by the caller: memory first, then disk. Raises ``NotKept``."""
        with self._lock:
            piece = self._pieces.get(key) if nonce == self._nonce else None
            if piece is None:
                raise NotKept(f"there is no piece {key.partition} of {key.exchange} of this try")
            return [_memory() if fd is None else os.dup(fd) for fd in piece.files]


def mapped(fds: Sequence[int]) -> list[pa.Buffer]:
    """The files as buffers. Closes them; the memory lives as long as what was read from it."""
    buffers = []
    for fd in fds:
        size = os.fstat(fd).st_size
        buffers.append(pa.py_buffer(mmap.mmap(fd, size, access=mmap.ACCESS_READ)) if size else pa.py_buffer(b""))
        os.close(fd)
    return buffers


def part_of(files: Sequence[pa.Buffer], segment: Segment) -> pa.Buffer:
    """The bytes of a segment. Raises ``NotKept`` if it is not in its file: a buffer does not check its bounds."""
    file = files[segment.file] if 0 <= segment.file < len(files) else pa.py_buffer(b"")
    if segment.offset < 0 or segment.length < 0 or segment.offset + segment.length > file.size:
        raise NotKept(f"there are no {segment.length} bytes at {segment.offset} of a file of {file.size}")
    return file.slice(segment.offset, segment.length)


def rows_of(data: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow stream, without a copy."""
    with pa.ipc.open_stream(data) as stream:
        yield from stream


def _memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("floodplain-rows", os.MFD_CLOEXEC)
    return _disk()


def _disk() -> int:
    with tempfile.TemporaryFile(prefix="floodplain-rows-") as file:
        return os.dup(file.fileno())


def _write(fd: int, data: Any, at: int) -> None:
    """At an offset: what an earlier write that failed has left is overwritten."""
    view = memoryview(data).cast("B")
    while len(view):
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
