import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from floodplain.clock import SystemRandomness
from floodplain.errors import Unavailable
from floodplain.runtime.pieces import Piece, PieceKey, Segment
from floodplain.workers.channel import Credentials, accept, connect
from floodplain.workers.messages import Fetched, Kept, Peer, Push, Pushed
from floodplain.workers.piece_reader import PieceReader
from floodplain.workers.piece_server import PieceServer
from floodplain.workers.pieces import PieceStore, RowStream
from tests.waiting import wait_for

SECRET = Credentials(b"s" * 32)
ME = 9


@dataclass
class Keeping:
    """A worker as others see it: pieces, and a server of them."""

    pieces: PieceStore
    server: PieceServer

    @classmethod
    def as_worker(cls, worker, budget=1 << 20):
        pieces = PieceStore()
        pieces.begin("one", budget)
        return cls(pieces, PieceServer(pieces, worker, "127.0.0.1", SECRET, SystemRandomness()))

    def keep(self, partition, *parts):
        """A piece of rows for slot 0, each part a stream of its own, with rows of slot 1 in between."""
        key, segments = PieceKey("op", partition, "a"), []
        for part in parts:
            segments.append(self.pieces.add("one", key, 0, _stream(part)))
            segments.append(self.pieces.add("one", key, 1, _stream([-1])))
        return Piece(key, self.server.peer.worker, tuple(segments))

    def close(self):
        self.server.close()
        self.pieces.close()


def _stream(numbers):
    return RowStream.of(pa.table({"n": pa.array(numbers, pa.int64())}))


def _push(channel, nonce, key, numbers):
    made = _stream(numbers)
    channel.send(Push(nonce, key, 0, made.rows, made.checksum), [made.data])


@pytest.fixture
def workers():
    made = [Keeping.as_worker(0), Keeping.as_worker(1, budget=500)]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def reader():
    own = PieceStore()
    own.begin("one", 1 << 20)
    reader = PieceReader(own, ME, SECRET, SystemRandomness())
    yield reader
    reader.close()
    own.close()


def _peers(workers, *, local):
    peers = {each.server.peer.worker: each.server.peer for each in workers}
    return peers if local else {worker: msgspec.structs.replace(peer, local="") for worker, peer in peers.items()}


def _numbers(batches):
    return [number for batch in batches for number in batch.column("n").to_pylist()]


def _sockets():
    return sum(_is_socket(path) for path in Path("/proc/self/fd").iterdir())


def _is_socket(path):
    try:
        return str(path.readlink()).startswith("socket:")
    except OSError:
        return False


@pytest.mark.parametrize("local", [True, False])
def test_rows_come_by_partition_and_in_each_in_their_order_however_they_are_named(workers, reader, local):
    first, second = workers
    pieces = [first.keep(2, [5], [6, 7]), second.keep(1, [3], [4]), first.keep(0, [1, 2])]
    rows = reader.rows("one", pieces, _peers(workers, local=local), 0)
    assert _numbers(rows) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("local", [True, False])
def test_rows_in_memory_and_on_disk_are_one_piece(workers, reader, local):
    piece = workers[1].keep(0, [1], [2], [3])
    assert {segment.file for segment in piece.segments} == {0, 1}
    assert _numbers(reader.rows("one", [piece], _peers(workers, local=local), 0)) == [1, 2, 3]


@pytest.mark.parametrize("local", [True, False])
def test_rows_of_another_try_are_not_given(workers, reader, local):
    piece = workers[0].keep(0, [1])
    workers[0].pieces.begin("two", 0)
    with pytest.raises(Unavailable, match="worker 0"):
        _numbers(reader.rows("one", [piece], _peers(workers, local=local), 0))


@pytest.mark.parametrize("local", [True, False])
def test_what_a_piece_does_not_have_is_not_given(workers, reader, local):
    piece = workers[0].keep(0, [1])
    beyond = msgspec.structs.replace(piece, segments=(Segment(0, 0, 1 << 20, 8, 1, 0),))
    with pytest.raises(Unavailable, match="worker 0"):
        _numbers(reader.rows("one", [beyond], _peers(workers, local=local), 0))
    assert _numbers(reader.rows("one", [piece], _peers(workers, local=local), 0)) == [1]


@pytest.mark.parametrize("local", [True, False])
def test_a_worker_that_is_gone_is_named(workers, reader, local):
    piece, peers = workers[0].keep(0, [1]), _peers(workers, local=local)
    workers[0].close()
    with pytest.raises(Unavailable, match=r"worker 0 on 127\.0\.0\.1"):
        _numbers(reader.rows("one", [piece], peers, 0))


def _flip(store, key, at):
    """A bit of a piece changes where it is kept."""
    fds = store.files("one", key)
    for fd in fds:
        os.pwrite(fd, bytes([byte ^ 4 for byte in os.pread(fd, 1, at)]), at)
        os.close(fd)


@pytest.mark.parametrize("budget", [1 << 20, 0], ids=["memory", "disk"])
@pytest.mark.parametrize("where", ["same process", "same host", "other host"])
def test_a_bit_that_changes_where_rows_are_kept_is_found_and_named(reader, where, budget):
    worker = Keeping.as_worker(ME if where == "same process" else 0, budget)
    if where == "same process":
        reader._own = worker.pieces
    piece, peers = worker.keep(5, [1, 2, 3]), _peers([worker], local=where == "same host")
    told = f"partition 5 of op, which worker {piece.worker} keeps, are damaged: {piece.segments[0].length} bytes with checksum"
    for at in range(0, piece.segments[0].length, 7):
        _flip(worker.pieces, piece.key, at)
        with pytest.raises(Unavailable, match=told):
            list(reader.rows("one", [piece], peers, 0))
        _flip(worker.pieces, piece.key, at)
    assert _numbers(reader.rows("one", [piece], peers, 0)) == [1, 2, 3]
    worker.close()


