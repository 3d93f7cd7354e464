"""Reads the rows of a slot from the pieces that readers keep: pulled by the owner, in the order of source partitions."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import pyarrow as pa

from floodplain.clock import Randomness
from floodplain.errors import Unavailable
from floodplain.runtime.pieces import Piece, PieceKey, Segment
from floodplain.workers.channel import Channel, Credentials, Disconnected, connect
from floodplain.workers.kit import Point, go_on
from floodplain.workers.messages import Fetch, Fetched, Peer
from floodplain.workers.pieces import NotKept, PieceStore, checksum_of, mapped, part_of, rows_of

_FILES = 2


class PieceReader:
    """Connections to other workers, kept between epochs. Used by one thread, which others may interrupt."""

    def __init__(
        self,
        own: PieceStore,
        me: int,
        credentials: Credentials,
        randomness: Randomness,
        reach: Callable[[Point], None] = go_on,
    ) -> None:
        self._own, self._me, self._credentials, self._randomness, self._reach = own, me, credentials, randomness, reach
        self._channels: dict[Peer, tuple[Channel, bool]] = {}
        self._lock = threading.Lock()
        self._wait: tuple[str, Callable[[], None]] | None = None
        """The try that rows are waited for, and what ends the wait."""
        self._given_up = ""
        self.pulled_bytes = 0
        """From other workers."""

    def rows(self, nonce: str, pieces: Sequence[Piece], peers: Mapping[int, Peer], slot: int) -> Iterator[pa.RecordBatch]:
        """The rows of a slot, by partition, and in each partition in their order. Raises ``Unavailable``, which names the worker,
        if one is gone or its rows are damaged."""
        self._forget_replaced(peers)
        for piece in sorted(pieces, key=lambda piece: piece.key.partition):
            segments = piece.of(slot)
            if not segments:
                continue
            for segment, data in zip(segments, self._segments(nonce, piece, segments, peers), strict=True):
                _check(piece, segment, data)
                yield from rows_of(data)

    def interrupt(self, nonce: str) -> None:
        """The try is given up. If its rows are waited for, that ends: the worker that has them may be stopped, or cut off."""
        with self._lock:
            self._given_up = nonce
            if self._wait is not None and self._wait[0] == nonce:
                self._wait[1]()

    def close(self) -> None:
        for channel, _ in self._channels.values():
            channel.close()
        self._channels.clear()

    def _segments(self, nonce: str, piece: Piece, segments: Sequence[Segment], peers: Mapping[int, Peer]) -> Iterator[pa.Buffer]:
        if piece.worker == self._me:
            try:
                files = mapped(self._own.files(nonce, piece.key))
                yield from [part_of(files, each) for each in segments]
            except NotKept as error:
                raise Unavailable(f"worker {self._me}: {error}") from error
            return
        self._reach("pull")
        peer = peers[piece.worker]
        self.pulled_bytes += sum(segment.length for segment in segments)
        channel, local = self._channel(nonce, peer)
        try:
            if local:
                files = self._files(channel, nonce, piece.key, peer)
                yield from [part_of(files, each) for each in segments]
                return
            for each in segments:
                yield self._fetched(channel, Fetch(nonce, piece.key, each), peer)
        except (Disconnected, NotKept) as error:
            self._forget(peer)
            raise Unavailable(f"worker {peer.worker} on {peer.host} does not answer with its rows: {error}") from error

    def _fetched(self, channel: Channel, wanted: Fetch, peer: Peer) -> pa.Buffer:
        with self._waiting(wanted.nonce, channel.close):
            channel.send(wanted)
            answer, data = channel.receive()
        if not isinstance(answer, Fetched) or answer.missing or wanted.segment is None or len(data) != wanted.segment.length:
            raise Unavailable(f"worker {peer.worker} on {peer.host}: {getattr(answer, 'missing', '') or 'no rows came'}")
        return pa.py_buffer(data)

    def _files(self, channel: Channel, nonce: str, key: PieceKey, peer: Peer) -> list[pa.Buffer]:
        with self._waiting(nonce, channel.close):
            channel.send(Fetch(nonce, key))
            answer, fds = channel.receive_fds(_FILES)
        buffers = mapped(fds)
        if not isinstance(answer, Fetched) or answer.missing or len(buffers) != answer.files:
            raise Unavailable(f"worker {peer.worker} on {peer.host}: {getattr(answer, 'missing', '') or 'no rows came'}")
        return buffers

    @contextmanager
    def _waiting(self, nonce: str, end: Callable[[], None]) -> Iterator[None]:
        """``end`` is called if the try is given up meanwhile. Raises ``Disconnected`` if it has been."""
        self._begin_wait(nonce, end)
        try:
            yield
        finally:
            self._end_wait()

    def _begin_wait(self, nonce: str, end: Callable[[], None]) -> None:
        with self._lock:
            if nonce == self._given_up:
                raise Disconnected("the try was given up")
            self._wait = nonce, end

    def _end_wait(self) -> None:
        with self._lock:
            self._wait = None

    def _channel(self, nonce: str, peer: Peer) -> tuple[Channel, bool]:
        """A connection, and whether it is to a process of this host."""
        if peer not in self._channels:
            self._channels[peer] = self._connected(nonce, peer)
        return self._channels[peer]

    def _connected(self, nonce: str, peer: Peer) -> tuple[Channel, bool]:
        if peer.local:
            with suppress(Disconnected):
                return self._connection(nonce, peer.local), True
        try:
            return self._connection(nonce, (peer.host, peer.port)), False
        except Disconnected as error:
            raise Unavailable(f"worker {peer.worker} on {peer.host} cannot be reached: {error}") from error

    def _connection(self, nonce: str, address: tuple[str, int] | str) -> Channel:
        def opened(connection: socket.socket) -> None:
            self._begin_wait(nonce, partial(_shut, connection))

        try:
            return connect(address, self._credentials, self._randomness, opened)
        finally:
            self._end_wait()

    def _forget_replaced(self, peers: Mapping[int, Peer]) -> None:
        """A worker that was lost has another address in its next process."""
        for peer in list(self._channels):
            if peers.get(peer.worker, peer) != peer:
                self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        gone = self._channels.pop(peer, None)
        if gone is not None:
            gone[0].close()


def _check(piece: Piece, segment: Segment, data: pa.Buffer) -> None:
    actual = checksum_of(data)
    if actual != segment.checksum:
        raise Unavailable(
            f"rows of partition {piece.key.partition} of {piece.key.exchange}, which worker {piece.worker} keeps, are damaged: "
            f"{segment.length} bytes with checksum {segment.checksum:016x} were expected, and {actual:016x} was found. They are "
            "made anew in the next try. If this comes again, look at the memory, the network and the disk (TMPDIR) of its host"
        )


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
