"""Blobs in this process's memory, for tests and trials."""

import threading
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from floodplain.errors import AlreadyExists, NotFound
from floodplain.metrics import Counters
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable
from floodplain.tiers.meter import DELETE, GET, HEAD, LIST, PUT, Meter
from floodplain.tiers.paths import checked_blob, checked_prefix
from floodplain.tiers.ranges import checked_ranges


class Space:
    """What a memory tier holds, so that several of them can hold the same."""

    def __init__(self) -> None:
        self.held: dict[str, pa.Buffer] = {}
        self.lock = threading.Lock()


class MemoryBlobs(Blobs):
    """Gone with the process. Keeps a copy of what it is given, so a caller may reuse its buffer."""

    tier = "memory"
    answers_at_once = True

    def __init__(self, url: str, counters: Counters, space: Space | None = None) -> None:
        self.url = url
        self._meter = Meter(counters, self.tier)
        space = space or Space()
        self._held = space.held
        self._lock = space.lock

    def create(self, name: str, data: Writable) -> None:
        copy = pa.py_buffer(bytes(data))
        self._meter.count_requests(kind=PUT)
        with self._lock:
            if self._held.setdefault(checked_blob(name), copy) is not copy:
                raise AlreadyExists(f"{name} exists at {self.url}")
        self._meter.wrote(copy.size)

    def put(self, name: str, data: Data) -> None:
        copy = pa.py_buffer(bytes(data))
        self._meter.count_requests(kind=PUT)
        with self._lock:
            self._held[checked_blob(name)] = copy
        self._meter.wrote(copy.size)

    def get(self, name: str) -> pa.Buffer:
        held = self._find(name)
        self._meter.read(held.size)
        return held

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        held = self._find(name)
        slices = [_slice(held, offset, length) for offset, length in checked_ranges(name, ranges)]
        self._meter.read(sum(piece.size for piece in slices))
        return slices

    def map(self, name: str) -> pa.Buffer | None:
        checked_blob(name)
        return None

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        checked_prefix(prefix)
        self._meter.count_requests(kind=LIST)
        with self._lock:
            blobs = sorted((name, held.size) for name, held in self._held.items() if name.startswith(prefix) and name > after)
        for name, size in blobs:
            yield BlobInfo(name, size)

    def delete(self, names: Iterable[str]) -> None:
        checked = [checked_blob(name) for name in names]
        self._meter.count_requests(bool(checked), DELETE)
        with self._lock:
            for name in checked:
                self._held.pop(name, None)

    def size(self, name: str) -> int:
        return int(self._find(name, HEAD).size)

    def _find(self, name: str, kind: str = GET) -> pa.Buffer:
        self._meter.count_requests(kind=kind)
        with self._lock:
            held = self._held.get(checked_blob(name))
        if held is None:
            raise NotFound(f"{name} does not exist at {self.url}")
        return held


def _slice(held: pa.Buffer, offset: int, length: int) -> pa.Buffer:
    start = min(offset, held.size)
    return held.slice(start, min(length, held.size - start))
