"""The envelope: whatever the bytes are, the answer is the record or ``Corrupt``."""

import resource
import struct

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from floodplain.errors import Corrupt, NewerFormat
from floodplain.versions.log.history import Format
from floodplain.versions.records.edit import Edit
from floodplain.versions.records.frame import MAGIC, VERSION, Kind, checksum, decode, encode
from floodplain.versions.records.manifest import Manifest

RECORD = Format("store", 16, 5)
DATA = encode(Kind.FORMAT, RECORD)


def framed(payload: bytes, kind: int = Kind.FORMAT, version: int = VERSION, length: int | None = None) -> bytes:
    """A frame whose checksum is right, whatever else is not."""
    body = struct.pack(">4sBBQ", MAGIC, kind, version, len(payload) if length is None else length) + payload
    return body + xxhash.xxh3_128_digest(body)


def test_round_trip() -> None:
    assert decode(Kind.FORMAT, Format, DATA, "f") == RECORD
    assert framed(msgspec.msgpack.encode(RECORD)) == DATA


def test_the_checksum_is_of_the_whole_object() -> None:
    assert checksum(DATA) == xxhash.xxh3_128_hexdigest(DATA)
    assert checksum(DATA) != checksum(DATA[:-1])


def test_every_flipped_bit_is_found() -> None:
    for bit in range(len(DATA) * 8):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt) as caught:
            decode(Kind.FORMAT, Format, bytes(flipped), "some/file")
        assert caught.value.file == "some/file"


def test_every_truncation_and_extension_is_found() -> None:
    for size in range(len(DATA)):
        with pytest.raises(Corrupt):
            decode(Kind.FORMAT, Format, DATA[:size], "f")
    with pytest.raises(Corrupt, match="expected"):
        decode(Kind.FORMAT, Format, DATA + b"\0", "f")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (framed(msgspec.msgpack.encode(RECORD), kind=Kind.PIN), "kind 4"),
        (framed(msgspec.msgpack.encode(RECORD), version=0), "a format version from 1"),
        (framed(b"x", length=(1 << 64) - 1), "bytes"),
        (framed(b""), "undecodable"),
        (framed(b"\xc1"), "undecodable"),
        (framed(msgspec.msgpack.encode({"store": "s"})), "missing required field"),
        (framed(msgspec.msgpack.encode({"store": "s", "key_groups": -(1 << 63), "created_ms": "x"})), "undecodable"),
        (framed(msgspec.msgpack.encode(RECORD) + b"\xc0"), "undecodable"),
        (framed(b"\x81\xa5store\xdb\xff\xff\xff\xff"), "undecodable"),
        (framed(b"\xdf\xff\xff\xff\xff"), "undecodable"),
        (framed(b"\x81\xa1z" + b"\x91" * 1_000_000), "undecodable"),
        (framed(b"\x91" * 1_000_000), "undecodable"),
        (framed(b"\x81\xa5store\xa2\xff\xff"), "undecodable"),
    ],
    ids=range(13),
)
def test_hostile_input_with_a_good_checksum(data: bytes, found: str) -> None:
    with pytest.raises(Corrupt, match=found):
        decode(Kind.FORMAT, Format, data, "f")


def test_older_formats_are_read_and_newer_ones_are_called_that() -> None:
    for version in range(1, VERSION + 1):
        assert decode(Kind.FORMAT, Format, framed(msgspec.msgpack.encode(RECORD), version=version), "f") == RECORD
    with pytest.raises(NewerFormat, match=rf"f is of format {VERSION + 1}, .* up to {VERSION}: .* newer release"):
        decode(Kind.FORMAT, Format, framed(msgspec.msgpack.encode(RECORD), version=VERSION + 1), "f")


def test_lying_lengths_reserve_no_memory() -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for field in (b"\xa6epochs", b"\xa6nonces", b"\xa4runs", b"\xa4tags", b"\xa7outputs", b"\xa7updates"):
        for count in (b"\xdd\x7f\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\x7f\xff\xff\xff"):
            for kind, type_ in ((Kind.MANIFEST, Manifest), (Kind.EDIT, Edit)):
                with pytest.raises(Corrupt):
                    decode(kind, type_, framed(b"\x81" + field + count, kind=kind), "f")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 << 10


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    for kind, type_ in ((Kind.FORMAT, Format), (Kind.EDIT, Edit), (Kind.MANIFEST, Manifest)):
        with pytest.raises(Corrupt):
            decode(kind, type_, data, "f")
        with pytest.raises(Corrupt):
            decode(kind, type_, framed(data, kind=kind), "f")
