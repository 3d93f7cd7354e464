"""The lease for a driver that starts, of whoever had it before."""

import logging

from floodplain.errors import LeaseHeld
from floodplain.host import is_gone
from floodplain.store.store import Store, Writer
from floodplain.versions.lease import named
from floodplain.versions.manifest import Lease

LOOK_S = 0.5
"""Between two looks whether a lease was released, or its holder has ended."""

_log = logging.getLogger(__name__)


def take_over(store: Store, owner: str, *, force: bool = False) -> Writer:
    """The lease: at once if nobody has it, or its holder has provably ended; else once it has run out.

    A holder that lives renews it and is left alone: ``LeaseHeld``. Who waits says so, for whom and how long.
    """
    seen_ms = store.head.lease.expires_ms
    while True:
        try:
            return store.writer(owner, force=force)
        except LeaseHeld:
            lease = store.history.refresh().lease
            if lease.expires_ms > seen_ms:
                raise
            _wait(store, lease)


def _wait(store: Store, lease: Lease) -> None:
    """Until the lease has run out, or anything else has become of it."""
    history = store.history
    left_s = (lease.expires_ms - history.clock.now_ms()) / 1000
    _log.warning(
        "the state at %s is held by %s: waiting up to %.1f s for its lease to end, unless it lives and renews it",
        history.blobs.url, named(lease), max(left_s, 0),
    )  # fmt: skip
    while left_s > 0 and history.refresh().lease == lease and not (lease.holder is not None and is_gone(lease.holder)):
        history.clock.sleep_s(min(max(left_s, 0.01), LOOK_S))
        left_s = (lease.expires_ms - history.clock.now_ms()) / 1000
    _log.warning("the state at %s: the wait for %s is over", history.blobs.url, named(lease))
