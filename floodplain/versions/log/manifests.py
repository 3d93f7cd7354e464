"""Manifest checkpoints as they are stored: listing, loading, writing.

A checkpoint at position p is the fold of the log up to p and nothing else, so two writers of one position write equal
content, whenever they come. The newest one is never deleted. Hence, once a checkpoint at or above n exists, there always
is one: what the commit protocol and the readers of the log rest on (I2).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from floodplain.clock import Clock, Randomness
from floodplain.errors import Corrupt, NotFound
from floodplain.settings import RetrySettings
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs, Data
from floodplain.tiers.create import create_or_read
from floodplain.versions.records.frame import Kind, decode, encode
from floodplain.versions.records.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Found:
    """The newest readable checkpoint of those asked for, and the newer ones that cannot be read, newest first."""

    manifest: Manifest | None
    damaged: tuple[Corrupt, ...]

    @property
    def reach(self) -> int:
        """The log got at least this far: only counted positions are checkpointed."""
        return max((paths.position_of(damage.file) or 0 for damage in self.damaged), default=0)


def stored(blobs: Blobs, above: int = -1) -> Iterator[int]:
    """Positions of the checkpoints above ``above``, ascending."""
    after = paths.manifest(above) if above >= 0 else ""
    for info in blobs.list(paths.MANIFESTS, after):
        position = paths.position_of(info.name)
        if position is not None and info.name == paths.manifest(position):
            yield position


def load(blobs: Blobs, store: str, position: int) -> Manifest:
    """Raises ``Corrupt`` or ``NotFound``."""
    return decoded(blobs.get(paths.manifest(position)), store, position)


def decoded(data: Data, store: str, position: int) -> Manifest:
    """The checkpoint of this position of this store, of the bytes stored as it. Raises ``Corrupt``."""
    file = paths.manifest(position)
    manifest = decode(Kind.MANIFEST, Manifest, data, file)
    if manifest.store != store:
        raise Corrupt(file, f"store {store}", f"store {manifest.store}")
    if manifest.position != position:
        raise Corrupt(file, f"position {position}", f"position {manifest.position}")
    for expected, actual in manifest.strays():
        raise Corrupt(file, expected, actual)
    return manifest


def newest(blobs: Blobs, store: str, above: int = -1, up_to: int | None = None) -> Found:
    while True:
        damaged: list[Corrupt] = []
        try:
            for position in reversed([p for p in stored(blobs, above) if up_to is None or p <= up_to]):
                try:
                    return Found(load(blobs, store, position), tuple(damaged))
                except Corrupt as damage:
                    damaged.append(damage)
            return Found(None, tuple(damaged))
        except NotFound:
            # Deleted since it was listed, so a newer one is there: look again.
            continue


def save(blobs: Blobs, manifest: Manifest, retry: RetrySettings, clock: Clock, randomness: Randomness) -> bool:
    """Make sure that the checkpoint of ``manifest`` is stored and reads back as it; whether it was missing.

    A damaged one is replaced. Never deleted instead: another process may have read it whole and trimmed the log on it.
    Raises ``Corrupt`` if it cannot be made to read back; also if a collection, which has newer ones, deleted it meanwhile.
    Requires: ``manifest`` is one that the log led to.
    """
    file = paths.manifest(manifest.position)
    data = encode(Kind.MANIFEST, manifest)
    missing = create_or_read(blobs, file, data, retry, clock, randomness) is None
    if _differs(blobs, manifest) is not None:
        blobs.put(file, data)
        if (damage := _differs(blobs, manifest)) is not None:
            raise damage
    return missing


def _differs(blobs: Blobs, manifest: Manifest) -> Corrupt | None:
    try:
        stored = load(blobs, manifest.store, manifest.position)
    except Corrupt as damage:
        return damage
    except NotFound:
        raise Corrupt(paths.manifest(manifest.position), "the checkpoint just written", "no such file") from None
    if stored.chain != manifest.chain:
        raise Corrupt(paths.manifest(manifest.position), f"chain {manifest.chain}", f"chain {stored.chain}")
    same = stored == manifest
    return None if same else Corrupt(paths.manifest(manifest.position), "the fold of the log", "another manifest")
