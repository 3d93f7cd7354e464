"""Reads a run: the footer first, then only the chunks needed, each verified at first access."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from floodplain.errors import Corrupt, NotFound
from floodplain.store.rows import layout
from floodplain.store.rows.arrow_validation import validate_batch
from floodplain.store.rows.layout import HASH, SUB
from floodplain.store.rows.row_classes import starts_of
from floodplain.store.run import row_position, search, validation
from floodplain.store.run.cached_run import CachedRun, stored
from floodplain.store.run.chunk_cache import ChunkCache
from floodplain.store.run.chunks import decoded
from floodplain.store.run.footer import Footer, Section, damaged
from floodplain.store.run.interpolation_index import Directory
from floodplain.tiers.blobs import Blobs
from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.schema import TableSchema

_DENSE = 4
"""An interpolation index pays where a lookup wants at least one in so many rows of a chunk: the next one mostly does, too."""
FETCH_BYTES = 16 << 20
"""Decoded bytes of chunks of one run that a lookup fetches at a time; fewer where the window is smaller."""
_MOST_FETCHED = 1024
_OLDER_TIMES, _OLDER_BYTES = 4, 4 << 20
"""A chunk whose decoded size was not recorded is taken to have so many times its stored size, and at least the size that chunks
are cut to."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows of one chunk that may answer lookup keys: ``key_number[i]`` meets row ``row[i]``."""

    chunk: pa.RecordBatch
    key_number: np.ndarray
    row: np.ndarray


