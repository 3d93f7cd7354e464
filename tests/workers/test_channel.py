import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from floodplain.clock import SeededRandomness
from floodplain.errors import BadInput
from floodplain.workers.channel import (
    MOST_DATA_BYTES,
    MOST_MESSAGE_BYTES,
    Channel,
    Credentials,
    Disconnected,
    _head,
    accept,
    connect,
)
from floodplain.workers.messages import Abandon, Beat, Done, End, encoded
from tests.workers.certificates import certificates

SECRET = Credentials(b"s" * 32)
OTHER = Credentials(b"o" * 32)


def _both(server: Credentials, client: Credentials):
    """What each side's handshake comes to: a channel, or the error."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(lambda: accept(listening.accept()[0], server, SeededRandomness(1)))
        try:
            mine = connect(listening.getsockname(), client, SeededRandomness(2))
        except Disconnected as error:
            mine = error
        return accepting.exception() or accepting.result(), mine


def _close(*channels):
    for channel in channels:
        channel.close()


@pytest.fixture
def pair():
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_messages_and_bytes_go_both_ways():
    server, client = _both(SECRET, SECRET)
    client.send(Abandon("one"), [b"some", memoryview(b" bytes")])
    server.send(End())
    message, data = server.receive()
    assert (message, bytes(data)) == (Abandon("one"), b"some bytes")
    assert client.receive()[0] == End()
    _close(server, client)


def test_a_client_that_does_not_know_the_secret_is_refused():
    server, client = _both(SECRET, OTHER)
    assert isinstance(server, Disconnected)
    assert isinstance(client, Disconnected)
    assert "does not know the secret" in str(server)


def test_a_server_that_does_not_know_the_secret_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def pretend():
            connection, _ = listening.accept()
            connection.sendall(b"c" * 32)
            assert len(connection.recv(64, socket.MSG_WAITALL)) == 64
            connection.sendall(b"p" * 32)
            connection.close()

        pretending = pool.submit(pretend)
        with pytest.raises(Disconnected, match="does not know the secret"):
            connect(listening.getsockname(), SECRET, SeededRandomness(2))
        pretending.result()


def test_a_recorded_handshake_cannot_be_replayed():
    randomness = SeededRandomness(1)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(2) as pool:
        with socket.create_server(("127.0.0.1", 0)) as between:
            first = pool.submit(lambda: accept(listening.accept()[0], SECRET, randomness))
            client = pool.submit(connect, between.getsockname(), SECRET, SeededRandomness(2))
            near, _ = between.accept()
            far = socket.create_connection(listening.getsockname())
            near.sendall(far.recv(32, socket.MSG_WAITALL))
            recorded = near.recv(64, socket.MSG_WAITALL)
            far.sendall(recorded)
            near.sendall(far.recv(32, socket.MSG_WAITALL))
            _close(first.result(), client.result(), near, far)
        again = pool.submit(lambda: accept(listening.accept()[0], SECRET, randomness))
        thief = socket.create_connection(listening.getsockname())
        thief.sendall(recorded)
        with pytest.raises(Disconnected, match="does not know the secret"):
            again.result()
        thief.close()


@pytest.mark.parametrize(
    "frame",
    [
        _head(b"\xc1" * 5) + b"\xc1" * 5,
        _head(b"\x81\xa4type") + b"\x81\xa4type",
        _head(b""),
        struct.pack(">IQQ", MOST_MESSAGE_BYTES + 1, 0, 0),
        _head(encoded(End()), MOST_DATA_BYTES + 1) + encoded(End()),
        _head(encoded(End()), (1 << 64) - 1) + encoded(End()),
        b"GET / HTTP/1.1\r\n\r\n",
        _head(b"abcde") + b"ab",
        b"",
    ],
)
def test_a_frame_that_is_malformed_or_cut_ends_the_connection(pair, frame):
    channel, raw = pair
    raw.sendall(frame)
    raw.shutdown(socket.SHUT_WR)
    with pytest.raises(Disconnected):
        channel.receive()


def test_a_message_of_which_any_bit_was_changed_on_its_way_is_not_read(pair):
    channel, raw = pair
    body = encoded(Abandon("nonce-1"))
    for bit in range(len(body) * 8):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        raw.sendall(_head(body) + damaged)
        with pytest.raises(Disconnected, match=f"a message of {len(body)} bytes was damaged"):
            channel.receive()
    raw.sendall(_head(body) + body)
    assert channel.receive()[0] == Abandon("nonce-1")


def test_a_message_that_no_worker_takes_is_refused_where_it_is_sent(pair):
    channel, raw = pair
    with pytest.raises(BadInput, match="broadcast rows"):
        channel.send(Done(1, bytes(MOST_MESSAGE_BYTES)))
    channel.send(End())
    assert Channel(raw).receive()[0] == End()


def test_an_offer_never_waits_and_closing_frees_who_does(pair):
    channel, raw = pair
    failures = []

    def fill():
        with pytest.raises(Disconnected) as failure:
            channel.send(End(), [bytes(1 << 24)])
        failures.append(failure)

    thread = threading.Thread(target=fill)
    thread.start()
    assert raw.recv(1) == b"\0"  # it has begun, and nobody reads the rest
    assert not channel.offer(Beat())
    channel.close()
    thread.join(10)
    assert len(failures) == 1


@pytest.fixture(scope="module", name="certificates")
def certificates_of_two_authorities(tmp_path_factory):
    return [certificates(tmp_path_factory.mktemp(name)) for name in ("ours", "theirs")]


def test_many_threads_use_one_tls_connection_both_ways(certificates):
    server, client = _both(Credentials(SECRET.secret, certificates[0]), Credentials(SECRET.secret, certificates[0]))
    count, sizes = 300, (0, 1, 1000, 200_000)

    def send(channel, sender):
        for number in range(count):
            channel.send(Done(number, bytes([sender])), [bytes([number % 251]) * sizes[number % len(sizes)]])

    def receive(channel):
        got = {}
        for _ in range(2 * count):
            message, data = channel.receive()
            assert bytes(data) == bytes([message.id % 251]) * sizes[message.id % len(sizes)]
            got.setdefault(message.report, []).append(message.id)
        return got

    with ThreadPoolExecutor(6) as pool:
        reading = [pool.submit(receive, channel) for channel in (server, client)]
        writing = [pool.submit(send, channel, sender) for channel in (server, client) for sender in (1, 2)]
        for done in writing:
            done.result(60)
        for done in reading:
            assert done.result(60) == {b"\1": list(range(count)), b"\2": list(range(count))}
    _close(server, client)


def test_closing_a_tls_connection_frees_who_reads_it(certificates):
    server, client = _both(Credentials(SECRET.secret, certificates[0]), Credentials(SECRET.secret, certificates[0]))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(client.receive)
        client.close()
        with pytest.raises(Disconnected):
            reading.result(10)
    server.close()


def test_a_certificate_of_another_authority_is_refused(certificates):
    ours, theirs = (Credentials(SECRET.secret, each) for each in certificates)
    server, client = _both(ours, theirs)
    assert isinstance(server, Disconnected)
    if not isinstance(client, Disconnected):  # TLS 1.3: the client finds out when it reads
        with pytest.raises(Disconnected):
            client.receive()


def test_clear_text_is_refused_where_there_are_certificates(certificates):
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(
            lambda: accept(listening.accept()[0], Credentials(SECRET.secret, certificates[0]), SeededRandomness(1))
        )
        with socket.create_connection(listening.getsockname()) as client:
            client.sendall(b"p" * 64)
            with pytest.raises(Disconnected):
                accepting.result(10)
