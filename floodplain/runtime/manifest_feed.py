"""How manifests reach the processes of tasks: whole where they are small; else as what changed since the last one they had."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from floodplain.errors import Conflict
from floodplain.versions.records.manifest import BrokenHistory, Manifest
from floodplain.versions.records.manifest_delta import ManifestDelta, delta, for_tasks, updated

FEW_RUNS = 256
"""A manifest with fewer runs is sent whole: some tens of KB."""
MOST_DELTAS = 32
"""After so many, or more bytes than the whole manifest has, it is sent whole once more: what a new process has to fetch."""


class Shared(Protocol):
    """Bytes that each process fetches when it asks for them, and once."""

    def bytes(self) -> bytes: ...
    def close(self) -> None:
        """Nobody asks for them any more."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Bytes that travel with each task."""

    data: bytes

    def bytes(self) -> bytes:
        return self.data

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class SentManifest:
    """A whole manifest and deltas upon it, of which a process fetches what it does not have."""

    whole: Shared
    deltas: tuple[Shared, ...]
    chains: tuple[str, ...]
    """The chain of the whole manifest, and of that after each delta."""

    def manifest(self, held: Manifest | None) -> Manifest:
        """The last one. ``held``: what this process had before. Raises ``Conflict`` if it is not the one that was sent."""
        known = self.chains.index(held.chain) if held is not None and held.chain in self.chains else -1
        manifest = held if held is not None and known >= 0 else msgspec.msgpack.decode(self.whole.bytes(), type=Manifest)
        try:
            for each in self.deltas[max(known, 0) :]:
                manifest = updated(manifest, msgspec.msgpack.decode(each.bytes(), type=ManifestDelta))
        except BrokenHistory as broken:
            raise _other(*broken.args) from broken
        if manifest.chain != self.chains[-1]:
            raise _other(f"chain {self.chains[-1]}", f"chain {manifest.chain}")
        return manifest


def _other(expected: str, actual: str) -> Conflict:
    return Conflict(f"the manifest that reached a task is not that of the epoch's start (expected {expected}, got {actual})")


def inline(manifest: Manifest) -> SentManifest:
    """All of it, with each task."""
    return SentManifest(Inline(msgspec.msgpack.encode(manifest)), (), (manifest.chain,))


class ManifestFeed:
    """The driver's side. Each manifest goes out once, and each process gets it once. For one thread."""

    def __init__(self, share: Callable[[bytes], Shared]) -> None:
        self._share = share
        self._last: Manifest | None = None
        self._sent: SentManifest | None = None
        self._left_bytes = 0
        """Of deltas, before the whole manifest is sent again."""

    def send(self, manifest: Manifest) -> SentManifest:
        """The manifest as tasks get it: exactly this one, but for what only drivers need."""
        manifest = for_tasks(manifest)
        if sum(map(len, manifest.runs.values())) < FEW_RUNS:
            self.close()
            return inline(manifest)
        sent, last = self._sent, self._last
        if sent is not None and sent.chains[-1] == manifest.chain:
            return sent
        if sent is None or last is None or len(sent.deltas) >= MOST_DELTAS or self._left_bytes <= 0:
            return self._whole(manifest)
        data = msgspec.msgpack.encode(delta(last, manifest))
        self._last, self._left_bytes = manifest, self._left_bytes - len(data)
        self._sent = SentManifest(sent.whole, (*sent.deltas, self._share(data)), (*sent.chains, manifest.chain))
        return self._sent

    def _whole(self, manifest: Manifest) -> SentManifest:
        self.close()
        data = msgspec.msgpack.encode(manifest)
        self._last, self._left_bytes = manifest, len(data)
        self._sent = SentManifest(self._share(data), (), (manifest.chain,))
        return self._sent

    def close(self) -> None:
        """What was sent is not asked for any more."""
        if self._sent is not None:
            for each in (self._sent.whole, *self._sent.deltas):
                each.close()
        self._sent = self._last = None