class RunReader:
    """An open run. Thread-safe: what it caches is immutable."""

    def __init__(
        self,
        ref: RunRef,
        footer: Footer,
        table: TableSchema,
        key_groups: int,
        body: pa.Buffer | None,
        blobs: Blobs,
        cache: ChunkCache,
        fetch_bytes: int = FETCH_BYTES,
        cached: CachedRun | None = None,
    ) -> None:
        self.ref = ref
        self._footer = footer
        self._table = table
        self._key_groups = key_groups
        self._schema = _checked_schema(ref, footer, table)
        self._body = body
        self.blobs = blobs
        self._cache = cache
        self.cached = cached
        self._fetch_bytes = min(fetch_bytes, FETCH_BYTES)
        self.first, self.first_sub = footer.column("first"), footer.column("first_sub")
        self.last, self.last_sub = footer.column("last"), footer.column("last_sub")
        self.count = footer.column("count").astype(np.int64)
        self._offset, self._length = footer.column("offset"), footer.column("length")
        self._checksum = footer.column("checksum")
        self.decoded_bytes = self._decoded_bytes()
        """Of each chunk; at most about that much where it was not recorded."""
        self._ends = np.cumsum(self.count)
        self._parts: dict[Section, pa.Buffer] = {}
        self._directories: dict[int, Directory] = {}

    @property
    def mapped(self) -> bool:
        """Whether all of it can be used where it is mapped, as far as is known."""
        return self._body is not None or (self.cached is not None and self.cached.mapped and self.cached.complete)

    @property
    def unique(self) -> bool:
        return self._footer.unique

    def fetch(self, chunks: Sequence[int], held: Mapping[int, pa.RecordBatch] | None = None) -> dict[int, pa.RecordBatch]:
        """These chunks, verified; those in ``held`` were fetched before."""
        held = held or {}
        batches = {chunk: held.get(chunk) or self._cache.get(self.ref.id, chunk) for chunk in chunks}
        missing = [chunk for chunk, batch in batches.items() if batch is None]
        if self.cached is not None:
            self.cached.note_use(chunks)
            batches.update(self._from_cache(self.cached, missing))
            missing = [chunk for chunk, batch in batches.items() if batch is None]
        if missing:
            batches.update(self._fetched(missing))
        return {chunk: batch for chunk, batch in batches.items() if batch is not None}

    def _from_cache(self, cached: CachedRun, chunks: Sequence[int]) -> dict[int, pa.RecordBatch]:
        """Those of the chunks that the cache of this machine has decoded."""
        try:
            here = cached.chunks(chunks)
            for chunk, batch in here.items():
                self._check(chunk, batch)
        except (Corrupt, pa.ArrowException, ValueError):
            cached.forget()
            return {}
        for chunk, batch in here.items():
            self._cache.put(self.ref.id, chunk, batch, held=cached.mapped)
        return here

    def _fetched(self, chunks: Sequence[int]) -> dict[int, pa.RecordBatch]:
        ranges = [(int(self._offset[chunk]), int(self._length[chunk])) for chunk in chunks]
        data = dict(zip(chunks, self._read(ranges), strict=True))
        batches = self.admitted(data)
        for chunk, batch in batches.items():
            self._cache.put(self.ref.id, chunk, batch, held=self._zero_copy(data[chunk], batch))
        return batches

    def admitted(self, data: Mapping[int, pa.Buffer]) -> dict[int, pa.RecordBatch]:
        """Chunks as they are stored, decoded; the cache of this machine keeps them decoded, and then they are used from there."""
        batches = {chunk: self._decode_or_ask_again(chunk, stored) for chunk, stored in data.items()}
        if self.cached is not None and self.cached.mapped:
            self.cached.keep(batches)
            batches |= self._from_cache(self.cached, list(batches))
        return batches

    def place(self, chunk: int) -> tuple[int, int]:
        """Offset and length of a chunk in its object."""
        return self.ref.offset + int(self._offset[chunk]), int(self._length[chunk])

    def far(self, chunks: Sequence[int]) -> list[int]:
        """Of these chunks, those that only a remote request brings, and that are not coming."""
        unread = [] if self.mapped else [chunk for chunk in chunks if not self._cache.has(self.ref.id, chunk)]
        if self.cached is not None:
            return [chunk for chunk in unread if not self.cached.has(chunk)]
        at_hand = self.blobs.at_hand(self.ref.object, [self.place(chunk) for chunk in unread]) if unread else []
        return [chunk for chunk, here in zip(unread, at_hand, strict=True) if not here]

    def load_parts(self) -> None:
        """Reads the membership filter and the index, if it has them and they are not in memory."""
        for part in (self._footer.filter, self._footer.index):
            if part is not None and not self.mapped:
                self._part(part)

    def find(
        self, hashes: np.ndarray, subs: np.ndarray | None = None, held: Mapping[int, pa.RecordBatch] | None = None
    ) -> Iterator[Hits]:
        """Rows with these hashes (and sub-keys), chunk by chunk. Requires: ``hashes`` ascending, ``subs`` among equal ones."""
        timed, seen_bytes = self._footer.index is not None, 0
        for chunk, hits in self._find_by_index(hashes, subs, held) if timed else self._find_by_hash(hashes, subs, held):
            seen_bytes += 0 if self.at_hand(chunk) else int(self.decoded_bytes[chunk])
            if len(hits.row):
                yield _detached(hits) if seen_bytes > self._fetch_bytes else hits

    def _find_by_hash(
        self, hashes: np.ndarray, subs: np.ndarray | None, held: Mapping[int, pa.RecordBatch] | None
    ) -> Iterator[tuple[int, Hits]]:
        lookup_keys = self.keys_by_chunk(hashes, subs)
        for chunk, batch in self._fetch_each(list(lookup_keys), held):
            dense = chunk in self._directories or _DENSE * len(lookup_keys[chunk]) >= len(batch)
            if dense and self.unique and subs is None:
                yield chunk, self._match_by_directory(chunk, batch, lookup_keys[chunk], hashes)
            else:
                yield chunk, self._match(batch, lookup_keys[chunk], hashes, subs)

    def at_hand(self, chunk: int) -> bool:
        """Whether the chunk is used where it is mapped."""
        if self._body is None:
            return self.cached is not None and self.cached.is_mapped(chunk)
        return bool(self.decoded_bytes[chunk] == self._length[chunk])

    def _fetch_each(self, chunks: list[int], held: Mapping[int, pa.RecordBatch] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Chunk by chunk, asked for a few at a time: keys spread over a large run must not bring all of it into memory."""
        start = 0
        while start < len(chunks):
            sizes = np.cumsum(self.decoded_bytes[chunks[start : start + _MOST_FETCHED]])
            stop = start + max(1, int(np.searchsorted(sizes, self._fetch_bytes, "right")))
            yield from self.fetch(chunks[start:stop], held).items()
            start = stop

    def wanted_chunks(self, hashes: np.ndarray, subs: np.ndarray | None) -> list[int]:
        """The chunks that ``find`` would read for these keys."""
        if self._footer.index is not None:
            _, row = self._index_rows(hashes[starts_of(hashes)])
            return np.unique(np.searchsorted(self._ends, row, "right")).tolist()
        return list(self.keys_by_chunk(hashes, subs))

    def may_contain(self, hashes: np.ndarray) -> np.ndarray:
        """False only for hashes that are not in this run. Asks the membership filter only where reading rows needs requests."""
        if self.mapped or self._footer.filter is None:
            return np.ones(len(hashes), bool)
        return validation.in_filter(self._part(self._footer.filter), hashes, self.ref)

    def span(self, begin: int, end: int) -> range:
        """The chunks that hold rows from ``begin`` to ``end`` (exclusive), as ``places`` has them."""
        return range(row_position.before(self.last, self.last_sub, begin), row_position.before(self.first, self.first_sub, end))

    def check_length(self) -> None:
        """Raises ``Corrupt`` if the mapped file no longer has its length: a touch behind its end would end the process."""
        mapped_bytes = self.blobs.mapped_bytes(self.ref.object) if self._body is not None else None
        if mapped_bytes is not None and mapped_bytes != self.ref.object_size:
            raise damaged(self.ref, f"{self.ref.object_size} bytes", f"{mapped_bytes} bytes")

    def verify(self) -> int:
        """Check every byte; returns how many. Raises ``Corrupt``."""
        if self._read_header() != self._footer.arrow:
            raise damaged(self.ref, "the schema message", "other bytes")
        hashes, wanted = list[np.ndarray](), self._footer.index is not None or self._footer.filter is not None
        for chunk in range(len(self.count)):
            batch = self._decode(chunk, self._read([(int(self._offset[chunk]), int(self._length[chunk]))])[0])
            if wanted:
                hashes.append(layout.numbers(batch, HASH).copy())
        for place, check in ((self._footer.index, validation.check_index), (self._footer.filter, validation.check_filter)):
            if place is not None:
                check(self._check_part(place, self._read([(place.offset, place.length)])[0]), np.concatenate(hashes), self.ref)
        self._check_gaps()
        return self.ref.length

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        if not ranges:
            return []
        if self._body is not None:
            return [self._body.slice(offset, length) for offset, length in ranges]
        if self.cached is not None:
            return stored(self.ref, self.blobs)(ranges)
        try:
            return self.blobs.get_ranges(self.ref.object, [(self.ref.offset + offset, length) for offset, length in ranges])
        except NotFound as error:
            raise damaged(self.ref, "the file", "no such file") from error

    def _decode_or_ask_again(self, chunk: int, data: pa.Buffer) -> pa.RecordBatch:
        """A copy that was damaged on its way here, or in a cache, is not the file: fetch it once more before giving up."""
        try:
            return self._decode(chunk, data)
        except Corrupt:
            if self._body is not None:
                raise
            self.blobs.forget([self.ref.object])
            return self._decode(chunk, self._read([(int(self._offset[chunk]), int(self._length[chunk]))])[0])

    def _decode(self, chunk: int, data: pa.Buffer) -> pa.RecordBatch:
        batch = decoded(self.ref, self._footer, self._schema, chunk, data)
        self._check(chunk, batch)
        return batch

    def _check(self, chunk: int, batch: pa.RecordBatch) -> None:
        try:
            validate_batch(batch)
        except (pa.ArrowException, ValueError) as error:
            raise damaged(self.ref, f"chunk {chunk} in Arrow's format", str(error)) from error
        validation.check_rows(batch, chunk, self.ref, self._footer, self._table, self._key_groups)

    def _zero_copy(self, stored: pa.Buffer, batch: pa.RecordBatch) -> bool:
        """Whether the batch lies in the mapped file, so that keeping it costs no memory of this process."""
        if self._body is None or validation.unpacked_bytes(stored):
            return False
        data = batch.column(HASH).buffers()[1]
        return self._body.address <= data.address < self._body.address + self._body.size

    def _decoded_bytes(self) -> np.ndarray:
        if self._footer.decoded:
            return self._footer.column("decoded").astype(np.int64)
        stored = self._length.astype(np.int64)
        if self._body is not None and not _is_compressed(self._body.slice(int(self._offset[0]), int(stored[0]))):
            return stored
        return np.maximum(stored * _OLDER_TIMES, _OLDER_BYTES)

    def _part(self, place: Section) -> pa.Buffer:
        if place not in self._parts:
            here = self.cached
            data = here.section(place, self._read) if here else self._read([(place.offset, place.length)])[0]
            self._parts[place] = self._check_part(place, data)
        return self._parts[place]

    def _check_part(self, place: Section, data: pa.Buffer) -> pa.Buffer:
        checksum = xxhash.xxh3_64_intdigest(data)
        if data.size != place.length or checksum != place.checksum:
            raise damaged(
                self.ref, f"{place.length} bytes at {place.offset} with checksum {place.checksum:016x}", f"{checksum:016x}"
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
        padding = self._read([(at, to - at)])[0].to_pybytes() if to > at else b""
        expected = (_END_MARK if at == int(self._offset[-1] + self._length[-1]) else b"").ljust(to - at, b"\0")
        if padding != expected:
            raise damaged(self.ref, f"nothing but padding at {at}", "other bytes")

    def keys_by_chunk(self, hashes: np.ndarray, subs: np.ndarray | None) -> dict[int, np.ndarray]:
        """Chunk → the lookup keys that it may hold, which are neighbours, because both are sorted. Requires: no time table."""
        low = np.searchsorted(hashes, self.first, "left")
        high = np.searchsorted(hashes, self.last, "right")
        keys_by_chunk = {int(chunk): np.arange(low[chunk], high[chunk]) for chunk in np.flatnonzero(high > low)}
        if subs is None:
            return keys_by_chunk
        inside = {chunk: self._within(chunk, keys, hashes[keys], subs[keys]) for chunk, keys in keys_by_chunk.items()}
        return {chunk: keys for chunk, keys in inside.items() if len(keys)}

    def _within(self, chunk: int, key_number: np.ndarray, hashes: np.ndarray, subs: np.ndarray) -> np.ndarray:
        """Without the lookup keys of the chunk's first or last hash whose sub-key is in another chunk."""
        before = (hashes == self.first[chunk]) & (subs < self.first_sub[chunk])
        after = (hashes == self.last[chunk]) & (subs > self.last_sub[chunk])
        return key_number[~(before | after)]

    def _match_by_directory(self, chunk: int, batch: pa.RecordBatch, key_number: np.ndarray, hashes: np.ndarray) -> Hits:
        """Of a chunk that is asked for much of what it holds, as it is in most epochs that follow, a directory is kept. It takes
        four to eight bytes for each row of the chunk."""
        if chunk not in self._directories:
            self._directories[chunk] = Directory(layout.numbers(batch, HASH))
        place, row = self._directories[chunk].find(hashes[key_number[0] : key_number[-1] + 1])
        return Hits(batch, key_number[place], row)

    def _match(self, batch: pa.RecordBatch, key_number: np.ndarray, hashes: np.ndarray, subs: np.ndarray | None) -> Hits:
        present = layout.numbers(batch, HASH)
        # Without sub-keys the lookup keys of a chunk are neighbours.
        wanted = hashes[key_number[0] : key_number[-1] + 1] if subs is None else hashes[key_number]
        low = np.searchsorted(present, wanted, "left")
        if self.unique and subs is None:
            hit = np.flatnonzero(present.take(low, mode="clip") == wanted)
            return Hits(batch, key_number[hit], low[hit])
        high = np.searchsorted(present, wanted, "right")
        if subs is not None:
            low, high = search.narrow(layout.numbers(batch, SUB), low, high, subs[key_number])
        which, row = search.expand(low, high)
        return Hits(batch, key_number[which], row)

    def _index_rows(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self._footer.index is not None
        fresh = self._footer.index not in self._parts
        index = np.frombuffer(self._part(self._footer.index), "<u8")
        present, rows = index[: len(index) // 2], index[len(index) // 2 :]
        if fresh and (present[1:] < present[:-1]).any():
            raise damaged(self.ref, "an index in order", "hashes out of order")
        key_number, place = search.expand(np.searchsorted(present, hashes, "left"), np.searchsorted(present, hashes, "right"))
        stored = rows[place]
        if stored.max(initial=0) >= self.ref.rows:
            raise damaged(self.ref, f"an index of {self.ref.rows} rows", "other rows")
        return key_number, stored.astype(np.int64)

    def _find_by_index(
        self, hashes: np.ndarray, subs: np.ndarray | None, held: Mapping[int, pa.RecordBatch] | None
    ) -> Iterator[tuple[int, Hits]]:
        first = np.flatnonzero(starts_of(hashes))
        ends = np.append(first[1:], len(hashes))
        shared, row = self._index_rows(hashes[first])
        chunk = np.searchsorted(self._ends, row, "right")
        for which, batch in self._fetch_each(np.unique(chunk).tolist(), held):
            in_chunk = chunk == which
            of, at = shared[in_chunk], row[in_chunk] - (self._ends[which] - self.count[which])
            if (layout.numbers(batch, HASH)[at] != hashes[first[of]]).any():
                raise damaged(self.ref, "an index that leads to its keys", "other rows")
            low, high = first[of], ends[of]
            if subs is not None:
                low, high = search.narrow(subs, low, high, layout.numbers(batch, SUB)[at])
            hit, key_number = search.expand(low, high)
            yield which, Hits(batch, key_number, at[hit])


def _detached(hits: Hits) -> Hits:
    """The same rows, without holding on to a chunk of which they are the smaller part."""
    if 2 * len(hits.row) >= len(hits.chunk):
        return hits
    return Hits(hits.chunk.take(pa.array(hits.row)), hits.key_number, np.arange(len(hits.row)))


def _is_compressed(chunk: pa.Buffer) -> bool:
    """Also of what is damaged, which reading it tells."""
    try:
        return validation.unpacked_bytes(chunk) > 0
    except ValueError:
        return True


_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"


def _checked_schema(ref: RunRef, footer: Footer, table: TableSchema) -> pa.Schema:
    validation.check_chunk_order(footer, ref)
    if (footer.index is not None) != (table.shape == "time"):
        raise damaged(ref, f"a run of shape {table.shape}", "another shape")
    expected = layout.physical(table)
    if footer.arrow != expected.serialize().to_pybytes():
        raise damaged(ref, f"rows of schema {ref.schema_id} of table {ref.table}", "another Arrow schema")
    return expected
