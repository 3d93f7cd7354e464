"""Framed, authenticated connections.

Both sides prove that they know the secret before a message is read. A frame is the lengths of a message and of the bytes that
follow it, the checksum of the message, then both. The message vouches for the bytes. Without certificates what follows the proof
is clear text.
"""

import hashlib
import hmac
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from floodplain.clock import Randomness
from floodplain.errors import BadInput
from floodplain.workers.messages import Message, decoded, encoded
from floodplain.workers.tls import TlsSocket

_HEAD = struct.Struct(">IQQ")
_CHALLENGE_BYTES = 32
MOST_MESSAGE_BYTES = 1 << 28
"""Broadcast rows, task values and the manifest travel in messages."""
MOST_DATA_BYTES = 1 << 36
"""Behind a message: rows of one slot."""
HANDSHAKE_S = 10.0
"""How long the other side may take to prove itself."""
CONNECT_S = 4.0
"""How long a host may take to take a connection: less than the time in which a worker must let go of a try."""
_UNACKNOWLEDGED_MS = 30_000
"""A connection to a host that is cut off breaks after so long, on Linux, also while rows wait to be sent."""
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": _UNACKNOWLEDGED_MS}


class Disconnected(Exception):
    """The other side is gone, or is not who it should be."""


@dataclass(frozen=True)
class Certificates:
    """Files for TLS between coordinator, workers and bridge tasks. Each side checks the certificate of the other."""

    certificate: str
    key: str = field(repr=False)
    authority: str

    def context(self, *, server: bool) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.load_cert_chain(self.certificate, self.key)
        made.load_verify_locations(self.authority)
        made.check_hostname = False  # the secret tells who it is; the authority is the user's own
        made.verify_mode = ssl.CERT_REQUIRED
        return made

    def check(self) -> None:
        """Raises ``OSError`` or ``ssl.SSLError`` where they cannot be used."""
        for name in (self.certificate, self.key, self.authority):
            Path(name).read_bytes()
        self.context(server=True)


@dataclass(frozen=True)
class Credentials:
    """What a process needs to connect to another of the same query."""

    secret: bytes = field(repr=False)
    certificates: Certificates | None = None


