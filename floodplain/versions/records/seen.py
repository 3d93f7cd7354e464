"""Objects of seen files: entries of the log that a source keeps of what it has read, vouched for by the manifest.

An entry is text whose first line says its version. An entry that replaces others has their lines and its own, in their order, so
the content of all entries is that of the newest such file, and the other way round.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from floodplain.errors import Corrupt, NotFound
from floodplain.tiers.blobs import Blobs, Data
from floodplain.versions.records.edit import SeenRef
from floodplain.versions.records.frame import Kind, decode, encode
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.vouched import FileSum, check, checked


class SeenEntry(msgspec.Struct, frozen=True, array_like=True):
    number: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
    text: str
    replaces: bool = False
    """Whether it has the content of all entries before it, too."""


class SeenFiles(msgspec.Struct, frozen=True):
    """The record in an object."""

    store: str
    source: str
    entries: Annotated[tuple[SeenEntry, ...], msgspec.Meta(min_length=1)]
    """In ascending order of their numbers."""


def content(text: str) -> str:
    """What an entry has beside its first line."""
    return text[len(text.partition("\n")[0]) :]


def header(text: str) -> str:
    return text.partition("\n")[0]


def content_of(entries: Iterable[SeenEntry]) -> str:
    return "".join(content(entry.text) for entry in entries)


def packed(store: str, source: str, entries: Sequence[SeenEntry], name: str, first: int) -> tuple[bytes, SeenRef]:
    """The bytes of an object called ``name``, and how a manifest refers to it. ``first``: of what it takes the place of."""
    data = encode(Kind.SEEN, SeenFiles(store, source, tuple(entries)))
    content_sum = FileSum.of(content_of(entries).encode())
    return data, SeenRef(source, min(first, entries[0].number), entries[-1].number, name, FileSum.of(data), content_sum)


def load(blobs: Blobs, store: str, ref: SeenRef, last_good_epoch: int | None = None) -> tuple[SeenEntry, ...]:
    """Its entries. Raises ``Corrupt`` naming the object if it is not there, or not what the manifest vouches for."""

    def damaged(what: str) -> Corrupt:
        return Corrupt(ref.object, str(ref.sum), what, last_good_epoch)

    def sound(data: Data) -> None:
        check(ref.object, ref.sum, data, last_good_epoch)

    try:
        size = blobs.size(ref.object)
        if size != ref.sum.length:
            raise damaged(f"{size} bytes")
        data, _ = checked(ref.object, blobs, sound)
    except NotFound:
        raise damaged("no such file") from None
    record = decode(Kind.SEEN, SeenFiles, data, ref.object)
    _check(record, store, ref)
    return record.entries


def _check(record: SeenFiles, store: str, ref: SeenRef) -> None:
    """What the object says of itself is what the manifest says of it, whoever wrote both."""
    if (record.store, record.source) != (store, ref.source):
        raise Corrupt(ref.object, f"{ref.source} of store {store}", f"{record.source} of store {record.store}")
    numbers = [entry.number for entry in record.entries]
    ascending = all(one < other for one, other in pairwise(numbers))
    if not ascending or numbers[0] < ref.first or numbers[-1] != ref.last:
        raise Corrupt(ref.object, f"entries {ref.first} to {ref.last}, in order", f"{numbers[0]} to {numbers[-1]}")
    if FileSum.of(content_of(record.entries).encode()) != ref.content:
        raise Corrupt(ref.object, f"entries of {ref.content}", "others")


def load_all(blobs: Blobs, manifest: Manifest) -> int:
    """Read all objects of seen files that the manifest names; how many bytes they have. Raises ``Corrupt`` for the first that is
    damaged."""
    for ref in manifest.source.seen:
        load(blobs, manifest.store, ref, manifest.epoch)
    return sum(ref.sum.length for ref in manifest.source.seen)
