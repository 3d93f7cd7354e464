"""Create-if-absent with ambiguous answers resolved: after any answer but success the stored bytes decide."""

import pyarrow as pa

from floodplain.clock import Clock, Randomness
from floodplain.errors import AlreadyExists, FloodplainError, NotFound, Refused, Unavailable
from floodplain.settings import RetrySettings
from floodplain.tiers.blobs import Blobs, Writable, whole
from floodplain.tiers.retry import delay_s


def create_or_read(
    blobs: Blobs, name: str, data: Writable, retry: RetrySettings, clock: Clock, randomness: Randomness
) -> pa.Buffer | None:
    """Create ``name``, or read who has it: None if ``data`` is there, else the bytes that are.

    Requires: no other caller uses equal bytes (they carry a nonce), and nothing deletes ``name`` meanwhile.

    An error that is raised leaves the outcome unknown: a request on its way may still store ``data``.
    """
    tries = 0
    while True:
        tries += 1
        try:
            blobs.create(name, data)
            return None
        except (AlreadyExists, Unavailable, Refused) as answer:
            try:
                stored = blobs.get(name)
            except (NotFound, Unavailable) as absent:
                refused = isinstance(answer, Refused) and isinstance(absent, NotFound)
                if refused or tries >= retry.attempts:
                    raise _last(answer, absent, name, blobs) from absent
            else:
                return None if stored.equals(whole(data)) else stored
        clock.sleep_s(delay_s(retry, tries, randomness))


def _last(answer: FloodplainError, absent: FloodplainError, name: str, blobs: Blobs) -> FloodplainError:
    if not isinstance(answer, AlreadyExists):
        return answer
    if isinstance(absent, NotFound):
        return Unavailable(f"{blobs.url} keeps saying that {name} exists and that it does not; ask again later")
    return absent
