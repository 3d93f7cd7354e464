"""Reading a run: its footer first, then only the chunks asked for, each verified when it is first touched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from floodplain.errors import NotFound
from floodplain.store import filters, layout
from floodplain.store.chunkcache import ChunkCache
from floodplain.store.footer import Footer, Place, damaged, decode
from floodplain.store.layout import HASH, MERGE, OP, SUB
from floodplain.tiers.blobs import Blobs
from floodplain.versions.edit import RunRef


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows of one chunk that may answer needles: ``needle[i]`` meets row ``row[i]``."""

    chunk: pa.RecordBatch
    needle: np.ndarray
    row: np.ndarray


class RunReader:
    """One run, opened. Safe to share between threads: what it caches is immutable."""

    def __init__(
        self, ref: RunRef, footer: Footer, expected: pa.Schema, body: pa.Buffer | None, blobs: Blobs, cache: ChunkCache
    ) -> None:
        self.ref = ref
        self._footer = footer
        self._schema = _checked_schema(ref, footer, expected)
        self._body = body
        self._blobs = blobs
        self._cache = cache
        self.first, self.first_sub = footer.column("first"), footer.column("first_sub")
        self.last, self.last_sub = footer.column("last"), footer.column("last_sub")
        self.count = footer.column("count").astype(np.int64)
        self._offset, self._length = footer.column("offset"), footer.column("length")
        self._checksum = footer.column("checksum")
        self._ends = np.cumsum(self.count)
        self._parts: dict[Place, pa.Buffer] = {}

    @property
    def mapped(self) -> bool:
        return self._body is not None

    @property
    def unique(self) -> bool:
        return self._footer.unique

    def fetch(self, chunks: Sequence[int], held: Mapping[int, pa.RecordBatch] | None = None) -> dict[int, pa.RecordBatch]:
        """These chunks, verified; those in ``held`` were fetched before."""
        held = held or {}
        found = {chunk: held.get(chunk) or self._cache.get(self.ref.id, chunk) for chunk in chunks}
        missing = [chunk for chunk, batch in found.items() if batch is None]
        ranges = [(int(self._offset[chunk]), int(self._length[chunk])) for chunk in missing]
        for chunk, data in zip(missing, self._read(ranges), strict=True):
            found[chunk] = self._decode(chunk, data)
            self._cache.put(self.ref.id, chunk, found[chunk], held=self._zero_copy(found[chunk]))
        return {chunk: batch for chunk, batch in found.items() if batch is not None}

    def find(
        self, hashes: np.ndarray, subs: np.ndarray | None = None, held: Mapping[int, pa.RecordBatch] | None = None
    ) -> Iterator[Hits]:
        """Rows with these hashes (and sub-keys), chunk by chunk. Requires: ``hashes`` ascending."""
        if self._footer.index is not None:
            yield from self._find_by_index(hashes, subs, held)
            return
        needles = self._needles_by_chunk(hashes, subs)
        for chunk, batch in self.fetch(list(needles), held).items():
            yield self._match(batch, needles[chunk], hashes, subs)

    def wanted_chunks(self, hashes: np.ndarray, subs: np.ndarray | None) -> list[int]:
        """The chunks that ``find`` would read."""
        if self._footer.index is not None:
            _, row = self._index_rows(hashes)
            return np.unique(np.searchsorted(self._ends, row, "right")).tolist()
        return list(self._needles_by_chunk(hashes, subs))

    def may_contain(self, hashes: np.ndarray) -> np.ndarray:
        """False for hashes that are surely not in this run. Asks the filter only where reading the rows would travel."""
        if self.mapped or self._footer.filter is None:
            return np.ones(len(hashes), bool)
        bits = self._part(self._footer.filter)
        if not bits.size or bits.size % filters.BLOCK_BYTES:
            raise damaged(self.ref, f"a filter of {filters.BLOCK_BYTES}-byte blocks", f"{bits.size} bytes")
        return filters.may_contain(np.frombuffer(bits, np.uint8), hashes)

    def span(self, low: int, high: int) -> range:
        """The chunks that hold hashes (key groups in a time table) from ``low`` to ``high``, both inclusive."""
        return range(
            int(np.searchsorted(self.last, np.uint64(low), "left")), int(np.searchsorted(self.first, np.uint64(high), "right"))
        )

    def verify(self) -> int:
        """Check every byte; returns how many. Raises ``Corrupt``."""
        if self._read_header() != self._footer.arrow:
            raise damaged(self.ref, "the schema message", "other bytes")
        for chunk in range(len(self.count)):
            self._decode(chunk, self._read([(int(self._offset[chunk]), int(self._length[chunk]))])[0])
        for place in (self._footer.index, self._footer.filter):
            if place is not None:
                self._check_part(place, self._read([(place.offset, place.length)])[0])
        self._check_gaps()
        return self.ref.length

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        if not ranges:
            return []
        if self._body is not None:
            return [self._body.slice(offset, length) for offset, length in ranges]
        try:
            return self._blobs.get_ranges(self.ref.object, [(self.ref.offset + offset, length) for offset, length in ranges])
        except NotFound as error:
            raise damaged(self.ref, "the file", "no such file") from error

    def _decode(self, chunk: int, data: pa.Buffer) -> pa.RecordBatch:
        expected, found = int(self._checksum[chunk]), xxhash.xxh3_64_intdigest(data)
        if data.size != self._length[chunk] or found != expected:
            raise damaged(self.ref, f"chunk {chunk} with checksum {expected:016x}", f"{data.size} bytes with {found:016x}")
        try:
            batch = pa.ipc.read_record_batch(data, self._schema)
            batch.validate(full=True)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise damaged(self.ref, f"chunk {chunk} in Arrow's format", str(error)) from error
        if len(batch) != self.count[chunk]:
            raise damaged(self.ref, f"{self.count[chunk]} rows in chunk {chunk}", f"{len(batch)}")
        system = [batch.column(name) for name in (HASH, SUB, OP) if name in self._schema.names]
        if any(column.null_count for column in system) or layout.numbers(batch, OP).max(initial=0) > MERGE:
            raise damaged(self.ref, f"known ops in chunk {chunk}", "others")
        return batch

    def _zero_copy(self, batch: pa.RecordBatch) -> bool:
        """Whether the batch lies in the mapped file, so that keeping it costs no memory of this process."""
        if self._body is None:
            return False
        data = batch.column(HASH).buffers()[1]
        return self._body.address <= data.address < self._body.address + self._body.size

    def _part(self, place: Place) -> pa.Buffer:
        if place not in self._parts:
            self._parts[place] = self._check_part(place, self._read([(place.offset, place.length)])[0])
        return self._parts[place]

    def _check_part(self, place: Place, data: pa.Buffer) -> pa.Buffer:
        found = xxhash.xxh3_64_intdigest(data)
        if data.size != place.length or found != place.checksum:
            raise damaged(
                self.ref, f"{place.length} bytes at {place.offset} with checksum {place.checksum:016x}", f"{found:016x}"
            )
        return data

    def _read_header(self) -> bytes:
        return self._read([(0, len(self._footer.arrow))])[0].to_pybytes()

    def _check_gaps(self) -> None:
        """The bytes between the parts: the stream's end mark, then zeros up to the next part."""
        at = int(self._offset[-1] + self._length[-1])
        end = self.ref.length - self.ref.footer_length
        for place in (self._footer.index, self._footer.filter):
            if place is not None:
                self._check_filler(at, place.offset)
                at = place.offset + place.length
        self._check_filler(at, end)

    def _check_filler(self, at: int, to: int) -> None:
        found = self._read([(at, to - at)])[0].to_pybytes() if to > at else b""
        expected = (_END_MARK if at == int(self._offset[-1] + self._length[-1]) else b"").ljust(to - at, b"\0")
        if found != expected:
            raise damaged(self.ref, f"nothing but padding at {at}", "other bytes")

    def _needles_by_chunk(self, hashes: np.ndarray, subs: np.ndarray | None) -> dict[int, np.ndarray]:
        """Chunk → the needles that it may hold. Both are sorted, so a chunk's needles are neighbours."""
        low = np.searchsorted(hashes, self.first, "left")
        high = np.searchsorted(hashes, self.last, "right")
        found = {int(chunk): np.arange(low[chunk], high[chunk]) for chunk in np.flatnonzero(high > low)}
        if subs is None:
            return found
        inside = {chunk: self._within(chunk, needle, hashes[needle], subs[needle]) for chunk, needle in found.items()}
        return {chunk: needle for chunk, needle in inside.items() if len(needle)}

    def _within(self, chunk: int, needle: np.ndarray, hashes: np.ndarray, subs: np.ndarray) -> np.ndarray:
        """Leaves out needles of the chunk's first or last hash whose sub-key stands in another chunk."""
        before = (hashes == self.first[chunk]) & (subs < self.first_sub[chunk])
        after = (hashes == self.last[chunk]) & (subs > self.last_sub[chunk])
        return needle[~(before | after)]

    def _match(self, batch: pa.RecordBatch, needle: np.ndarray, hashes: np.ndarray, subs: np.ndarray | None) -> Hits:
        present, wanted = layout.numbers(batch, HASH), hashes[needle]
        low = np.searchsorted(present, wanted, "left")
        if self.unique and subs is None:
            hit = present[np.minimum(low, len(present) - 1)] == wanted
            return Hits(batch, needle[hit], low[hit])
        high = np.searchsorted(present, wanted, "right")
        if subs is not None:
            low, high = _narrow(layout.numbers(batch, SUB), low, high, subs[needle])
        which, row = _expand(low, high)
        return Hits(batch, needle[which], row)

    def _index_rows(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self._footer.index is not None
        index = np.frombuffer(self._part(self._footer.index), "<u8")
        present, rows = index[: len(index) // 2], index[len(index) // 2 :]
        if len(index) != 2 * self.ref.rows or rows.max(initial=0) >= self.ref.rows:
            raise damaged(self.ref, f"an index of {self.ref.rows} rows", "other rows")
        needle, place = _expand(np.searchsorted(present, hashes, "left"), np.searchsorted(present, hashes, "right"))
        return needle, rows[place].astype(np.int64)

    def _find_by_index(
        self, hashes: np.ndarray, subs: np.ndarray | None, held: Mapping[int, pa.RecordBatch] | None
    ) -> Iterator[Hits]:
        needle, row = self._index_rows(hashes)
        chunk = np.searchsorted(self._ends, row, "right")
        for which, batch in self.fetch(np.unique(chunk).tolist(), held).items():
            in_chunk = chunk == which
            hits = Hits(batch, needle[in_chunk], row[in_chunk] - (self._ends[which] - self.count[which]))
            if subs is not None:
                same = layout.numbers(batch, SUB)[hits.row] == subs[hits.needle]
                hits = Hits(batch, hits.needle[same], hits.row[same])
            yield hits


_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"


def open_run(ref: RunRef, expected: pa.Schema, store: str, blobs: Blobs, cache: ChunkCache) -> RunReader:
    """Reads the footer only. Raises ``Corrupt`` if the file is not the one that ``ref`` vouches for."""
    try:
        body = blobs.map(ref.object)
        if body is not None:
            return RunReader(ref, *_from_map(ref, body, expected, store), blobs, cache)
        place = (ref.offset + ref.length - ref.footer_length, ref.footer_length)
        data = blobs.get_ranges(ref.object, [place])[0]
    except NotFound as error:
        raise damaged(ref, "the file", "no such file") from error
    return RunReader(ref, decode(data, ref, store), expected, None, blobs, cache)


def _from_map(ref: RunRef, body: pa.Buffer, expected: pa.Schema, store: str) -> tuple[Footer, pa.Schema, pa.Buffer]:
    if body.size != ref.object_size:
        raise damaged(ref, f"{ref.object_size} bytes", f"{body.size} bytes")
    run = body.slice(ref.offset, ref.length)
    return decode(run.slice(ref.length - ref.footer_length), ref, store), expected, run


def _checked_schema(ref: RunRef, footer: Footer, expected: pa.Schema) -> pa.Schema:
    if footer.arrow != expected.serialize().to_pybytes():
        raise damaged(ref, f"rows of schema {ref.schema_id} of table {ref.table}", "another Arrow schema")
    return expected


def _expand(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All (i, x) with ``low[i] <= x < high[i]``, by i and then x."""
    size = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(low)), size)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(size) - size, size) + np.repeat(low, size)


def _narrow(present: np.ndarray, low: np.ndarray, high: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Within each ``low[i] .. high[i]``, where ``present`` ascends, the rows equal to ``wanted[i]``; all search in step."""

    def bound(strictly: bool) -> np.ndarray:
        bottom, top = low.copy(), np.maximum(high, low)
        while (open_ := bottom < top).any():
            middle = (bottom + top) // 2
            value = present[np.minimum(middle, len(present) - 1)]
            below = open_ & ((value <= wanted) if strictly else (value < wanted))
            bottom = np.where(below, middle + 1, bottom)
            top = np.where(open_ & ~below, middle, top)
        return bottom

    return bound(strictly=False), bound(strictly=True)
