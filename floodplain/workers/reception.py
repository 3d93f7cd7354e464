"""Where workers come in: connections are taken, proved, and handed on with their first message."""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from floodplain.clock import Randomness
from floodplain.workers.channel import Channel, Credentials, Disconnected, accept
from floodplain.workers.messages import Message

_RETRY_S = 0.25

_log = logging.getLogger(__name__)


class Reception:
    """Listens until it is closed. Each connection has a thread of its own."""

    def __init__(
        self,
        address: tuple[str, int],
        credentials: Credentials,
        randomness: Randomness,
        welcome: Callable[[Message, Channel], None],
    ) -> None:
        """``address``: port 0 is any that is free. ``welcome`` gets the first message of each, and may raise ``Disconnected``;
        once it returns, the connection is closed."""
        self._credentials, self._randomness, self._welcome = credentials, randomness, welcome
        self._closed = threading.Event()
        self._listening = socket.create_server(address)
        threading.Thread(target=self._accept, name="floodplain-coordinator", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    def close(self) -> None:
        """Take no more connections. Those that are there stay."""
        self._closed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed, or out of files for now
                self._closed.wait(_RETRY_S)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="floodplain-coordinator", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            channel = accept(connection, self._credentials, self._randomness)
        except Disconnected as error:
            _log.warning("a connection to the coordinator was refused: %s", error)
            return
        try:
            message, _ = channel.receive()
            self._welcome(message, channel)
        except Disconnected as error:
            _log.warning("a process that has not registered is gone: %s", error)
        finally:
            channel.close()
