"""The files of a snapshot: its manifest may change while it is read, because compactions replace runs that are then collected."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from floodplain.errors import Corrupt, SnapshotExpired
from floodplain.store.run.open_runs import OpenRuns
from floodplain.versions.log.history import History
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.retention.pins import Pin

Result = TypeVar("Result")
_MOVES = 5
"""How often one read is retried on the runs that replaced its own."""


class SnapshotFiles:
    """The manifest of one epoch. If its runs are compacted away and collected, it is replaced by another manifest of that epoch.

    The manifest of the head may name what a compaction made after its epoch. Once that is compacted again, nothing retains it.
    Then this moves on to a manifest of the same epoch that is retained: it names other runs with the same rows. No clock is
    asked: only files that the newest manifest does not name are ever collected, and that tells their loss from damage.
    """

    def __init__(self, manifest: Manifest, open_runs: OpenRuns, history: History, pin: Pin | None = None) -> None:
        self.manifest = manifest
        self.pin = pin
        self._open_runs = open_runs
        self._history = history
        self._use = open_runs.use(manifest)

    def read(self, work: Callable[[Manifest], Result]) -> Result:
        """What ``work`` gives, which is called again if the manifest had to change under it.

        Raises ``SnapshotExpired`` if the epoch was forgotten meanwhile or its pin ran out, and ``Corrupt`` for what still counts.
        """
        for _ in range(_MOVES):
            try:
                return work(self.manifest)
            except Corrupt as damage:
                self._move_on(damage)
            finally:
                if self.pin is not None:
                    self.pin.check()
        raise _expired(self.manifest.epoch)

    def _move_on(self, damage: Corrupt) -> None:
        before = self.manifest
        with forgotten_before_damage(self._history, before):
            head = _newest(self._history, damage)
            if not before.epoch or damage.file in head.objects() or head.mark(before.epoch) is None:
                raise damage
            retained = self._history.at(before.epoch)
            if damage.file in retained.objects():
                raise damage
            after = head if head.epoch == before.epoch else retained
        if after.schemas != before.schemas or after.runs == before.runs:
            raise _expired(before.epoch) from damage
        self.manifest, self._use = after, self._open_runs.use(after)


@contextmanager
def forgotten_before_damage(history: History, *manifests: Manifest) -> Iterator[None]:
    """Raises ``SnapshotExpired`` instead of ``Corrupt`` for a file that is gone because these epochs are no longer retained."""
    try:
        yield
    except Corrupt as damage:
        head = _newest(history, damage)
        naming = [manifest.epoch for manifest in manifests if manifest.epoch and damage.file in manifest.objects()]
        if damage.file in head.objects() or not naming or any(head.mark(epoch) is not None for epoch in naming):
            raise
        raise _expired(naming[0]) from damage


def _newest(history: History, damage: Corrupt) -> Manifest:
    """The newest manifest. A damaged log drops no epochs, so the damage stands."""
    try:
        return history.refresh()
    except Corrupt:
        raise damage from None


def _expired(epoch: int) -> SnapshotExpired:
    return SnapshotExpired(
        f"epoch {epoch} was forgotten while it was being read, and files of it are gone: take a new snapshot, and pin it "
        "(pinned=True) or tag the epoch to keep its files for longer"
    )