def test_a_bit_that_changes_on_the_way_to_the_owner_is_found(reader):
    made = _stream([1, 2, 3])
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def give():
            channel = accept(listening.accept()[0], SECRET, SystemRandomness())
            channel.receive()
            data = bytearray(made.data)
            data[-30] ^= 1
            channel.send(Fetched(), [data])

        giving = threading.Thread(target=give, daemon=True)
        giving.start()
        piece = Piece(PieceKey("op", 0, "a"), 0, (Segment(0, 0, 0, made.data.size, made.rows, made.checksum),))
        with pytest.raises(Unavailable, match="partition 0 of op, which worker 0 keeps, are damaged"):
            list(reader.rows("one", [piece], {0: Peer(0, "127.0.0.1", listening.getsockname()[1])}, 0))
        giving.join()


def test_a_bit_that_changes_on_the_way_from_a_task_is_found(workers, reader):
    """Who made the rows vouches for them, not who keeps them."""
    peer, key, made = workers[0].server.peer, PieceKey("op", 0, "bridge-1"), _stream([1, 2])
    channel = connect((peer.host, peer.port), SECRET, SystemRandomness())
    data = bytearray(made.data)
    data[-30] ^= 1
    channel.send(Push("one", key, 0, made.rows, made.checksum), [data])
    channel.send(Pushed("one", key))
    kept = channel.receive()[0].segments
    channel.close()
    with pytest.raises(Unavailable, match="partition 0 of op, which worker 0 keeps, are damaged"):
        list(reader.rows("one", [Piece(key, 0, kept)], _peers(workers, local=True), 0))


def test_connections_to_workers_that_were_replaced_are_closed(reader):
    sockets = _sockets()
    for _ in range(5):
        worker = Keeping.as_worker(0)
        assert _numbers(reader.rows("one", [worker.keep(0, [1])], {0: worker.server.peer}, 0)) == [1]
        worker.close()
    wait_for("sockets to be closed", lambda: _sockets() <= sockets + 1, 10)


def _interrupted(reader, peer, waits):
    """That a read which waits for this peer ends when its try is given up."""
    piece = Piece(PieceKey("op", 0, "a"), peer.worker, (Segment(0, 0, 0, 8, 1, 0),))
    ended = threading.Event()

    def read():
        with pytest.raises(Unavailable):
            _numbers(reader.rows("one", [piece], {peer.worker: peer}, 0))
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    waits()
    reader.interrupt("another")
    assert not ended.is_set()
    reader.interrupt("one")
    assert ended.wait(3)
    with pytest.raises(Unavailable):
        _numbers(reader.rows("one", [piece], {peer.worker: peer}, 0))


def test_who_waits_for_a_worker_that_answers_nothing_can_be_interrupted(reader):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ready = []

        def hold():
            channel = accept(listening.accept()[0], SECRET, SystemRandomness())
            ready.append((channel, channel.receive()))

        holding = threading.Thread(target=hold, daemon=True)
        holding.start()
        _interrupted(reader, Peer(0, "127.0.0.1", listening.getsockname()[1]), lambda: wait_for("a request", lambda: ready))
        holding.join()
        ready[0][0].close()


def test_who_waits_for_a_worker_that_does_not_even_prove_itself_can_be_interrupted(reader):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = Peer(0, "127.0.0.1", listening.getsockname()[1])
        _interrupted(reader, peer, lambda: wait_for("a connection", lambda: reader._wait is not None))


def test_what_is_pushed_is_kept_and_of_another_try_refused(workers, reader):
    peer, key = workers[0].server.peer, PieceKey("op", 0, "bridge-1")
    channel = connect((peer.host, peer.port), SECRET, SystemRandomness())
    for numbers in ([1, 2], [3]):
        _push(channel, "one", key, numbers)
    channel.send(Pushed("one", key))
    kept, _ = channel.receive()
    assert isinstance(kept, Kept)
    assert _numbers(reader.rows("one", [Piece(key, 0, kept.segments)], _peers(workers, local=True), 0)) == [1, 2, 3]
    _push(channel, "zero", key, [9])
    channel.send(Pushed("one", key))
    assert channel.receive()[0].refused
    channel.close()


def test_what_one_attempt_pushed_is_not_read_for_another(workers, reader):
    peer = workers[0].server.peer
    kept = {}
    for attempt, numbers in (("bridge-1", [1, 2]), ("bridge-2", [1, 2, 3])):
        channel, key = connect((peer.host, peer.port), SECRET, SystemRandomness()), PieceKey("op", 0, attempt)
        _push(channel, "one", key, numbers)
        channel.send(Pushed("one", key))
        kept[attempt] = Piece(key, 0, channel.receive()[0].segments)
        channel.close()
    assert _numbers(reader.rows("one", [kept["bridge-2"]], _peers(workers, local=True), 0)) == [1, 2, 3]


def test_threads_and_sockets_end_with_the_server():
    threads, sockets = threading.active_count(), _sockets()
    worker = Keeping.as_worker(0)
    peer = worker.server.peer
    channels = [connect(address, SECRET, SystemRandomness()) for address in ((peer.host, peer.port), peer.local)]
    worker.close()
    for channel in channels:
        channel.close()
    wait_for("threads to end", lambda: threading.active_count() <= threads, 10)
    wait_for("sockets to be closed", lambda: _sockets() <= sockets, 10)
