"""A cached piece of a blob as a file: the bytes, then who they are, then a checksum over both."""

import struct

import pyarrow as pa
import xxhash

_MAGIC = b"fpcache1"
_TAIL = struct.Struct("<QI16s8s")


def key_of(url: str, name: str, part: str) -> str:
    """The file name for one part of a blob; ``stem_of`` is common to all parts of one blob."""
    return f"{stem_of(url, name)}.{part}"


def stem_of(url: str, name: str) -> str:
    return xxhash.xxh3_128_hexdigest(f"{url}\0{name}".encode())


def trailer(url: str, name: str, part: str, data: pa.Buffer) -> bytes:
    """What follows ``data`` in its file. The data comes first so that its mapping is aligned to a page."""
    identity = _identity(url, name, part)
    return identity + _TAIL.pack(data.size, len(identity), _checksum(data, identity), _MAGIC)


def unsealed(mapped: pa.Buffer, url: str, name: str, part: str, *, verify: bool) -> pa.Buffer | None:
    """The data in a mapped file, or None if it is damaged or something else."""
    identity = _identity(url, name, part)
    size = mapped.size - len(identity) - _TAIL.size
    if size < 0:
        return None
    length, identity_length, checksum, magic = _TAIL.unpack(mapped[size + len(identity) :])
    if (length, identity_length, magic) != (size, len(identity), _MAGIC) or mapped[size : size + len(identity)] != identity:
        return None
    data = mapped.slice(0, size)
    if verify and _checksum(data, identity) != checksum:
        return None
    return data


def _identity(url: str, name: str, part: str) -> bytes:
    return f"{url}\0{name}\0{part}".encode()


def _checksum(data: pa.Buffer, identity: bytes) -> bytes:
    digest = xxhash.xxh3_128(data)
    digest.update(identity)
    return digest.digest()
