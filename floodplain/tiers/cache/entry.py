"""A cached piece of a blob as a file: the bytes, then who they are, then their checksum."""

import pyarrow as pa
import xxhash

_FORMAT = "floodplain cache 1"
_CHECKSUM_BYTES = 16


def key_of(space: str, name: str, part: str) -> str:
    """The file name for one part of a blob; what ``stem_of`` gives is common to all its parts."""
    return f"{stem_of(space, name)}.{part}"


def stem_of(space: str, name: str) -> str:
    return xxhash.xxh3_128_hexdigest(f"{space}\0{name}".encode())


def trailer(space: str, name: str, part: str, data: pa.Buffer) -> bytes:
    """What follows ``data`` in its file. The data comes first so that its mapping is aligned to a page."""
    return _identity(space, name, part) + xxhash.xxh3_128_digest(data)


def unsealed(mapped: pa.Buffer, space: str, name: str, part: str, *, verify: bool) -> pa.Buffer | None:
    """The data in a mapped file, or None if it is another's or damaged. ``verify`` off skips reading all of it."""
    identity = _identity(space, name, part)
    size = mapped.size - len(identity) - _CHECKSUM_BYTES
    if size < 0 or mapped[size : size + len(identity)] != identity:
        return None
    data = mapped.slice(0, size)
    if verify and xxhash.xxh3_128_digest(data) != mapped[size + len(identity) :].to_pybytes():
        return None
    return data


def _identity(space: str, name: str, part: str) -> bytes:
    return f"\0{_FORMAT}\0{space}\0{name}\0{part}\0".encode()
