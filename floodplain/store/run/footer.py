"""The footer of a run: offsets, key bounds and checksums of its chunks."""

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from floodplain.errors import Corrupt
from floodplain.versions.records.edit import GroupRanges, RunRef

MAGIC = "floodplain run 1"
_MOST_DECODED = 1 << 48


class Section(msgspec.Struct, frozen=True):
    """A section of the run that follows the Arrow stream: the index or the filter."""

    offset: int
    length: int
    checksum: int


class Footer(msgspec.Struct, frozen=True):
    """Columns of little-endian 64-bit numbers, one entry per chunk; offsets count from the start of the run, which is an Arrow
    IPC stream: the schema message, one record batch per chunk, the end mark.

    ``first``/``last`` are the hashes of a chunk's first and last row and ``first_sub``/``last_sub`` their ``_sub`` (0 in a value
    table). In a time table rows are sorted by (key group, time), and ``first`` and ``last`` are the key groups there.
    """

    magic: str
    store: str
    table: str
    schema_id: int
    low: int
    high: int
    rows: int
    groups: GroupRanges
    unique: bool
    """No two rows share a hash."""
    arrow: bytes
    """The schema message that opens the stream."""
    first: bytes
    first_sub: bytes
    last: bytes
    last_sub: bytes
    offset: bytes
    length: bytes
    count: bytes
    checksum: bytes
    index: Section | None
    """Of a time table: all hashes in ascending order, then the row of each: finds rows by key."""
    filter: Section | None
    """A membership filter over the hashes."""
    decoded: bytes = b""
    """How many bytes each chunk takes when it is decoded; empty in runs of format 1."""

    def column(self, name: str) -> np.ndarray:
        return np.frombuffer(getattr(self, name), "<u8")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Footer)


def encode(footer: Footer) -> bytes:
    return _encoder.encode(footer)


def decode(data: pa.Buffer, ref: RunRef, store: str) -> Footer:
    """The footer that ``ref`` vouches for; ``Corrupt`` if these bytes are not it."""
    _expect(ref, f"a footer of {ref.footer_length} bytes", data.size == ref.footer_length, f"{data.size} bytes")
    checksum = xxhash.xxh3_64_intdigest(data)
    _expect(ref, f"footer checksum {ref.footer_checksum:016x}", checksum == ref.footer_checksum, f"{checksum:016x}")
    try:
        # Walks the structure without building it, so that a lying length inside cannot make the typed pass reserve memory.
        msgspec.msgpack.decode(data, type=msgspec.Raw)
        footer = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise damaged(ref, "a readable footer", str(error)) from error
    claimed = (footer.magic, footer.store, footer.table, footer.schema_id, footer.low, footer.high, footer.rows)
    expected = (MAGIC, store, ref.written_as or ref.table, ref.schema_id, ref.low, ref.high, ref.rows)
    _expect(ref, f"a footer for {expected}", claimed == expected, str(claimed))
    _check_chunks(footer, ref)
    return footer


def damaged(ref: RunRef, expected: str, found: str) -> Corrupt:
    """The error for a damaged run: epochs before the one that added it do not need it."""
    return Corrupt(ref.object, f"{expected} (run at {ref.offset})", found, max(ref.added - 1, 0))


def _expect(ref: RunRef, expected: str, holds: bool, found: str) -> None:
    if not holds:
        raise damaged(ref, expected, found)


def _check_chunks(footer: Footer, ref: RunRef) -> None:
    """Chunks follow the schema message without overlap, inside the run, and their row counts add up."""
    names = ("first", "first_sub", "last", "last_sub", "offset", "length", "count", "checksum")
    sizes = {len(getattr(footer, name)) for name in names}
    _expect(ref, "chunk columns of one length", len(sizes) == 1 and not max(sizes) % 8, str(sizes))
    decoded = footer.column("decoded") if len(footer.decoded) in (0, *sizes) else np.array([_MOST_DECODED + 1])
    _expect(ref, "sizes of decoded chunks", bool((decoded <= _MOST_DECODED).all()), "other numbers")
    offset, length, count = (footer.column(name) for name in ("offset", "length", "count"))
    body = ref.length - ref.footer_length
    _expect(ref, "chunks", len(offset) > 0, "none")
    _expect(ref, f"chunks within {body} bytes", bool((length <= body).all() and (offset <= body).all()), "larger ones")
    ends = offset + length
    in_line = int(offset[0]) == len(footer.arrow) and bool((offset[1:] == ends[:-1]).all()) and int(ends[-1]) <= body
    _expect(ref, "chunks one behind the other", in_line, "gaps or overlaps")
    _expect(ref, f"{ref.rows} rows", bool((count <= ref.rows).all()) and int(count.sum()) == ref.rows, f"{count.sum()}")
    if footer.index is not None:
        _expect(ref, f"an index of {ref.rows} rows", footer.index.length == 16 * ref.rows, f"{footer.index.length} bytes")
    for place in (footer.index, footer.filter):
        inside = place is None or (int(ends[-1]) <= place.offset <= body and 0 <= place.length <= body - place.offset)
        _expect(ref, f"parts within {body} bytes", inside, str(place))