class Channel:
    """One connection. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket: Any = TlsSocket(connection) if isinstance(connection, ssl.SSLSocket) else connection
        self._sending = threading.Lock()
        name = connection.getsockname()
        self.host = str(name[0]) if isinstance(name, tuple) else ""
        """The address of this host by which the other side reached it."""

    def send(self, message: Message, data: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        """``data``: buffers behind the message. ``fds``: open files, on a Unix socket. Raises ``Disconnected``.

        Raises ``BadInput`` if the message is too large; then nothing was sent.
        """
        body = encoded(message)
        if len(body) > MOST_MESSAGE_BYTES:
            raise BadInput(
                f"{type(message).__name__} for a worker has {len(body)} bytes, and at most {MOST_MESSAGE_BYTES} can be sent: "
                "broadcast rows and task values travel in it. Join what is larger as a stream"
            )
        head = _head(body, sum(memoryview(part).nbytes for part in data))
        try:
            with self._sending:
                if fds:
                    socket.send_fds(self._socket, [head], list(fds))
                    self._socket.sendall(body)
                else:
                    self._socket.sendall(head + body)
                for part in data:
                    self._socket.sendall(part)
        except (OSError, ValueError) as error:
            raise Disconnected(str(error)) from error

    def offer(self, message: Message, patience_s: float = 0.0) -> bool:
        """Send a small message unless that would have to wait; whether it was sent. Raises ``Disconnected``.

        ``patience_s``: how long it may wait for what another thread is sending.
        """
        if not self._sending.acquire(timeout=patience_s):
            return False
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if not poll.poll(0):
                return False
            body = encoded(message)
            self._socket.sendall(_head(body) + body)
        except (OSError, ValueError) as error:
            raise Disconnected(str(error)) from error
        finally:
            self._sending.release()
        return True

    def receive(self) -> tuple[Message, memoryview]:
        """The next message and the bytes behind it. Raises ``Disconnected``."""
        message, length, _ = self._received(0)
        return message, self._exactly(length)

    def receive_fds(self, most: int) -> tuple[Message, list[int]]:
        """The next message and the files that came with it, to be closed by the caller. Raises ``Disconnected``."""
        message, length, fds = self._received(most)
        if length:
            _close(fds)
            raise Disconnected(f"{length} bytes where files were expected")
        return message, fds

    def _received(self, most_fds: int) -> tuple[Message, int, list[int]]:
        fds: list[int] = []
        try:
            if most_fds:
                head, fds, _, _ = socket.recv_fds(self._socket, _HEAD.size, most_fds, socket.MSG_CMSG_CLOEXEC)
                if not head:
                    raise Disconnected("the connection was closed")
                head += bytes(self._exactly(_HEAD.size - len(head)))
            else:
                head = bytes(self._exactly(_HEAD.size))
            size, length, checksum = _HEAD.unpack(head)
            if size > MOST_MESSAGE_BYTES or length > MOST_DATA_BYTES:
                raise Disconnected(f"a message of {size} bytes, with {length} bytes behind it")
            body = bytes(self._exactly(size))
            if xxhash.xxh3_64_intdigest(body) != checksum:
                raise Disconnected(f"a message of {size} bytes was damaged on its way")
            return decoded(body), length, fds
        except (OSError, ValueError, Disconnected) as error:
            _close(fds)
            raise Disconnected(str(error)) from error

    def _exactly(self, count: int) -> memoryview:
        try:
            view, at = memoryview(bytearray(count)), 0
            while at < count:
                got = self._socket.recv_into(view[at:])
                if got == 0:
                    raise Disconnected("the connection was closed")
                at += got
        except (OSError, ValueError, MemoryError) as error:
            raise Disconnected(str(error)) from error
        return view

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _head(body: bytes, length: int = 0) -> bytes:
    return _HEAD.pack(len(body), length, xxhash.xxh3_64_intdigest(body))


def accept(connection: socket.socket, credentials: Credentials, randomness: Randomness) -> Channel:
    """The server's side of a new connection. Raises ``Disconnected`` unless the client knows the secret."""
    try:
        connection.settimeout(HANDSHAKE_S)
        if credentials.certificates is not None and connection.family != socket.AF_UNIX:
            connection = credentials.certificates.context(server=True).wrap_socket(connection, server_side=True)
        mine = _challenge(randomness)
        connection.sendall(mine)
        proof, theirs = _read(connection, 32), _read(connection, _CHALLENGE_BYTES)
        if not hmac.compare_digest(proof, _proof(credentials, b"client", mine, theirs)):
            raise Disconnected("a process that does not know the secret")
        connection.sendall(_proof(credentials, b"server", mine, theirs))
        _ready(connection)
    except (OSError, Disconnected) as error:
        connection.close()
        raise Disconnected(str(error)) from error
    return Channel(connection)


def connect(
    address: tuple[str, int] | str,
    credentials: Credentials,
    randomness: Randomness,
    opened: Callable[[socket.socket], None] = lambda _: None,
) -> Channel:
    """The client's side. ``address``: host and port, or the name of an abstract Unix socket. Raises ``Disconnected``.

    ``opened`` is given the socket before the other side has proved itself: shutting it down ends the wait.
    """
    try:
        connection = _opened(address)
    except OSError as error:
        raise Disconnected(f"{address}: {error}") from error
    try:
        opened(connection)
        if credentials.certificates is not None and connection.family != socket.AF_UNIX:
            secured = credentials.certificates.context(server=False).wrap_socket(connection, do_handshake_on_connect=False)
            connection = secured
            opened(connection)
            secured.do_handshake()
        theirs, mine = _read(connection, _CHALLENGE_BYTES), _challenge(randomness)
        connection.sendall(_proof(credentials, b"client", theirs, mine) + mine)
        if not hmac.compare_digest(_read(connection, 32), _proof(credentials, b"server", theirs, mine)):
            raise Disconnected("the process there does not know the secret")
        _ready(connection)
    except (OSError, Disconnected) as error:
        connection.close()
        raise Disconnected(f"{address}: {error}") from error
    return Channel(connection)


def _opened(address: tuple[str, int] | str) -> socket.socket:
    if not isinstance(address, str):
        made = socket.create_connection(address, CONNECT_S)
        made.settimeout(HANDSHAKE_S)
        return made
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(HANDSHAKE_S)
        connection.connect(f"\0{address}")
    except OSError:
        connection.close()
        raise
    return connection


def new_secret(randomness: Randomness) -> bytes:
    return _challenge(randomness)


def _challenge(randomness: Randomness) -> bytes:
    return hashlib.sha256("".join(randomness.nonce() for _ in range(4)).encode()).digest()


def _proof(credentials: Credentials, side: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.new(credentials.secret, side + server + client, hashlib.sha256).digest()


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise Disconnected("the connection was closed")
        data += part
    return data


def _ready(connection: socket.socket) -> None:
    connection.settimeout(None)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
