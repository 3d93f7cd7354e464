"""Removing what nothing can reach any more: old epochs, their runs, the part of the log that a checkpoint replaced.

Any number of collections, commits, checkpoints, pins and readers may run at once, and any may stop for good at any point.
What makes each deletion safe:

* **A run**, or an object of seen files, goes if no manifest that can still be read names it, and its writer started at or
  below the horizon. Both are judged on a manifest M of the log. Whatever commits after M cannot name it for the first time,
  since the horizon refuses it (I8). An epoch not retained in M never is again; a pin on one is stored before M, and pins are
  listed after.
* **A log object** goes only up to T, a checkpoint that was read back, with a newer one also read back above it: a reader
  opens from either, and the log above T stays whole, so damage to one of them is survived. The fences of what goes are
  created first, so no writer takes a position that goes for a new one (``fences``).
* **A checkpoint** goes only below T, and not if an epoch retained in M, or a pin, ends there. Those that end at or below T
  got a checkpoint of their own before anything was trimmed, so they need no log.
* **A staged file** goes if its writer lost its lease in M, or its epoch is not above the last of M, and M has not yet to
  publish it: what stages a later epoch has the lease of M or a newer one.

A late actor is harmless: everything it decided to delete was unreachable for good when it decided, and names of runs, edits
and checkpoints never come to mean anything else.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from floodplain.errors import BadInput, Conflict, Corrupt, Fenced, NotFound
from floodplain.tiers import paths
from floodplain.tiers.blobs import BlobInfo
from floodplain.versions.log import fences, manifests
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.past_manifests import manifests_at
from floodplain.versions.records.ages import newest_of_age
from floodplain.versions.records.edit import AdvanceHorizon, DropEpochs, Update
from floodplain.versions.records.manifest import EpochMark, Manifest
from floodplain.versions.retention import pins
from floodplain.versions.retention.listing import Listing
from floodplain.versions.retention.policy import epochs_to_drop

PROBE_MS = 600_000
"""Far longer than a probe takes: one deleted while it runs would find its store unsafe."""
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Collected:
    """What a garbage collection deleted."""

    epochs: tuple[int, ...] = ()
    """The epochs that were forgotten."""
    horizon: int = 0
    runs: int = 0
    run_bytes: int = 0
    edits: int = 0
    checkpoints: int = 0
    pins: int = 0
    probes: int = 0
    staged: int = 0
    """Staged files of epochs that were not committed, or are published."""
    metadata_bytes: int = 0
    """The size of the deleted edits and manifest checkpoints."""


def collect(history: History, *, token: int = 0, horizon: int | None = None) -> Collected:
    """Forget epochs as the retention settings say, and delete what only they needed.

    ``horizon``: files of writers that started at or below this log position and never committed are garbage; such a
    writer, if it still runs, has to start over. By default a position that leaves running epochs alone.
    """
    for _ in range(_TRIES):
        head = history.refresh()
        plan = _plan(history, head, horizon)
        try:
            if head.position:
                _save(history, head)
            saved, head = head, commit(history, plan.updates, token=token) if plan.updates else head
            # After the edit that forgets epochs: whoever pins one of them later learns of that edit.
            listing = Listing(history.blobs)
            trim_to = _trimmable(history, saved, head, listing)
            _checkpoint_each(history, head.epochs, trim_to, listing)
            return _delete(history, head, plan, trim_to, listing)
        except Fenced:
            raise
        except Conflict as conflict:
            # An epoch was tagged, or another collection went further: decide again.
            last: Conflict | Corrupt = conflict
        except Corrupt as damage:
            # What could not be read may have been let go of, and deleted by another collection: look again.
            last = damage
    raise last


def delete_unreachable(history: History) -> Collected:
    """Delete what is garbage by what the log says already. Writes nothing, so it works on a full disk."""
    head = history.refresh()
    return _delete(history, head, _Plan((), head.horizon, ()), 0, Listing(history.blobs))


def default_horizon(manifest: Manifest, now_ms: int, grace_ms: int) -> int:
    """The newest position known to be older than the grace, and below what the next epoch can have started from."""
    marks = [(mark.position, mark.at_ms) for mark in manifest.epochs]
    known = (*marks, *manifest.ages, (manifest.position, manifest.at_ms))
    horizon = newest_of_age(known, grace_ms, now_ms)
    if manifest.lease.expires_ms + grace_ms > now_ms:
        horizon = min(horizon, manifest.epochs[-1].position - 1 if manifest.epochs else 0)
    return max(manifest.horizon, horizon)


@dataclass(frozen=True, slots=True)
class _Plan:
    dropped: tuple[int, ...]
    horizon: int
    updates: tuple[Update, ...]


def _plan(history: History, head: Manifest, horizon: int | None) -> _Plan:
    now_ms = history.clock.now_ms()
    if horizon is not None and horizon > head.position:
        raise BadInput(f"horizon {horizon} is beyond the log, which ends at {head.position}")
    if horizon is None:
        horizon = default_horizon(head, now_ms, 2 * history.settings.lease_ms)
    horizon = max(horizon, head.horizon)
    dropped = epochs_to_drop(head.epochs, head.tags, now_ms, history.settings.retention)
    updates: list[Update] = []
    if dropped:
        updates.append(DropEpochs(dropped))
    if horizon > head.horizon:
        updates.append(AdvanceHorizon(horizon))
    return _Plan(dropped, horizon, tuple(updates))


def _trimmable(history: History, saved: Manifest, head: Manifest, listing: Listing) -> int:
    """T, up to where the log can be trimmed: not in the segment that it ends in, lest writers and readers there meet a fence;
    and not where it holds output that is not published.

    Requires: the checkpoint of ``saved`` was read back.
    """
    length = history.format.log_segment
    ends_in = fences.segment_of(saved.position + 1 - length // 8, length)  # for those that are a little behind, too
    pending = head.inline and head.published < head.epoch
    below = min(saved.position, head.epochs[-1].position) if pending else saved.position
    for position, _ in reversed(listing.positions(paths.MANIFESTS)):
        if position < below and fences.segment_of(position, length) < ends_in:
            try:
                manifests.load(history.blobs, saved.store, position)
            except (Corrupt, NotFound):
                continue
            return position
    return 0


def _manifests_at(history: History, marks: Iterable[EpochMark], listing: Listing) -> Iterator[tuple[EpochMark, Manifest, bool]]:
    checkpoints = [position for position, _ in listing.positions(paths.MANIFESTS)]
    log = {position for position, _ in listing.positions(paths.LOG)}
    return manifests_at(history, marks, checkpoints, log)


def _checkpoint_each(history: History, marks: Iterable[EpochMark], trim_to: int, listing: Listing) -> None:
    """A checkpoint at each mark up to ``trim_to``. One whose edit was trimmed has it: that was the condition."""
    untrimmed = {position for position, _ in listing.positions(paths.LOG)}
    wanted = [mark for mark in marks if mark.position <= trim_to and mark.position in untrimmed]
    for mark, manifest, stored in _manifests_at(history, wanted, listing):
        history.named[mark] = frozenset(manifest.objects())
        if not stored:
            _save(history, manifest)


def _save(history: History, manifest: Manifest) -> None:
    manifests.save(history.blobs, manifest, history.settings.retry, history.clock, history.randomness)
    history.advance_checkpointed(manifest.position)


def _delete(history: History, head: Manifest, plan: _Plan, trim_to: int, listing: Listing) -> Collected:
    """Requires: ``head`` has the plan's updates, every epoch it retains up to ``trim_to`` has its checkpoint, and the listing was
    made after that edit."""
    blobs = history.blobs
    holding, expired = pins.live(history, history.clock.now_ms(), listing.under(paths.PINS))
    pinned = [record.mark for record in holding if record.mark.epoch and not _too_late(history, head, record.mark, trim_to)]
    _checkpoint_each(history, pinned, trim_to, listing)
    blobs.delete(expired)
    needed = [*head.epochs, *pinned]
    runs = _unreachable_runs(history, head, needed, listing)
    blobs.delete(info.name for info in runs)
    edits = _trimmed(history, listing, trim_to)
    kept = {mark.position for mark in needed}
    listed = listing.positions(paths.MANIFESTS)
    checkpoints = [info for position, info in listed if position < trim_to and position not in kept]
    blobs.delete(info.name for info in checkpoints)
    probes = _old_probes(history, listing)
    blobs.delete(probes)
    staged = old_staged(head, listing.under(paths.STAGED), head.lease.token)
    blobs.delete(staged)
    return Collected(
        epochs=plan.dropped,
        horizon=head.horizon,
        runs=len(runs),
        run_bytes=sum(info.size_bytes for info in runs),
        edits=len(edits),
        checkpoints=len(checkpoints),
        pins=len(expired),
        probes=len(probes),
        staged=len(staged),
        metadata_bytes=sum(info.size_bytes for info in (*edits, *checkpoints)),
    )


def _trimmed(history: History, listing: Listing, trim_to: int) -> list[BlobInfo]:
    """Deletes the log up to there, behind its fences; returns what was deleted."""
    blobs, edits = history.blobs, [(position, info) for position, info in listing.positions(paths.LOG) if position <= trim_to]
    going = [position for position, _ in edits]
    length, retry = history.format.log_segment, history.settings.retry
    fences.create(blobs, history.format.store, going, length, retry, history.clock, history.randomness)
    blobs.delete(info.name for _, info in edits)
    return [info for _, info in edits]


def old_staged(head: Manifest, listed: Iterable[BlobInfo], token: int) -> list[str]:
    """What attempts that did not count have staged, up to the epoch of ``head``, by writers of leases up to ``token``.

    What is not published yet, as far as the log tells, stays, and what the holder of a newer lease has staged.
    """
    kept = head.outputs if head.published < head.epoch else ()
    staged = [(paths.token_and_epoch_of(info.name), info.name) for info in listed]
    return [name for author, name in staged if author and author < (token, head.epoch) and name not in kept]


def _too_late(history: History, head: Manifest, mark: EpochMark, trim_to: int) -> bool:
    """Whether a pin was stored after its epoch was forgotten and trimmed: its owner will find out, or has died before.

    One that was in time had its own checkpoint before the log below it could be trimmed.
    """
    if mark in head.epochs or mark.position > trim_to:
        return False
    try:
        history.manifest_at(mark)
    except Corrupt:
        if mark.position in manifests.stored(history.blobs, above=mark.position - 1):
            raise
        return True
    return False


def _unreachable_runs(history: History, head: Manifest, needed: Iterable[EpochMark], listing: Listing) -> list[BlobInfo]:
    live = head.objects()
    loose = {}
    for info in listing.under(paths.RUNS, paths.SEEN):
        start = paths.start_of_run(info.name)
        if start is not None and start <= head.horizon and info.name not in live:
            loose[info.name] = info
    for name in _named_by(history, needed, listing) if loose else ():
        loose.pop(name, None)
    return list(loose.values())


def _named_by(history: History, needed: Iterable[EpochMark], listing: Listing) -> set[str]:
    """The objects of all of these epochs. What a manifest names never changes, so each is read in one collection only."""
    named = {mark: history.named.get(mark) for mark in needed}
    for mark, manifest, _ in _manifests_at(history, [mark for mark, names in named.items() if names is None], listing):
        named[mark] = frozenset(manifest.objects())
    history.named = {mark: names for mark, names in named.items() if names is not None}
    return {name for names in named.values() for name in names or ()}


def _old_probes(history: History, listing: Listing) -> list[str]:
    """What a process that died while probing left behind. A probe has no age, so this counts from when it was first seen."""
    now_ms = history.clock.now_ms()
    probes = {info.name: history.probes_seen.get(info.name, now_ms) for info in listing.under(paths.PROBES)}
    history.probes_seen = probes
    return [name for name, seen_ms in probes.items() if now_ms - seen_ms >= PROBE_MS]
