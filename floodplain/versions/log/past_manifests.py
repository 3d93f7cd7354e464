"""The manifests of many past epochs, in one pass over what is stored."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from floodplain.errors import Corrupt, NotFound
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs, Data
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.log import manifests
from floodplain.versions.log.history import History
from floodplain.versions.log.replay import fold
from floodplain.versions.records.manifest import EpochMark, Manifest

_WINDOW = 16
"""Objects held at a time."""
_THREADS = 8


def manifests_at(
    history: History, marks: Iterable[EpochMark], checkpoints: Sequence[int], log: Collection[int]
) -> Iterator[tuple[EpochMark, Manifest, bool]]:
    """The manifest at each mark, oldest first, and whether it was read from a checkpoint of its own.

    ``checkpoints`` (ascending) and ``log`` are the positions that a listing found. No checkpoint and no edit is read twice,
    however many marks there are. What is not there, or does not fit, is looked for once more as ``History.manifest_at`` does,
    which raises ``Corrupt``.
    """
    wanted = sorted(set(marks), key=lambda mark: mark.position)
    if not wanted:
        return
    above = [0, *(mark.position for mark in wanted)]
    steps = [_steps(at, mark.position, checkpoints, log) for at, mark in zip(above, wanted, strict=False)]
    stored = _fetched(history.blobs, [name for names in steps for name in names])
    at = Manifest(history.format.store, history.format.key_groups)
    for mark, names in zip(wanted, steps, strict=True):
        at, own = _walked(history, mark, at, [(name, next(stored)) for name in names])
        yield mark, at, own


def _steps(at: int, to: int, checkpoints: Sequence[int], log: Collection[int]) -> list[str]:
    """What leads from the manifest at one position to that at another: a checkpoint if one is nearer, and the edits from there.
    Nothing where some are missing."""
    nearest = checkpoints[below - 1] if (below := bisect_right(checkpoints, to)) else 0
    base = [paths.manifest(nearest)] if nearest > at else []
    edits = range(max(nearest, at) + 1, to + 1)
    missing = any(position not in log for position in edits)
    return [] if missing else [*base, *(paths.log(position) for position in edits)]


def _walked(history: History, mark: EpochMark, at: Manifest, stored: Sequence[tuple[str, Data | None]]) -> tuple[Manifest, bool]:
    try:
        for name, data in stored:
            position = paths.position_of(name) or 0
            if name.startswith(paths.LOG):
                at = fold(at, position, data)
            elif data is not None:
                at = manifests.decoded(data, history.format.store, position)
        if (at.position, at.chain) == (mark.position, mark.chain):
            return at, [name for name, _ in stored] == [paths.manifest(mark.position)]
    except Corrupt:
        pass
    return history.manifest_at(mark), False


def _fetched(blobs: Blobs, names: Sequence[str]) -> Iterator[Data | None]:
    """What is stored under each name, None for nothing; a window at a time, all of it before the first is given on."""
    if len(names) <= 1:
        yield from (_get(blobs, name) for name in names)
        return
    for first in range(0, len(names), _WINDOW):
        # Not across the yield: whoever lets go of this generator half way would wait for threads wherever it is collected.
        yield from fan_out(blobs, partial(_get, blobs), names[first : first + _WINDOW], _THREADS)


def _get(blobs: Blobs, name: str) -> Data | None:
    try:
        return blobs.get(name)
    except NotFound:
        return None
