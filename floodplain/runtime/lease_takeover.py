"""Takes over the lease of an earlier driver when a driver starts."""

import logging

from floodplain.errors import LeaseHeld
from floodplain.host import is_gone
from floodplain.store.store import Store, Writer
from floodplain.versions.log.lease import AHEAD_MS, left_ms, named
from floodplain.versions.records.manifest import Lease

LOOK_S = 0.5
"""Between two looks whether a lease was released, or its holder has ended."""

_log = logging.getLogger(__name__)


def take_over(store: Store, owner: str, *, force: bool = False) -> Writer:
    """Takes the lease: at once if nobody holds it or its holder has provably ended, else once it has expired.

    A holder that is alive renews its lease: then ``LeaseHeld`` is raised. A wait is logged, with its holder and length. It is
    measured by our monotonic clock and never longer than a lease lasts: the holder's clock may be days ahead.
    """
    seen, outlasted = store.head.lease, None
    while True:
        try:
            return store.writer(owner, force=force, outlasted=outlasted)
        except LeaseHeld:
            lease = store.history.refresh().lease
            if not lease.expires_ms:
                continue  # released since
            if lease != seen:
                raise
            outlasted = _wait(store, seen)


def _wait(store: Store, lease: Lease) -> Lease | None:
    """Until the lease has run out, or anything else has become of it. Returns it if nothing has for as long as it lasts."""
    history = store.history
    wait_s = left_ms(lease, history) / 1000
    ahead_s = (lease.expires_ms - history.clock.now_ms()) / 1000 - wait_s
    _log.warning(
        "the state at %s is held by %s: waiting up to %.1f s for its lease to end, unless it lives and renews it%s",
        history.blobs.url, named(lease), wait_s,
        f". By its clock it ends {ahead_s:.1f} s later: that one is ahead of ours, so the wait is for as long as a lease lasts"
        if ahead_s > AHEAD_MS / 1000 else "",
    )  # fmt: skip
    began_s = history.clock.monotonic_s()
    left_s = wait_s
    while left_s > 0 and history.refresh().lease == lease and not (lease.holder is not None and is_gone(lease.holder)):
        history.clock.sleep_s(min(max(left_s, 0.01), LOOK_S))
        left_s = wait_s - (history.clock.monotonic_s() - began_s)
    _log.warning("the state at %s: the wait for %s is over", history.blobs.url, named(lease))
    return lease if left_s <= 0 else None
