"""Probes a store for create-if-absent, on which commits rest."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

from floodplain.clock import Clock, Randomness
from floodplain.errors import FloodplainError, NotFound, UnsafeStore
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs

ROUNDS = 2
RACERS = 2
"""In each round. Two are enough to catch a store that looks before it stores, and some stores make a third wait a second."""
TRIES = 3


def probe(blobs: Blobs, clock: Clock, randomness: Randomness) -> None:
    """Raise ``UnsafeStore`` if create-if-absent does not hold at ``blobs``, or the store's own error if it cannot be told.

    Several threads create one name with different bytes; then it is created once more; then it is read. Exactly one
    of them may succeed, and its bytes must be there. About ten small requests, and nothing is left behind.
    """
    for tries in range(1, TRIES + 1):
        names = [paths.probe(randomness.nonce()) for _ in range(ROUNDS)]
        try:
            unanswered = [error for round_ in _race(blobs, names) if (error := _judge(blobs, *round_)) is not None]
        finally:
            with suppress(FloodplainError):
                blobs.delete(names)
        if not unanswered:
            return
        if tries == TRIES:
            raise unanswered[0]
        clock.sleep_s(randomness.uniform() * tries)


Answers = dict[bytes, FloodplainError | None]
"""What was to be stored → the error, or None for success."""


def _race(blobs: Blobs, names: list[str]) -> list[tuple[str, Answers]]:
    start = Barrier(len(names) * RACERS)

    def create(name: str, data: bytes, *, wait: bool) -> FloodplainError | None:
        if wait:
            start.wait()
        try:
            blobs.create(name, data)
        except FloodplainError as error:
            return error
        return None

    with ThreadPoolExecutor(len(names) * RACERS) as pool:
        racing = {
            name: {data: pool.submit(create, name, data, wait=True) for data in (b"racer %d" % n for n in range(RACERS))}
            for name in names
        }
        answers = {name: {data: future.result() for data, future in racers.items()} for name, racers in racing.items()}
        late = {name: pool.submit(create, name, b"late", wait=False) for name in names}
        return [(name, {**answers[name], b"late": late[name].result()}) for name in names]


def _judge(blobs: Blobs, name: str, answers: Answers) -> FloodplainError | None:
    """Raises ``UnsafeStore``; returns an error if no create was answered with success, which tells nothing."""
    winners = [data for data, error in answers.items() if error is None]
    if not winners:
        return next(error for error in answers.values() if error is not None)
    if len(winners) > 1:
        raise _unsafe(blobs, f"{len(winners)} creates of one name were all answered with success")
    try:
        stored = blobs.get(name).to_pybytes()
    except NotFound:
        raise _unsafe(blobs, "a create was answered with success, and the name does not exist") from None
    if stored != winners[0]:
        raise _unsafe(blobs, f"a create was answered with success, and {stored[:20]!r} is there instead of {winners[0]!r}")
    return None


def _unsafe(blobs: Blobs, what: str) -> UnsafeStore:
    return UnsafeStore(
        f"create-if-absent does not hold at {blobs.url}: {what}. Floodplain cannot commit safely here; "
        "use a store that honours conditional puts (If-None-Match), or a directory"
    )
