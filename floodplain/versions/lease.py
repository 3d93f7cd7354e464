"""The lease of the one writer of epochs. Its token fences; its time only tells others when to try."""

from collections.abc import Callable
from datetime import UTC, datetime

from floodplain.errors import Conflict, Fenced, LeaseHeld
from floodplain.host import Process
from floodplain.tiers.paths import checked_name
from floodplain.versions.commit import commit
from floodplain.versions.edit import AdvancePublished, ReleaseLease, TakeLease
from floodplain.versions.history import History
from floodplain.versions.manifest import Lease


def take(
    history: History,
    owner: str,
    *,
    force: bool = False,
    holder: Process | None = None,
    is_gone: Callable[[Process], bool] = lambda process: False,  # noqa: ARG005
) -> int:
    """Take the lease and return its token: whoever had one before can commit nothing more.

    Raises ``LeaseHeld`` while another owner's lease has not ended by the clock, unless ``force``, or its ``holder`` is known to
    be gone. ``holder`` is the process that takes it.
    """
    checked_name("owner", owner)
    while True:
        head = history.refresh()
        now_ms = history.clock.now_ms()
        if head.lease.owner != owner and head.lease.expires_ms > now_ms and not force and not _abandoned(head.lease, is_gone):
            raise LeaseHeld(_held(head.lease))
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


def _abandoned(lease: Lease, is_gone: Callable[[Process], bool]) -> bool:
    return lease.holder is not None and is_gone(lease.holder)


def named(lease: Lease) -> str:
    """Who holds it, for people to read."""
    return repr(lease.owner) if lease.holder is None else f"{lease.owner!r} ({lease.holder})"


def _held(lease: Lease) -> str:
    try:
        ends = datetime.fromtimestamp(lease.expires_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        ends = f"{lease.expires_ms} ms after 1970"
    return (
        f"{named(lease)} holds lease {lease.token} until {ends}: wait, stop that writer, "
        "or force the lease from it (it then can commit nothing more)"
    )
