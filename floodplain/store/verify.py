"""Verification: checks every byte that a retained epoch refers to."""

from collections.abc import Callable, Iterable

import msgspec

from floodplain.clock import Clock, Randomness
from floodplain.errors import Corrupt, NotFound
from floodplain.settings import StoreSettings
from floodplain.store.run.chunk_cache import ChunkCache
from floodplain.store.run.opening import open_run
from floodplain.store.run.reader import RunReader
from floodplain.store.run.validation import membership, schema_of
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.history import History
from floodplain.versions.records import seen
from floodplain.versions.records.edit import RunRef, SeenRef
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.retention.audit import audit

Progress = Callable[[int, int, int], None]
"""Called after each run with: runs checked, runs in all, bytes checked so far."""


class Damage(msgspec.Struct, frozen=True):
    """One thing that is wrong, and which retained epochs it touches."""

    file: str
    expected: str
    found: str
    last_good_epoch: int | None
    """The newest epoch that this damage does not touch."""
    epochs: tuple[int, ...]


class Verdict(msgspec.Struct, frozen=True):
    """The result of a verification: the damages, and how much was checked."""

    damages: tuple[Damage, ...]
    epochs: int
    runs: int
    size_bytes: int
    last_good_epoch: int | None = None
    """The newest retained epoch that no damage touches; None if there is none."""

    @property
    def good(self) -> bool:
        """Whether there is no damage."""
        return not self.damages


def verify(history: History, progress: Progress | None = None) -> Verdict:
    """Reads the metadata and every run of every retained epoch, past all caches of this process.

    May run concurrently with a writer and a garbage collection: an epoch that expires meanwhile is not damage. A salvaged
    history is checked as far as it goes.
    """
    head = history.head if history.damage else history.refresh()
    damages = _Damages()
    if history.damage:
        damages.add(history.damage, (), head.epoch)
    # The head may hold compactions that came after its epoch's own manifest: both can be read.
    manifests = [head]
    for mark in head.epochs:
        try:
            manifests.append(history.manifest_at(mark))
        except Corrupt as damage:
            damages.add(damage, _still_retained(history, (mark.epoch,)), head.epoch)
    audited, metadata_bytes = audit(history)
    for broken in audited:
        damages.add(broken, (), broken.last_good_epoch or head.epoch, once=True)
    seen_bytes = _verify_seen(history, manifests, damages)
    runs, run_bytes = _verify_runs(history, manifests, damages, progress)
    touched = {epoch for damage in damages.listed for epoch in damage.epochs}
    epochs = {manifest.epoch for manifest in manifests}
    return Verdict(
        tuple(damages.listed), len(epochs), runs, metadata_bytes + seen_bytes + run_bytes, max(epochs - touched, default=None)
    )


def verify_blobs(
    blobs: Blobs, *, settings: StoreSettings, clock: Clock, randomness: Randomness, progress: Progress | None = None
) -> Verdict:
    """As ``verify``, also of a store that is too damaged to be opened. Raises ``StoreNotFound`` where there is none."""
    try:
        history = History.salvage(blobs, settings=settings, clock=clock, randomness=randomness)
    except Corrupt as damage:
        return Verdict((Damage(damage.file, damage.expected, damage.found, damage.last_good_epoch, ()),), 0, 0, 0)
    return verify(history, progress)


class _Damages:
    """Collects damage: one entry per file and error, with the epochs that need the file."""

    def __init__(self) -> None:
        self.listed: list[Damage] = []

    def add(self, damage: Corrupt, epochs: tuple[int, ...] | None, last_good: int | None, *, once: bool = False) -> None:
        """``epochs`` is None if all that needed the file were forgotten. ``once``: not if the file is listed already."""
        if epochs is None or (once and any(known.file == damage.file for known in self.listed)):
            return
        entry = Damage(damage.file, damage.expected, damage.found, last_good, epochs)
        for at, known in enumerate(self.listed):
            if (known.file, known.expected, known.found) == (entry.file, entry.expected, entry.found):
                self.listed[at] = msgspec.structs.replace(known, epochs=tuple(sorted({*known.epochs, *epochs})))
                return
        self.listed.append(entry)


