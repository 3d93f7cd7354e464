"""TLS on a connection that one thread reads while others write."""

import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any


class TlsSocket:
    """Reads and writes as a socket does. OpenSSL lets only one thread at a time use a connection, so none waits inside of it."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._using = threading.Lock()
        connection.setblocking(False)

    def recv_into(self, view: memoryview) -> int:
        return self._done(lambda: self._connection.recv_into(view))

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            view = view[self._sent(view) :]

    def _sent(self, view: memoryview) -> int:
        return self._done(lambda: self._connection.send(view))

    def _done(self, act: Callable[[], int]) -> int:
        while True:
            try:
                with self._using:
                    return act()
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        poll.poll()

    def fileno(self) -> int:
        return self._connection.fileno()

    def getsockname(self) -> Any:
        return self._connection.getsockname()

    def shutdown(self, how: int) -> None:
        # That of SSLSocket forgets the encryption first: what another thread sends meanwhile would be clear text.
        socket.socket.shutdown(self._connection, how)

    def close(self) -> None:
        self._connection.close()
