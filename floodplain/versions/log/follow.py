"""Following the log: the few edits after a known manifest, asked for by name."""

from functools import partial
from itertools import takewhile

from floodplain.errors import Corrupt
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.log import fences
from floodplain.versions.log.replay import edit_at, fold
from floodplain.versions.records.manifest import Manifest

MOST = 32
"""Edits that are asked for by name. Who is further behind lists."""
_WINDOW = 8


def follow(blobs: Blobs, base: Manifest, segment: int) -> Manifest | None:
    """``base`` with all edits after it; None where that takes a listing and the checkpoints.

    What is read is believed if *after* that no fence is found for its positions: then nothing was ever deleted there, so an edit
    that was read is the first of its position, and one that was missing had not been written when it was asked for.
    """
    if not base.fenced:
        return None
    manifest, window = base, 1
    while manifest.position - base.position < MOST:
        wanted = range(manifest.position + 1, manifest.position + 1 + window)
        stored = fan_out(blobs, partial(edit_at, blobs), wanted, _WINDOW)
        edits = [*takewhile(lambda data: data is not None, stored)]
        if any(data is not None for data in stored[len(edits) :]):
            return None  # a gap: written meanwhile, or damage
        try:
            for position, data in zip(wanted, edits, strict=False):
                manifest = fold(manifest, position, data)
        except Corrupt:
            return None
        if len(edits) < window:
            passed = fences.stand(blobs, base.position + 1, manifest.position + 1, segment)
            return None if passed else manifest
        window = min(2 * window, _WINDOW)
    return None