def _verify_runs(history: History, manifests: list[Manifest], damages: _Damages, progress: Progress | None) -> tuple[int, int]:
    users: dict[str, tuple[RunRef, Manifest, set[int]]] = {}
    for manifest in manifests:
        for run in (run for runs in manifest.runs.values() for run in runs):
            users.setdefault(run.id, (run, manifest, set()))[2].add(manifest.epoch)
    all_epochs = {manifest.epoch for manifest in manifests}
    size_bytes = 0
    for done, (run, manifest, epochs) in enumerate(users.values(), start=1):
        try:
            size_bytes += _verify_run(history, run, manifest)
        except Corrupt as damage:
            needing = _still_needing(history, run, epochs)
            last_good = max(all_epochs - {*epochs, *(needing or ())}, default=damage.last_good_epoch)
            damages.add(damage, needing, last_good)
        if progress is not None:
            progress(done, len(users), size_bytes)
    return len(users), size_bytes


def _verify_seen(history: History, manifests: list[Manifest], damages: _Damages) -> int:
    """What the log that each source keeps of what it has read was put into."""
    users: dict[SeenRef, set[int]] = {}
    for manifest in manifests:
        for ref in manifest.source.seen:
            users.setdefault(ref, set()).add(manifest.epoch)
    size_bytes = 0
    for ref, epochs in users.items():
        try:
            seen.load(history.blobs, history.format.store, ref)
            size_bytes += ref.sum.length
        except Corrupt as damage:
            good = {manifest.epoch for manifest in manifests} - epochs
            damages.add(damage, _still_retained(history, sorted(epochs)), max(good, default=None))
    return size_bytes


def _still_retained(history: History, epochs: Iterable[int]) -> tuple[int, ...] | None:
    """Those of the epochs that were not forgotten since; None if all were. A damaged log forgets nothing any more."""
    head = history.head if history.damage else history.refresh()
    kept = tuple(epoch for epoch in epochs if head.mark(epoch) is not None)
    return kept or None


def _still_needing(history: History, run: RunRef, epochs: set[int]) -> tuple[int, ...] | None:
    """The retained epochs that read the run by now; None if none does.

    Those that did (``epochs``) may be forgotten, or be retained without it: a run that a compaction made after an epoch is
    neither in the manifest of that epoch nor, once it is compacted again, in that of the head. Later epochs may read it as well.
    """
    head = history.head if history.damage else history.refresh()
    needing = {head.epoch} if _names(head, run) else set()
    for mark in head.epochs:
        if mark.epoch >= run.added:
            try:
                if _names(history.manifest_at(mark), run):
                    needing.add(mark.epoch)
            except Corrupt:
                needing |= {mark.epoch} & epochs
    return tuple(sorted(needing)) or None


def _names(manifest: Manifest, run: RunRef) -> bool:
    return any(each.id == run.id for each in manifest.runs.get(run.table, ()))


def _verify_run(history: History, run: RunRef, manifest: Manifest) -> int:
    return opened(history, run, manifest).verify()


def opened(history: History, run: RunRef, manifest: Manifest) -> RunReader:
    """The run, past all caches of this process: its object is there and has its size, and its footer is sound."""
    schema = schema_of(run, manifest)
    membership(run, manifest.key_groups)
    try:
        size = history.blobs.size(run.object)
    except NotFound:
        size = -1
    if size != run.object_size:
        actual = "no such file" if size < 0 else f"{size} bytes"
        raise Corrupt(run.object, f"{run.object_size} bytes", actual, max(run.added - 1, 0))
    return open_run(run, schema, manifest.key_groups, history.format.store, history.blobs, ChunkCache(0), mapped=False)
