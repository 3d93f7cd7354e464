"""The lease of the single writer. Its token fences; its expiry only tells others when to try."""

from collections.abc import Callable
from datetime import UTC, datetime

from floodplain.errors import Conflict, Fenced, LeaseHeld
from floodplain.host import Process
from floodplain.tiers.paths import checked_name
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.records.edit import AdvancePublished, ReleaseLease, TakeLease
from floodplain.versions.records.manifest import Lease

AHEAD_MS = 1000
"""A clock that is further ahead than this is worth a word."""


def take(
    history: History,
    owner: str,
    *,
    force: bool = False,
    holder: Process | None = None,
    is_gone: Callable[[Process], bool] = lambda process: False,  # noqa: ARG005
    outlasted: Lease | None = None,
) -> int:
    """Take the lease and return its token: whoever had one before can commit nothing more.

    Raises ``LeaseHeld`` while another owner's lease has not ended by the clock, unless ``force``, or its ``holder`` is known to
    be gone. ``holder`` is the process that takes it. ``outlasted``: a lease that the caller has seen unchanged for its whole
    length has ended, whatever the clock says.
    """
    checked_name("owner", owner)
    while True:
        head = history.refresh()
        now_ms = history.clock.now_ms()
        ended = head.lease.expires_ms <= now_ms or head.lease == outlasted
        if head.lease.owner != owner and not ended and not force and not _abandoned(head.lease, is_gone):
            raise LeaseHeld(_held(head.lease, now_ms, left_ms(head.lease, history)))
        update = TakeLease(head.lease.token + 1, owner, now_ms + history.settings.lease_ms, holder)
        try:
            commit(history, [update])
        except Conflict:
            # Another took it first: its token is the one we asked for, so ours no longer fits.
            continue
        return update.token


def renew(history: History, token: int) -> None:
    """Show others that the holder lives. Any thread may, also while the holder writes an epoch.

    Raises ``Fenced`` if the lease is no longer ours.
    """
    while True:
        try:
            # An edit has to say something: this repeats what is known.
            commit(history, [AdvancePublished(history.head.published)], token=token)
        except Fenced:
            raise
        except Conflict:
            # An epoch that got in between has published more, and has renewed the lease.
            history.refresh()
            continue
        return


def release(history: History, token: int) -> None:
    """Let others take the lease at once. Does nothing if it is no longer ours."""
    try:
        commit(history, [ReleaseLease(token)], token=token)
    except Fenced:
        return


def left_ms(lease: Lease, history: History) -> int:
    """How long it lasts from now on unless it is renewed: never longer than it was to last when it was taken or renewed.

    One that ends later by our clock is of a holder whose clock is ahead of ours.
    """
    by_clock_ms = lease.expires_ms - history.clock.now_ms()
    return max(min(by_clock_ms, lease.length_ms or history.settings.lease_ms), 0)


def _abandoned(lease: Lease, is_gone: Callable[[Process], bool]) -> bool:
    return lease.holder is not None and is_gone(lease.holder)


def named(lease: Lease) -> str:
    """Who holds it, for people to read."""
    return repr(lease.owner) if lease.holder is None else f"{lease.owner!r} ({lease.holder})"


def _held(lease: Lease, now_ms: int, most_ms: int) -> str:
    try:
        ends = datetime.fromtimestamp(lease.expires_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        ends = f"{lease.expires_ms} ms after 1970"
    ahead_ms = lease.expires_ms - now_ms - most_ms
    if ahead_ms > AHEAD_MS:
        ends += f" by its clock, {ahead_ms / 1000:.1f} s ahead of this one (so for {most_ms / 1000:.1f} s at most)"
    return (
        f"{named(lease)} holds lease {lease.token} until {ends}: wait, stop that writer, "
        "or force the lease from it (it then can commit nothing more)"
    )
