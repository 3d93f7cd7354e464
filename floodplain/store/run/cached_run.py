"""A run in the cache of this machine: its chunks decoded, in files that are used where they are mapped.

A run on an object store is compressed, so that few bytes travel. In the cache it is as in a directory: a lookup maps a file and
decodes nothing. A small run is one file. Of a larger one, neighbouring chunks that come together share a file, and a chunk that
is asked for alone has one of its own. The cache knows a run by what vouches for it and not by its object, so the task that made
it can keep it before it is stored.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.errors import Corrupt, NotFound
from floodplain.keys import key_group
from floodplain.store.run.chunks import decoded, packed, unpacked
from floodplain.store.run.footer import Footer, Section, damaged, decode
from floodplain.tiers.blobs import Blobs, Range
from floodplain.tiers.derived import DerivedCache
from floodplain.tiers.ranges import EMPTY
from floodplain.versions.records.edit import GroupRanges, RunRef

SMALL_BYTES = 256 << 10
"""A stored run up to this size is fetched by one request and cached as one file."""
SEGMENT_BYTES = 4 << 20
"""Decoded chunks in one file, at most, if there is more than one. Larger: fewer files and mappings, coarser eviction."""
FOOTER, INDEX, FILTER, RUN = "footer", "index", "filter", "run"

Read: TypeAlias = Callable[[Sequence[Range]], list[pa.Buffer]]
"""Ranges of the stored run, counted from its start."""


def key_of(ref: RunRef, store: str) -> str:
    """What the footer says and its checksum: equal for the same bytes, in whatever object they are."""
    table = ref.written_as or ref.table
    return f"{store}/{table}/{ref.low}-{ref.high}/{ref.length}-{ref.footer_length}-{ref.footer_checksum:016x}"


class CachedRun:
    """What the cache has of one open run. Thread-safe: files are only ever added or let go of."""

    def __init__(self, derived: DerivedCache, ref: RunRef, key: str, footer: Footer, *, copied: bool) -> None:
        self._derived, self._key, self._copied = derived, key, copied
        self._footer = footer
        self._schema = schema_of(ref, footer)
        self._segments = segments(footer)
        self._segment_of = np.repeat(np.arange(len(self._segments)), [len(segment) for segment in self._segments])
        self._files: dict[str, list[pa.Buffer]] = {}
        self._own: list[pa.Buffer] | None = None
        """A small run that the cache has no room for."""
        self._present = np.zeros(len(self._segment_of), bool)
        self._used = np.zeros(len(self._segment_of), bool)
        """Chunks, since the last review."""

    @property
    def mapped(self) -> bool:
        """Whether what it gives is mapped, and takes no memory of this process."""
        return not self._copied and self._own is None

    @property
    def complete(self) -> bool:
        """Whether all chunks were here when last looked for."""
        return bool(self._present.all())

    def has(self, chunk: int) -> bool:
        """Whether the chunk was here when last looked for."""
        return bool(self._present[chunk])

    def is_mapped(self, chunk: int) -> bool:
        """Whether the chunk is used where it is mapped."""
        return self.mapped and bool(self._present[chunk])

    def look(self) -> None:
        """Find out which chunks are here."""
        for number, segment in enumerate(self._segments):
            if self._derived.has(self._key, f"s{number}"):
                self._present[segment.start : segment.stop] = True
            else:
                for chunk in segment:
                    self._present[chunk] = self._derived.has(self._key, f"c{chunk}")

    def hold(self, image: list[pa.Buffer], *, own: bool) -> None:
        """A small run, whole. ``own``: its memory is of this process."""
        if own:
            self._own = image
        else:
            self._files[RUN] = image
        self._present[:] = True

    def chunks(self, wanted: Sequence[int]) -> dict[int, pa.RecordBatch]:
        """Those that are here, as they are used. Verified against the cache's own checksum at the first touch of this process."""
        files: dict[str, list[pa.Buffer] | None] = {}
        batches = dict[int, pa.RecordBatch]()
        for chunk in wanted:
            for part, at in self._places(chunk):
                if part not in files:
                    files[part] = self._file(part)
                if (sections := files[part]) is not None:
                    batches[chunk] = pa.ipc.read_record_batch(sections[at], self._schema)
                    break
            else:
                self._present[chunk] = False
        self._derived.missed(len(wanted) - len(batches))
        return batches

    def keep(self, fresh: dict[int, pa.RecordBatch]) -> None:
        """Cache these chunks, each in a file of its own."""
        if not self._copied:
            self._derived.keep(self._key, {f"c{chunk}": packed([batch.serialize()]) for chunk, batch in fresh.items()})
            self._present[list(fresh)] = True

    def count_misses(self, chunks: int) -> None:
        """So many chunks are fetched without having been asked for here."""
        self._derived.missed(chunks)

    def section(self, place: Section, read: Read) -> pa.Buffer:
        """The index or the filter."""
        name, at = (INDEX, 1) if place == self._footer.index else (FILTER, 2)
        small = self._own or self._files.get(RUN)
        if small is not None:
            return small[at]
        here = self._derived.find(self._key, name, copied=self._copied)
        if here is not None:
            return here
        fetched = read([(place.offset, place.length)])[0]
        if not self._copied and fetched.size == place.length:
            self._derived.keep(self._key, {name: fetched})
        return fetched

    def note_use(self, chunks: Sequence[int]) -> None:
        """These chunks are used, from wherever their reader has them: their files are not to be the next that are evicted."""
        self._used[list(chunks)] = True

    def review(self) -> list[int]:
        """Let go of files that were evicted: mapped, they take disk space that no one counts. Returns the chunks in them."""
        gone = [part for part in list(self._files) if not self._is_here(part)]
        chunks = [chunk for part in gone for chunk in self._chunks_in(part)]
        self._used[:] = False
        for part in gone:
            self._files.pop(part, None)
        self._present[chunks] = False
        return chunks

    def forget(self) -> None:
        """Drop it from the cache, as its bytes turned out wrong."""
        self._derived.drop(keys=[self._key])
        self._files.clear()
        self._present[:] = False
        self._own = None

    def parts(self) -> list[tuple[str, str]]:
        """All that the cache may have of it."""
        names = [RUN, FOOTER, INDEX, FILTER, *(f"s{number}" for number in range(len(self._segments)))]
        return [(self._key, part) for part in [*names, *(f"c{chunk}" for chunk in range(len(self._segment_of)))]]

    def _is_here(self, part: str) -> bool:
        used = bool(self._used[list(self._chunks_in(part))].any())
        return self._derived.still_here(self._key, part, used=used)

    def _places(self, chunk: int) -> list[tuple[str, int]]:
        if self._own is not None or RUN in self._files:
            return [(RUN, 3 + chunk)]
        segment = int(self._segment_of[chunk])
        return [(f"s{segment}", chunk - self._segments[segment].start), (f"c{chunk}", 0)]

    def _chunks_in(self, part: str) -> Sequence[int]:
        if part == RUN:
            return range(len(self._segment_of))
        return self._segments[int(part[1:])] if part[0] == "s" else [int(part[1:])]

    def _file(self, part: str) -> list[pa.Buffer] | None:
        if part == RUN and self._own is not None:
            return self._own
        if part not in self._files:
            data = self._derived.find(self._key, part, copied=self._copied)
            if data is None:
                return None
            sections = unpacked(data)
            if self._copied:
                return sections
            self._files[part] = sections
        return self._files[part]


