"""The envelope of every metadata object: what it is, how long it is, and a checksum over all of it.

magic (4) · kind (1) · version (1) · payload length (8) · payload (msgpack) · xxh3-128 of everything before (16)
"""

import struct
from enum import IntEnum
from typing import TypeVar

import msgspec
import xxhash

from floodplain.errors import Corrupt, NewerFormat
from floodplain.tiers.blobs import Data

MAGIC = b"FLDP"
VERSION = 3
"""What is written. All versions from 1 on are read: what a newer one added is optional in it.

1: the first. 2: definitions of operators, renamed tables. 3: fences of the trimmed log, control operations.
"""
MAX_BYTES = 1 << 30
"""More than any manifest needs: a length beyond it is damage, found before anything is decoded."""

_HEADER = struct.Struct(">4sBBQ")
_TRAILER_BYTES = 16

Record = TypeVar("Record", bound=msgspec.Struct)


class Kind(IntEnum):
    FORMAT = 1
    EDIT = 2
    MANIFEST = 3
    PIN = 4
    SEEN = 5
    FENCE = 6


def encode(kind: Kind, record: msgspec.Struct) -> bytes:
    payload = msgspec.msgpack.encode(record)
    framed = _HEADER.pack(MAGIC, kind, VERSION, len(payload)) + payload
    return framed + xxhash.xxh3_128_digest(framed)


def checksum(data: Data) -> str:
    """Of an encoded object, all of it: the value by which its successor in the log refers to it."""
    digest: str = xxhash.xxh3_128_hexdigest(memoryview(data))
    return digest


def decode(kind: Kind, type_: type[Record], data: Data, file: str) -> Record:
    """The record in ``data``. Raises ``Corrupt`` naming ``file`` for anything else, whatever the bytes are, and ``NewerFormat``
    for one that a newer release has written."""
    payload = _payload(kind, memoryview(data), file)
    try:
        # Walks the structure without building it, so that a lying length inside cannot make the typed pass reserve memory.
        msgspec.msgpack.decode(payload, type=msgspec.Raw)
        return msgspec.msgpack.decode(payload, type=type_)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise Corrupt(file, f"a record of kind {kind.name.lower()}", f"undecodable content ({error})") from None


def _payload(kind: Kind, view: memoryview, file: str) -> memoryview:
    size = view.nbytes
    if not _HEADER.size + _TRAILER_BYTES <= size <= MAX_BYTES:
        raise Corrupt(file, f"{_HEADER.size + _TRAILER_BYTES} to {MAX_BYTES} bytes", f"{size} bytes")
    magic, found_kind, version, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise Corrupt(file, f"magic {MAGIC!r}", f"{magic!r}")
    whole = _HEADER.size + length + _TRAILER_BYTES
    if size != whole:
        raise Corrupt(file, f"{whole} bytes", f"{size} bytes")
    expected, actual = bytes(view[-_TRAILER_BYTES:]).hex(), checksum(view[:-_TRAILER_BYTES])
    if expected != actual:
        raise Corrupt(file, f"checksum {expected}", f"checksum {actual}")
    if found_kind != kind:
        raise Corrupt(file, f"kind {kind.value} ({kind.name.lower()})", f"kind {found_kind}")
    if version > VERSION:
        raise NewerFormat.of(file, version, VERSION)
    if version < 1:
        raise Corrupt(file, f"a format version from 1 to {VERSION}", f"{version}")
    return view[_HEADER.size : -_TRAILER_BYTES]
