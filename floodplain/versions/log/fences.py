"""Fences: which parts of the log were ever trimmed, told for good by objects that are never deleted (I2).

Positions are cut into segments of equal length. Before an object of a segment is deleted, the fence of that segment is created.
So whoever stores an edit, and after that finds no fence for its position, was the first to take it: had another edit been there
and been trimmed, the fence would have been created before that deletion, hence before this edit, and be found. The argument
needs the order of requests only, so it holds for requests, answers and writers that are delayed by any time.

The log is not trimmed in the segment that it ends in, so a writer at its end never meets a fence. Who meets one is not refused:
checkpoints then tell, by a listing. Releases before format 3 trim without fences; they cannot read the edits of later ones, so
they trim nothing above the first of those (``Manifest.fenced``).
"""

from collections.abc import Iterable
from functools import partial

import msgspec

from floodplain.clock import Clock, Randomness
from floodplain.errors import NotFound
from floodplain.settings import RetrySettings
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.create import create_or_read
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.records.frame import Kind, encode

SEGMENT = 256
"""Positions of a segment in new stores. More: fewer fences, which stay for good, and a longer log."""
_THREADS = 8


class Fence(msgspec.Struct, frozen=True):
    """That it exists is what counts."""

    store: str
    first: int
    last: int
    """The positions that it closes, both included."""


def segment_of(position: int, length: int) -> int:
    """Number of the segment of a position, which is 1 or more."""
    return (position - 1) // length


def is_there(blobs: Blobs, name: str) -> bool:
    try:
        blobs.get(name)
    except NotFound:
        return False
    return True


def stand(blobs: Blobs, first: int, last: int, length: int) -> bool:
    """Whether any position from ``first`` to ``last`` has a fence."""
    names = [paths.fence(segment) for segment in range(segment_of(first, length), segment_of(last, length) + 1)]
    return any(fan_out(blobs, partial(is_there, blobs), names, _THREADS))


def create(
    blobs: Blobs,
    store: str,
    positions: Iterable[int],
    length: int,
    retry: RetrySettings,
    clock: Clock,
    randomness: Randomness,
) -> None:
    """The fences of these positions are durable on return."""

    def one(segment: int) -> None:
        fence = Fence(store, segment * length + 1, (segment + 1) * length)
        create_or_read(blobs, paths.fence(segment), encode(Kind.FENCE, fence), retry, clock, randomness)

    fan_out(blobs, one, sorted({segment_of(position, length) for position in positions}), _THREADS)