def opened(ref: RunRef, store: str, blobs: Blobs, derived: DerivedCache, *, copied: bool) -> tuple[Footer, CachedRun]:
    """The run with what the cache has of it; the rest of a small one is fetched, by one request.

    ``copied``: what is in the cache is read into memory of this process and verified there, and nothing is added to it.
    Raises ``Corrupt`` if what is stored is not what ``ref`` vouches for.
    """
    key = key_of(ref, store)
    if ref.length > SMALL_BYTES:
        footer = _footer(ref, store, key, derived, stored(ref, blobs), copied=copied)
        run = CachedRun(derived, ref, key, footer, copied=copied)
        run.look()
        return footer, run
    sections = _small(key, derived, copied=copied)
    own = sections is None or copied
    if sections is None:
        derived.missed(1)
        image = _fetched_image(ref, store, stored(ref, blobs))
        if not copied:
            derived.keep(key, {RUN: image})
            sections = _small(key, derived, copied=False)
            own = sections is None
        sections = sections or unpacked(image)
    footer = decode(sections[0], ref, store)
    run = CachedRun(derived, ref, key, footer, copied=copied)
    run.hold(sections, own=own)
    return footer, run


def admit(
    ref: RunRef, store: str, derived: DerivedCache, read: Read, groups: GroupRanges | None = None, key_groups: int = 0
) -> int:
    """Have the cache hold the run, and return how many stored bytes were read for it. ``groups``: what of it these need.

    A run that is larger than half of the cache is held up to that: it would only displace itself.
    """
    key = key_of(ref, store)
    if ref.length <= SMALL_BYTES:
        if derived.has(key, RUN):
            return 0
        derived.keep(key, {RUN: image_of(ref, store, read([(0, ref.length)])[0])})
        return ref.length
    footer = _footer(ref, store, key, derived, read, copied=False)
    schema, read_bytes, room_bytes = schema_of(ref, footer), 0, derived.limit_bytes // 2
    for part, place in ((INDEX, footer.index), (FILTER, footer.filter)):
        if place is not None and not derived.has(key, part):
            derived.keep(key, {part: read([(place.offset, place.length)])[0]})
            read_bytes, room_bytes = read_bytes + place.length, room_bytes - place.length
    wanted = _wanted(footer, groups, key_groups)
    offset, length = footer.column("offset"), footer.column("length")
    for number, segment in enumerate(segments(footer)):
        if room_bytes <= 0 or not wanted[segment.start : segment.stop].any() or derived.has(key, f"s{number}"):
            continue
        data = read([(int(offset[chunk]), int(length[chunk])) for chunk in segment])
        rows = [decoded(ref, footer, schema, chunk, each) for chunk, each in zip(segment, data, strict=True)]
        made = packed([batch.serialize() for batch in rows])
        derived.keep(key, {f"s{number}": made})
        read_bytes, room_bytes = read_bytes + sum(each.size for each in data), room_bytes - made.size
    return read_bytes


