"""Reading at a bounded rate, beside others who need the same disk or network."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from floodplain.clock import Clock
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable

_SHORTEST_S = 0.001
"""Waits below this are put off to the next read: a sleep is no more exact than that."""


class Paced(Blobs):
    """The blobs of ``lower``, read at ``bytes_per_s`` at most, and from where they are stored.

    Each read waits until those before it have had their time, so the rate is kept over any span of time, give or take one
    read. Nothing is mapped. What caches hold of a blob, the page cache included, is dropped before it is read in ranges: only
    what some process has mapped may be read from memory still. For one thread.
    """

    def __init__(self, lower: Blobs, bytes_per_s: int, clock: Clock, on_read: Callable[[int], None] | None = None) -> None:
        """``on_read`` is called after each read with the number of bytes read so far."""
        self.tier = lower.tier
        self.url = lower.url
        self._lower = lower
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._on_read = on_read
        self._free_at_s = clock.monotonic_s()
        self._forgotten = ""
        self.read_bytes = 0

    def get(self, name: str) -> pa.Buffer:
        self._wait()
        data = self._lower.get(name)
        self._count(data.size)
        return data

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        if name != self._forgotten:
            self._lower.forget([name])
            self._forgotten = name
        self._wait()
        buffers = self._lower.get_ranges(name, ranges)
        self._count(sum(data.size for data in buffers))
        return buffers

    def map(self, name: str) -> pa.Buffer | None:  # noqa: ARG002
        return None

    def create(self, name: str, data: Writable) -> None:
        self._lower.create(name, data)

    def put(self, name: str, data: Data) -> None:
        self._lower.put(name, data)

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        return self._lower.list(prefix, after)

    def top(self) -> Iterable[str]:
        return self._lower.top()

    def delete(self, names: Iterable[str]) -> None:
        self._lower.delete(names)

    def size(self, name: str) -> int:
        return self._lower.size(name)

    def modified_ms(self, name: str) -> int | None:
        return self._lower.modified_ms(name)

    def forget(self, names: Iterable[str]) -> None:
        self._lower.forget(names)

    def sweep(self, clock: Clock, older_than_ms: int) -> int:
        return self._lower.sweep(clock, older_than_ms)

    def close(self) -> None:
        self._lower.close()

    def _wait(self) -> None:
        ahead_s = self._free_at_s - self._clock.monotonic_s()
        if ahead_s >= _SHORTEST_S:
            self._clock.sleep_s(ahead_s)

    def _count(self, size_bytes: int) -> None:
        """Time that was not used is not saved up: what is read after a pause is no faster."""
        self._free_at_s = max(self._free_at_s, self._clock.monotonic_s()) + size_bytes / self._bytes_per_s
        self.read_bytes += size_bytes
        if self._on_read is not None:
            self._on_read(self.read_bytes)
