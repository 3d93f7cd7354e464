"""The drain lock: one epoch at a time, and none once the query is to stop."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from floodplain.errors import BadInput


class DrainLock:
    """A lock that can be shut for good. Shutting it does not disturb who is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: int | None = None
        self._shut = False

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Nobody else is inside meanwhile. Yields whether an epoch may begin."""
        with self._lock:
            self._inside = threading.get_ident()
            try:
                yield not self._shut
            finally:
                self._inside = None

    def shut(self) -> None:
        """No epoch begins any more; one that runs goes on."""
        self._shut = True

    def drain(self) -> None:
        """Shut it and wait until the epoch that runs is through.

        Raises ``BadInput`` if that is the caller's own, which would wait for itself.
        """
        self.check_outside()
        self.shut()
        with self._lock:
            return

    def check_outside(self) -> None:
        """Raises ``BadInput`` if the caller is inside."""
        if self._inside == threading.get_ident():
            raise BadInput(
                "an epoch cannot wait for its own end: stop or await the query from another thread, not from within its epoch"
            )
