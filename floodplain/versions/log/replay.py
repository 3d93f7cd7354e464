"""Log replay: folds stored edits over a manifest."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from floodplain.errors import Corrupt, NotFound
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs, Data
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.records.edit import Edit
from floodplain.versions.records.frame import Kind, checksum, decode
from floodplain.versions.records.manifest import BrokenHistory, Manifest, apply

_WINDOW = 64
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Replayed:
    manifest: Manifest
    damage: Corrupt | None
    """What stopped the fold, if it was not the end of the log."""


def replay(blobs: Blobs, base: Manifest, up_to: int | None = None) -> Replayed:
    """Fold what the log holds above ``base``, up to a position if given.

    Stops at the first object that is missing, unreadable or does not fit. That need not be damage: the log may have been
    trimmed meanwhile, which the caller can tell by a newer checkpoint.
    """
    manifest = base
    try:
        for position, data in _dense(blobs, base.position, up_to):
            manifest = fold(manifest, position, data)
    except Corrupt as damage:
        return Replayed(manifest, Corrupt(damage.file, damage.expected, damage.found, manifest.epoch))
    return Replayed(manifest, None)


def fold(manifest: Manifest, position: int, data: Data | None) -> Manifest:
    """``manifest`` after the object at ``position``. Raises ``Corrupt`` for any that does not fit, and for None."""
    file = paths.log(position)
    if data is None:
        raise Corrupt(file, f"the edit at position {position}", "no such file, while later ones exist")
    edit = decode(Kind.EDIT, Edit, data, file)
    try:
        return apply(manifest, edit, checksum(data))
    except BrokenHistory as broken:
        raise Corrupt(file, *broken.args) from broken


def _dense(blobs: Blobs, above: int, up_to: int | None) -> Iterator[tuple[int, Data | None]]:
    """Objects of the log in order, without gaps: the first that is missing comes as None and ends the sequence.

    A listing may miss a name that was created while it ran, and still show the next one: so what it misses is
    asked for by name.
    """
    expected = above + 1
    for position, data in _fetched(blobs, _listed(blobs, above, up_to)):
        while expected < position:
            between = edit_at(blobs, expected)
            yield expected, between
            if between is None:
                return
            expected += 1
        yield position, data
        expected = position + 1


def _fetched(blobs: Blobs, positions: list[int]) -> Iterator[tuple[int, Data | None]]:
    if len(positions) == 1:
        yield positions[0], edit_at(blobs, positions[0])
        return
    for first in range(0, len(positions), _WINDOW):
        window = positions[first : first + _WINDOW]
        # Not across the yield: whoever lets go of this generator half way would wait for threads wherever it is collected.
        objects = fan_out(blobs, partial(edit_at, blobs), window, _THREADS)
        yield from zip(window, objects, strict=True)


def edit_at(blobs: Blobs, position: int) -> Data | None:
    """What is stored as the edit at this position, None for nothing."""
    try:
        return blobs.get(paths.log(position))
    except NotFound:
        return None


def _listed(blobs: Blobs, above: int, up_to: int | None) -> list[int]:
    names = (info.name for info in blobs.list(paths.LOG, paths.log(above)))
    numbered = ((paths.position_of(name), name) for name in names)
    positions = (position for position, name in numbered if position is not None and name == paths.log(position))
    return list(takewhile(lambda position: up_to is None or position <= up_to, positions))
