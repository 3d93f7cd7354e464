"""Appending to the log: the only way anything is ever committed."""

from collections.abc import Sequence
from functools import partial

from floodplain.errors import BadInput, Conflict, Corrupt, Unavailable
from floodplain.tiers import paths
from floodplain.tiers.create import create_or_read
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.log import fences, manifests
from floodplain.versions.log.history import History
from floodplain.versions.log.requirements import RequireLease, Requirement
from floodplain.versions.records.edit import Edit, Update
from floodplain.versions.records.frame import Kind, checksum, decode, encode
from floodplain.versions.records.manifest import BrokenHistory, Manifest, apply


def commit(history: History, updates: Sequence[Update], requirements: Sequence[Requirement] = (), *, token: int = 0) -> Manifest:
    """Append one edit and return a manifest that has it, the newest this process knows: with what others have appended, if they
    were waiting for it.

    ``token`` is the lease it is written under (0 for none); it is required to be the newest, and the edit renews it.
    Raises ``Conflict`` (``Fenced`` if the lease was lost) when a requirement does not hold or the updates do not fit the
    manifest; then nothing was committed. ``Unavailable`` leaves that open: refresh and look.

    Why a create that succeeded may be believed (I2): position n is deleted only after its fence was created, and below a durable
    checkpoint. So if there is no fence *after* the create, n was never taken before, and the edit counts. If there is one, or the
    log may have been trimmed without, checkpoints tell: from that deletion on one at or above n always exists. If none is found,
    n was never taken. If one is, either others already built on this edit or n had been taken, trimmed, and opened again by us;
    the nonces in the newest manifest tell which.
    """
    if history.damage is not None:
        raise history.damage
    needed = (RequireLease(token), *requirements) if token else tuple(requirements)
    stuck = 0
    while stuck < history.settings.retry.attempts:
        head = history.head
        for requirement in needed:
            requirement.check(head)
        edit = _edit(history, head, updates, token)
        data, after = _encoded(head, edit)
        if _create(history, edit, data) is None:
            first, later = _looked(history, head)
            if first:
                head = history.advance(after)
                return history.refresh() if later else head
            if _counted(history, edit):
                return history.head
        stuck = stuck + 1 if history.refresh().position == head.position else 0
    raise Unavailable(f"{paths.log(head.position + 1)} at {history.blobs.url} is taken and yet not there; ask again later")


def _create(history: History, edit: Edit, data: bytes) -> object:
    """None if our edit is stored."""
    return create_or_read(
        history.blobs, paths.log(edit.position), data, history.settings.retry, history.clock, history.randomness
    )


def _looked(history: History, head: Manifest) -> tuple[bool, bool]:
    """Whether nobody had taken the position after ``head`` before us, and whether others may have built on our edit since.

    Requires: our edit is stored there.
    """
    blobs, position = history.blobs, head.position + 1
    if head.fenced:
        names = (paths.fence(fences.segment_of(position, history.format.log_segment)), paths.log(position + 1))
        fence, later = fan_out(blobs, partial(fences.is_there, blobs), names, len(names))
        if not fence:
            return True, later
    first = next(manifests.stored(blobs, above=head.position), None) is None
    return first, first


def _edit(history: History, head: Manifest, updates: Sequence[Update], token: int) -> Edit:
    now_ms = history.clock.now_ms()
    return Edit(
        store=head.store,
        position=head.position + 1,
        previous=head.chain,
        nonce=history.randomness.nonce(),
        at_ms=now_ms,
        token=token,
        updates=tuple(updates),
        lease_expires_ms=now_ms + history.settings.lease_ms if token else 0,
        fences=True,
    )


def _encoded(head: Manifest, edit: Edit) -> tuple[bytes, Manifest]:
    """The bytes of ``edit`` and the manifest after it.

    What is folded is what others will decode, so nothing can be written that they could not read or that would not fit.
    """
    file = paths.log(edit.position)
    try:
        data = encode(Kind.EDIT, edit)
        return data, apply(head, decode(Kind.EDIT, Edit, data, file), checksum(data))
    except BrokenHistory as broken:
        expected, actual = broken.args
        raise Conflict(
            f"the updates do not fit epoch {head.epoch} at position {head.position}: need {expected}, got {actual}"
        ) from None
    except Corrupt as unreadable:
        raise BadInput(f"these updates cannot be recorded: {unreadable.found}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"these updates cannot be recorded: {error}") from error


def _counted(history: History, edit: Edit) -> bool:
    """Whether ``edit``, which is stored, is part of history. If not, its object is a stray and is removed."""
    head = history.refresh()
    nonces = dict(head.nonces)
    if edit.position in nonces:
        if nonces[edit.position] == edit.nonce:
            return True
        # Safe: the counted edit at this position was trimmed before ours could be created, and is never created again.
        history.blobs.delete([paths.log(edit.position)])
        return False
    if edit.token:
        RequireLease(edit.token).check(head)
    raise Conflict(
        f"this writer slept through {head.position - edit.position} commits, and whether its edit at position {edit.position} "
        "counted can no longer be told: start over from the newest manifest"
    )
