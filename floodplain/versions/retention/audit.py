"""Checking every metadata object that is there, needed at this moment or not."""

from collections.abc import Iterator

from floodplain.errors import Corrupt, NotFound
from floodplain.tiers import paths
from floodplain.tiers.blobs import BlobInfo
from floodplain.versions.log import manifests
from floodplain.versions.log.fences import Fence, segment_of
from floodplain.versions.log.history import Format, History
from floodplain.versions.records.edit import Edit
from floodplain.versions.records.frame import Kind, checksum, decode
from floodplain.versions.retention.pins import PinRecord


def audit(history: History) -> tuple[list[Corrupt], int]:
    """What is wrong, and how many bytes were checked. Objects that vanish meanwhile were collected, not damaged."""
    damages: list[Corrupt] = []
    size_bytes = 0
    chains: dict[int, str] = {}
    for info in _objects(history):
        size_bytes += info.size_bytes
        try:
            _check(history, info.name, chains)
        except NotFound:
            continue
        except Corrupt as damage:
            damages.append(damage)
    return damages, size_bytes


def _objects(history: History) -> Iterator[BlobInfo]:
    yield from history.blobs.list(paths.FORMAT)
    yield from history.blobs.list(paths.LOG)
    yield from history.blobs.list(paths.MANIFESTS)
    yield from history.blobs.list(paths.FENCES)
    yield from history.blobs.list(paths.PINS)


def _check(history: History, name: str, chains: dict[int, str]) -> None:
    """``chains`` collects the checksum of each edit, so that its successor and its checkpoint can be held against it."""
    store = history.format.store
    if name == paths.FORMAT:
        format_ = decode(Kind.FORMAT, Format, history.blobs.get(name), name)
        _expect(name, history.format, format_)
    elif name.startswith(paths.LOG):
        data = history.blobs.get(name)
        edit = decode(Kind.EDIT, Edit, data, name)
        _expect(name, (store, name), (edit.store, paths.log(edit.position)))
        _expect(name, chains.get(edit.position - 1, edit.previous), edit.previous)
        chains[edit.position] = checksum(data)
    elif name.startswith(paths.MANIFESTS):
        manifest = manifests.load(history.blobs, store, paths.position_of(name) or 0)
        _expect(name, chains.get(manifest.position, manifest.chain), manifest.chain)
    elif name.startswith(paths.FENCES):
        fence = decode(Kind.FENCE, Fence, history.blobs.get(name), name)
        segment = segment_of(fence.first, history.format.log_segment)
        _expect(name, (store, name, (segment + 1) * history.format.log_segment), (fence.store, paths.fence(segment), fence.last))
    else:
        pin = decode(Kind.PIN, PinRecord, history.blobs.get(name), name)
        _expect(name, (store, name), (pin.store, paths.pin(pin.owner)))


def _expect(name: str, expected: object, found: object) -> None:
    if expected != found:
        raise Corrupt(name, str(expected), str(found))
