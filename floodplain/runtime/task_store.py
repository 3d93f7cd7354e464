"""The store as the process of a task has it open, kept from one epoch to the next."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.metrics import Counters
from floodplain.settings import StoreSettings
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.write.task_writer import Ticket
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.open import open_blobs
from floodplain.versions.records.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Work:
    """Where and for which epoch tasks work; shipped with the function by Spark."""

    location: str = field(repr=False)
    settings: StoreSettings
    options: Mapping[str, str] = field(repr=False)
    ticket: bytes
    blobs: Blobs | None = None
    """Given where tasks run in the process of the driver; else each process opens its own."""


class ManifestSource(Protocol):
    """A manifest on its way to the processes of tasks."""

    def manifest(self, held: Manifest | None) -> Manifest:
        """Exactly the manifest that was sent. ``held``: the one that this process had last, if any."""


@dataclass
class OpenStore:
    """A store as this worker process has it open; workers live on between epochs, and so does what they mapped."""

    blobs: Blobs
    open_runs: OpenRuns
    manifest: Manifest | None = None
    """That of the last task."""
    clock: SystemClock = field(default_factory=SystemClock)
    randomness: SystemRandomness = field(default_factory=SystemRandomness)

    def advance(self, sent: Manifest | ManifestSource) -> Manifest:
        """The manifest of the next task. What the one before it named, and this does not, is unmapped."""
        manifest = sent if isinstance(sent, Manifest) else sent.manifest(self.manifest)
        if manifest is not self.manifest:
            self.open_runs.keep_only(run for runs in manifest.runs.values() for run in runs)
            self.manifest = manifest
        return manifest


_opened: dict[tuple[str, str], OpenStore] = {}
_lock = threading.Lock()


def open_for(work: Work) -> OpenStore:
    """The store that this work is for."""
    ticket = msgspec.msgpack.decode(work.ticket, type=Ticket)
    if work.blobs is not None:
        return OpenStore(work.blobs, _open_runs(work.settings, ticket.store, work.blobs))
    return opened(work.location, work.settings, work.options, ticket.store)


def opened(location: str, settings: StoreSettings, options: Mapping[str, str], store: str) -> OpenStore:
    """The store with this id, as this process has it open."""
    with _lock:
        if (location, store) not in _opened:
            clock, randomness = SystemClock(), SystemRandomness()
            blobs = open_blobs(location, settings, options=options, clock=clock, randomness=randomness, counters=Counters())
            _opened[location, store] = OpenStore(blobs, _open_runs(settings, store, blobs))
        return _opened[location, store]


def _open_runs(settings: StoreSettings, store: str, blobs: Blobs) -> OpenRuns:
    return OpenRuns(blobs, store, settings.memory_bytes, window_bytes=settings.window_bytes)