def image_of(ref: RunRef, store: str, data: pa.Buffer) -> pa.Buffer:
    """A small run as it is cached: footer, index, filter, then each chunk decoded. ``data``: all of it as it is stored."""
    footer = decode(data.slice(max(0, data.size - ref.footer_length)), ref, store)
    schema = schema_of(ref, footer)
    others = [EMPTY if place is None else data.slice(place.offset, place.length) for place in (footer.index, footer.filter)]
    places = zip(footer.column("offset").tolist(), footer.column("length").tolist(), strict=True)
    rows = [decoded(ref, footer, schema, chunk, data.slice(*place)) for chunk, place in enumerate(places)]
    return packed([data.slice(data.size - ref.footer_length), *others, *(batch.serialize() for batch in rows)])


def stored(ref: RunRef, blobs: Blobs) -> Read:
    """Reads the run from below all caches."""

    def read(ranges: Sequence[Range]) -> list[pa.Buffer]:
        try:
            return blobs.fetch_ranges(ref.object, [(ref.offset + offset, length) for offset, length in ranges])
        except NotFound as error:
            raise damaged(ref, "the file", "no such file") from error

    return read


def schema_of(ref: RunRef, footer: Footer) -> pa.Schema:
    """The Arrow schema of its rows, as its writer had it."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(footer.arrow))
    except (pa.ArrowException, OSError) as error:
        raise damaged(ref, "a schema in Arrow's format", str(error)) from error


def segments(footer: Footer) -> list[range]:
    """Neighbouring chunks that share a file if they come together."""
    sizes = footer.column("decoded" if footer.decoded else "length").tolist()
    starts, room_bytes = [0], SEGMENT_BYTES
    for chunk, size_bytes in enumerate(sizes):
        if size_bytes > room_bytes and chunk > starts[-1]:
            starts.append(chunk)
            room_bytes = SEGMENT_BYTES
        room_bytes -= size_bytes
    return [range(*pair) for pair in pairwise([*starts, len(sizes)])]


def _wanted(footer: Footer, groups: GroupRanges | None, key_groups: int) -> np.ndarray:
    """Per chunk, whether it may have rows of these key groups."""
    first, last = footer.column("first"), footer.column("last")
    if groups is None:
        return np.ones(len(first), bool)
    if footer.index is None:
        first, last = key_group(first, key_groups), key_group(last, key_groups)
    wanted = np.zeros(len(first), bool)
    for low, high in groups:
        wanted |= (first < high) & (last >= low)
    return wanted


def _footer(ref: RunRef, store: str, key: str, derived: DerivedCache, read: Read, *, copied: bool) -> Footer:
    data = derived.find(key, FOOTER, copied=copied)
    if data is not None:
        return decode(data, ref, store)
    derived.missed(1)
    data = read([(ref.length - ref.footer_length, ref.footer_length)])[0]
    footer = decode(data, ref, store)
    if not copied:
        derived.keep(key, {FOOTER: data})
    return footer


def _small(key: str, derived: DerivedCache, *, copied: bool) -> list[pa.Buffer] | None:
    data = derived.find(key, RUN, copied=copied)
    return None if data is None else unpacked(data)


def _fetched_image(ref: RunRef, store: str, read: Read) -> pa.Buffer:
    """What was damaged on its way here is not the file: it is fetched once more before giving up."""
    try:
        return image_of(ref, store, read([(0, ref.length)])[0])
    except Corrupt:
        return image_of(ref, store, read([(0, ref.length)])[0])
