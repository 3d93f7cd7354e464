"""Renews a lease in the background."""

import logging
import threading
from collections.abc import Callable

from floodplain.errors import NoSpace, Unavailable
from floodplain.versions.log import lease
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint

BEATS = 6
"""Looks at the lease within its time. It is renewed after a third of it, so that some may fail."""

_log = logging.getLogger(__name__)


class Renewal:
    """Renews a lease from its own thread, so that an epoch of any length keeps it.

    The holder's own epoch never fails by it. An epoch requires its lease, the epoch before it, the schemas it wrote under and a
    garbage horizon below its start; a renewal moves none of them, and a position that it took first is only tried one higher.
    """

    def __init__(self, history: History, token: int, wanted: Callable[[], bool], lost: Callable[[Exception], object]) -> None:
        """``wanted``: whether to renew the lease now. ``lost`` is called from the thread with the reason when it is lost."""
        self._history = history
        self._token = token
        self._wanted = wanted
        self._lost = lost
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{token}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Once this returns nothing is renewed any more."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def beat(self) -> None:
        """Renew the lease if it is wanted and a third of its time is over, or the clock was set back so that this cannot be told.
        Raises ``Fenced`` if another has it."""
        held, lease_ms = self._history.head.lease, self._history.settings.lease_ms
        aged = not lease_ms * 2 // 3 <= held.expires_ms - self._history.clock.now_ms() <= lease_ms
        if (aged or held.token != self._token) and self._wanted():
            lease.renew(self._history, self._token)
            maybe_checkpoint(self._history)

    def _run(self) -> None:
        while not self._stopped.wait(self._history.settings.lease_ms / 1000 / BEATS):
            try:
                self.beat()
            except (Unavailable, NoSpace) as error:
                _log.warning("lease %d could not be renewed and is tried again: %s", self._token, error)
            except Exception as error:
                self._lost(error)
