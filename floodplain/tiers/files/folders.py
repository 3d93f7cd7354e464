"""Durable directories: created and synced."""

import os
import threading
from contextlib import suppress
from pathlib import Path

from floodplain.tiers.files.modes import AS_UMASK, Modes


class Folders:
    """Makes the directories under ``root`` and syncs them, each once, whichever thread comes first. With ``sync`` off it only
    makes them."""

    def __init__(self, root: Path, *, sync: bool, modes: Modes = AS_UMASK) -> None:
        self._root = root
        self._modes = modes
        self._sync = sync
        self._made: set[Path] = set()
        self._making = threading.RLock()
        self._unsynced: set[Path] = set()

    def make(self, folder: Path) -> None:
        """``folder`` exists durably on return, whoever made it. Requires: it is ``root`` or under it."""
        if folder in self._made:
            return
        with self._making:
            if folder not in self._made:
                self._make(folder)

    def _make(self, folder: Path) -> None:
        if folder == self._root:
            self._make_root()
        else:
            self.make(folder.parent)
            self._modes.make_folder(folder)
            self.sync(folder.parent)
        self._made.add(folder)

    def sync(self, folder: Path) -> None:
        """The names in ``folder`` are durable on return."""
        if not self._sync:
            return
        self._unsynced.add(folder)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._unsynced.discard(folder)

    def settle(self, folder: Path) -> None:
        """Sync ``folder`` if that failed before.

        Otherwise a create whose sync failed would be read back as stored, and a power cut could still take it.
        """
        if folder in self._unsynced:
            self.sync(folder)

    def forget(self) -> None:
        """Someone removed a directory: make them all anew."""
        self._made.clear()

    def _make_root(self) -> None:
        missing = [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
        for folder in reversed(missing):
            (self._modes if folder == self._root else AS_UMASK).make_folder(folder)
            self.sync(folder.parent)
        if not missing:
            with suppress(PermissionError):
                self.sync(self._root.parent)
