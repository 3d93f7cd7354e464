"""The log as this process has read it: the head manifest, and manifests of past epochs."""

import logging
import threading
from typing import Annotated

import msgspec

from floodplain.clock import Clock, Randomness
from floodplain.errors import BadInput, Corrupt, FloodplainError, NotFound, SnapshotExpired, StoreNotFound
from floodplain.settings import StoreSettings
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs, Data
from floodplain.tiers.create import create_or_read
from floodplain.versions.log import fences, manifests
from floodplain.versions.log.follow import follow
from floodplain.versions.log.replay import replay
from floodplain.versions.records.frame import Kind, decode, encode
from floodplain.versions.records.manifest import EpochMark, Manifest

MAX_KEY_GROUPS = 1 << 16
_TRIES = 3

_log = logging.getLogger(__name__)


class Format(msgspec.Struct, frozen=True):
    """The first object of a store, written once: what never changes."""

    store: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_]{1,64}\Z")]
    """Its id, of which the names of output files are made."""
    key_groups: Annotated[int, msgspec.Meta(ge=1, le=MAX_KEY_GROUPS)]
    created_ms: int
    log_segment: Annotated[int, msgspec.Meta(ge=1)] = fences.SEGMENT
    """Positions of the log that are trimmed together."""


class History:
    """Folds the log and remembers how far it got. Safe to use from several threads; the head only advances."""

    def __init__(self, blobs: Blobs, format_: Format, *, settings: StoreSettings, clock: Clock, randomness: Randomness) -> None:
        """Not opened yet: use ``create`` or ``open``."""
        self.blobs = blobs
        self.settings = settings
        self.clock = clock
        self.randomness = randomness
        self.format = format_
        self.checkpoint_failure: FloodplainError | None = None
        """Why the last manifest checkpoint could not be written; None once one could. Costs opening time, not safety."""
        self.damage: Corrupt | None = None
        """What ``salvage`` could not read past."""
        self.probes_seen: dict[str, int] = {}
        """Probes found by collections, and when first."""
        self.named: dict[EpochMark, frozenset[str]] = {}
        """The run objects that the manifests of retained epochs name, as far as collections have read them."""
        self._lock = threading.Lock()
        self._checkpointed = 0
        self._head = Manifest(format_.store, format_.key_groups)

    @classmethod
    def create(
        cls,
        blobs: Blobs,
        key_groups: int,
        *,
        settings: StoreSettings,
        clock: Clock,
        randomness: Randomness,
        log_segment: int = fences.SEGMENT,
    ) -> "History":
        """Make a store, or open the one that is there: its number of key groups, and length of segments, then stand."""
        if not 1 <= key_groups <= MAX_KEY_GROUPS or key_groups & (key_groups - 1):
            raise BadInput(f"{key_groups} key groups are not possible: use a power of two from 1 to {MAX_KEY_GROUPS}")
        data = encode(Kind.FORMAT, Format(randomness.nonce(), key_groups, clock.now_ms(), log_segment))
        theirs = create_or_read(blobs, paths.FORMAT, data, settings.retry, clock, randomness)
        return cls._opened(blobs, data if theirs is None else theirs, settings, clock, randomness)

    @classmethod
    def open(cls, blobs: Blobs, *, settings: StoreSettings, clock: Clock, randomness: Randomness) -> "History":
        """Reads the newest manifest checkpoint and the edits after it, however large the state is."""
        return cls._opened(blobs, _format(blobs), settings, clock, randomness)

    @classmethod
    def salvage(cls, blobs: Blobs, *, settings: StoreSettings, clock: Clock, randomness: Randomness) -> "History":
        """A damaged store as far as it can be read: the head is the last good one, and nothing can be committed."""
        history = cls._based(blobs, _format(blobs), settings, clock, randomness)
        try:
            history._refold()
        except Corrupt as damage:
            history.damage = damage
            history.advance(replay(blobs, history.head).manifest)
        return history

    @classmethod
    def _opened(cls, blobs: Blobs, data: Data, settings: StoreSettings, clock: Clock, randomness: Randomness) -> "History":
        history = cls._based(blobs, data, settings, clock, randomness)
        history._refold()
        return history

    @classmethod
    def _based(cls, blobs: Blobs, data: Data, settings: StoreSettings, clock: Clock, randomness: Randomness) -> "History":
        """At the newest checkpoint that can be read."""
        format_ = decode(Kind.FORMAT, Format, data, paths.FORMAT)
        history = cls(blobs, format_, settings=settings, clock=clock, randomness=randomness)
        newest = manifests.newest(blobs, format_.store)
        if newest.manifest is not None:
            history.advance(newest.manifest)
            history.advance_checkpointed(newest.manifest.position)
        return history

    @property
    def head(self) -> Manifest:
        """The last manifest folded."""
        return self._head

    @property
    def checkpointed(self) -> int:
        """Position of the newest manifest checkpoint known here; 0 for none."""
        return self._checkpointed

    def advance(self, manifest: Manifest) -> Manifest:
        """Take ``manifest`` as the head unless another thread got further. Requires: the log led to it."""
        with self._lock:
            if manifest.position > self._head.position:
                self._head = manifest
            return self._head

    def advance_checkpointed(self, position: int) -> None:
        with self._lock:
            self._checkpointed = max(self._checkpointed, position)

    def refresh(self) -> Manifest:
        """Fold what others appended: by the names of the next edits, or by a listing if there are many or the log was trimmed."""
        manifest = follow(self.blobs, self.head, self.format.log_segment)
        return self._refold() if manifest is None else self.advance(manifest)

    def _refold(self) -> Manifest:
        """By listings.

        What the log holds is believed only after a look for newer checkpoints. An object at n is a stray if n was trimmed
        and created again by a writer that did not know; then a checkpoint at or above n was there before the stray, and
        one still is. So if none is above the base, no stray was folded; if one is, the fold starts over from it.
        A checkpoint that cannot be read is not skipped lightly: the log itself must reach as far as it did.
        """
        base = self.head
        while True:
            replayed = replay(self.blobs, base)
            newer = manifests.newest(self.blobs, base.store, above=base.position)
            for damage in newer.damaged:
                _log.warning("%s", damage)
            if newer.manifest is None:
                break
            base = newer.manifest
            self.advance_checkpointed(base.position)
        head = replayed.manifest
        if newer.reach > head.position:
            damage = newer.damaged[0]
            raise Corrupt(damage.file, damage.expected, damage.found, head.epoch) from replayed.damage
        if replayed.damage is not None:
            raise replayed.damage
        return self.advance(head)

    def at(self, epoch: int) -> Manifest:
        """The manifest of a retained epoch. Hold a pin on it to keep its files while reading."""
        if epoch > self.head.epoch and epoch > self.refresh().epoch:
            raise BadInput(f"epoch {epoch} is not committed yet: the last one is {self.head.epoch}")
        head = self.head
        if epoch == head.epoch == 0:
            return head
        mark = head.mark(epoch)
        try:
            return self.manifest_at(mark or self._retained(epoch))
        except Corrupt:
            self.refresh()
            self._retained(epoch)
            raise

    def _retained(self, epoch: int) -> EpochMark:
        head = self.head
        mark = head.mark(epoch)
        if mark is None:
            kept = ", ".join(str(kept.epoch) for kept in head.epochs[-5:])
            raise SnapshotExpired(
                f"epoch {epoch} is no longer retained; the newest retained epochs are {kept}. Tag an epoch to keep it."
            )
        return mark

    def tagged(self, name: str) -> Manifest:
        paths.checked_name("tag", name)
        tags = self.refresh().tags
        if name not in tags:
            raise BadInput(f"there is no tag {name!r}; there are: {', '.join(sorted(tags)) or 'none'}")
        return self.at(tags[name])

    def manifest_at(self, mark: EpochMark) -> Manifest:
        """The manifest at ``mark``: from its own checkpoint, or an older one and the edits after it.

        Raises ``Corrupt`` if they are not there. The mark's checksum rules out strays and swapped files. Looks more than
        once: a collection may write the checkpoint and trim the edits between our listing and our reading.
        """
        damage = None
        for _ in range(_TRIES):
            manifest_or_damage = self._look_for(mark)
            if isinstance(manifest_or_damage, Manifest):
                return manifest_or_damage
            damage = manifest_or_damage
        assert damage is not None
        raise Corrupt(damage.file, damage.expected, damage.found, self.head.epoch)

    def _look_for(self, mark: EpochMark) -> Manifest | Corrupt:
        head = self.head
        if (head.position, head.chain) == (mark.position, mark.chain):
            return head
        newest = manifests.newest(self.blobs, head.store, up_to=mark.position)
        replayed = replay(self.blobs, newest.manifest or Manifest(head.store, head.key_groups), up_to=mark.position)
        manifest = replayed.manifest
        if (manifest.position, manifest.chain) == (mark.position, mark.chain):
            return manifest
        if newest.damaged:
            return newest.damaged[0]
        expected, chain = f"chain {mark.chain} at position {mark.position}", f"chain {manifest.chain} at {manifest.position}"
        return replayed.damage or Corrupt(paths.manifest(mark.position), expected, chain)


def _format(blobs: Blobs) -> Data:
    try:
        return blobs.get(paths.FORMAT)
    except NotFound:
        raise StoreNotFound(f"there is no store at {blobs.url}: create one, or check the location") from None
