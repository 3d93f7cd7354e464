"""Serves the pieces that a worker keeps, and takes those that bridge tasks push to it."""

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from floodplain.clock import Randomness
from floodplain.errors import FloodplainError
from floodplain.runtime.pieces import PieceKey
from floodplain.workers.channel import Channel, Credentials, Disconnected, accept
from floodplain.workers.kit import Point, go_on
from floodplain.workers.messages import Attach, Fetch, Fetched, Kept, Peer, Push, Pushed
from floodplain.workers.pieces import NotKept, PieceStore, RowStream, mapped, part_of

_WAITING = 128
"""Connections that may wait to be accepted."""
_RETRY_S = 0.2


class PieceServer:
    """Threads that answer other processes of the query. Closing it ends them."""

    def __init__(
        self,
        pieces: PieceStore,
        worker: int,
        host: str,
        credentials: Credentials,
        randomness: Randomness,
        reach: Callable[[Point], None] = go_on,
    ) -> None:
        """``host``: the address by which other hosts reach this one. Only that is listened at."""
        self._pieces, self._credentials, self._randomness, self._reach = pieces, credentials, randomness, reach
        self._open: set[Channel] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        listening = socket.create_server((host, 0), backlog=_WAITING)
        self._listening = [listening]
        local = ""
        if sys.platform == "linux":
            local = f"floodplain-{randomness.nonce()}"
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            unix.bind(f"\0{local}")
            unix.listen(_WAITING)
            self._listening.append(unix)
        self.peer = Peer(worker, host, listening.getsockname()[1], local)
        for each in self._listening:
            threading.Thread(target=self._accept, args=(each,), name="floodplain-rows", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            channels = list(self._open)
        for listening in self._listening:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        for channel in channels:
            channel.close()

    def _accept(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:  # closed, or out of files for now
                self._closed.wait(_RETRY_S)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="floodplain-rows", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        local = connection.family == socket.AF_UNIX
        with suppress(Disconnected):
            channel = accept(connection, self._credentials, self._randomness)
            with self._lock:
                if self._closed.is_set():
                    channel.close()
                    return
                self._open.add(channel)
            try:
                self._answer(channel, local=local)
            finally:
                channel.close()
                with self._lock:
                    self._open.discard(channel)

    def _answer(self, channel: Channel, *, local: bool) -> None:
        refused = ""
        while True:
            message, data = channel.receive()
            self._reach("take" if isinstance(message, Push) else "serve")
            match message:
                case Attach():
                    channel.send(Kept())
                case Fetch() if local:
                    self._give_files(channel, message)
                case Fetch():
                    self._give_segment(channel, message)
                case Push(nonce=nonce, key=key, slot=slot):
                    try:
                        self._pieces.add(nonce, key, slot, RowStream(data, message.rows, message.checksum))
                    except (NotKept, FloodplainError) as error:
                        refused = str(error)
                case Pushed(nonce=nonce, key=key):
                    self._tell(channel, nonce, key, refused)
                case _:
                    raise Disconnected(f"{type(message).__name__} is no message for this server")

    def _tell(self, channel: Channel, nonce: str, key: PieceKey, refused: str) -> None:
        try:
            segments = self._pieces.segments(nonce, key)
        except NotKept as error:
            refused = refused or str(error)
        channel.send(Kept(refused=refused) if refused else Kept(segments))

    def _give_files(self, channel: Channel, wanted: Fetch) -> None:
        try:
            files = self._pieces.files(wanted.nonce, wanted.key)
        except NotKept as error:
            channel.send(Fetched(missing=str(error)))
            return
        try:
            channel.send(Fetched(len(files)), fds=files)
        finally:
            for fd in files:
                os.close(fd)

    def _give_segment(self, channel: Channel, wanted: Fetch) -> None:
        assert wanted.segment is not None
        try:
            data = part_of(mapped(self._pieces.files(wanted.nonce, wanted.key)), wanted.segment)
        except NotKept as error:
            channel.send(Fetched(missing=str(error)))
            return
        channel.send(Fetched(), [data])
