"""Scrubbing: verifies a store at a bounded rate, to find damage before a reader does."""

from collections.abc import Callable

from floodplain.clock import Clock, Randomness
from floodplain.settings import StoreSettings
from floodplain.store.verify import Verdict, verify_blobs
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.paced import Paced

Progress = Callable[[int, int, int], None]
"""Called after each read with: runs checked, runs in all (0 while metadata is read), bytes read so far."""


def scrub(
    blobs: Blobs,
    bytes_per_s: int,
    *,
    settings: StoreSettings,
    clock: Clock,
    randomness: Randomness,
    progress: Progress | None = None,
) -> Verdict:
    """As ``verify_blobs``, reading at most ``bytes_per_s`` and past what caches hold. Sleeps by ``clock``.

    Takes no pin, which would hold on to garbage for as long as the walk takes: it goes on with what is retained by then.
    """
    done, total = 0, 0

    def read(size_bytes: int) -> None:
        if progress is not None:
            progress(done, total, size_bytes)

    def verified(runs: int, of: int, size_bytes: int) -> None:  # noqa: ARG001
        nonlocal done, total
        done, total = runs, of
        read(paced.read_bytes)

    paced = Paced(blobs, bytes_per_s, clock, read)
    return verify_blobs(paced, settings=settings, clock=clock, randomness=randomness, progress=verified)
