"""A program: an HTTP proxy that makes each request wait, as a network and a store far away would, and counts requests by kind.

``python slow_proxy.py <port to listen at> <port of the server> <milliseconds>``. It changes no byte, so signatures stay valid.
Requests of several connections wait at the same time. ``GET /-/requests`` gets the counts as JSON.
"""

import asyncio
import json
import sys
from collections import Counter

HEAD_BYTES = 1 << 20
"""The longest head of a message, and how much of a body is in memory at a time."""
COUNTS = b"/-/requests"
_NO_BODY = (b"204", b"304")


class Head:
    """The first lines of a message."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        lines = data.split(b"\r\n")
        self.first = lines[0].split(b" ", 2)
        self._fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}

    @property
    def length(self) -> int:
        return int(self._fields.get(b"content-length", b"0"))

    @property
    def chunked(self) -> bool:
        return self._fields.get(b"transfer-encoding", b"").lower() == b"chunked"

    @property
    def closes(self) -> bool:
        return self._fields.get(b"connection", b"").lower() == b"close"


def kind(method: bytes, target: bytes) -> str:
    """What is paid for, named as in ``TierUse``."""
    if method == b"GET":
        return "lists" if b"list-type=" in target else "gets"
    return {b"PUT": "puts", b"HEAD": "heads", b"POST": "deletes", b"DELETE": "deletes"}[method]


class Proxy:
    def __init__(self, server_port: int, delay_s: float) -> None:
        self._server_port, self._delay_s = server_port, delay_s
        self._counts: Counter[str] = Counter()

    async def serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """One connection, request by request."""
        try:
            server, requests = await asyncio.open_connection("127.0.0.1", self._server_port, limit=HEAD_BYTES)
            try:
                while await self._exchange(client, answers, server, requests):
                    pass
            finally:
                requests.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # one side has closed the connection: between two requests that is its usual end
        finally:
            answers.close()

    async def _exchange(
        self,
        client: asyncio.StreamReader,
        answers: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; whether the connection stays open."""
        request = Head(await client.readuntil(b"\r\n\r\n"))
        method, target = request.first[:2]
        if target == COUNTS:
            body = json.dumps(self._counts).encode()
            answers.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await answers.drain()
            return False
        self._counts[kind(method, target)] += 1
        await asyncio.sleep(self._delay_s)
        await _forward(request, client, requests)
        answer = Head(await server.readuntil(b"\r\n\r\n"))
        await _forward(answer, server, answers, empty=method == b"HEAD" or answer.first[1] in _NO_BODY)
        return not (request.closes or answer.closes)


async def _forward(head: Head, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, empty: bool = False) -> None:
    target.write(head.data)
    if not empty and head.chunked:
        while size := await _chunk(source, target):
            await _copy(source, target, size + 2)
        target.write(await source.readuntil(b"\r\n"))
    elif not empty:
        await _copy(source, target, head.length)
    await target.drain()


async def _chunk(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> int:
    line = await source.readuntil(b"\r\n")
    target.write(line)
    return int(line.split(b";")[0], 16)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, size: int) -> None:
    while size:
        piece = await source.read(min(size, HEAD_BYTES))
        if not piece:
            raise ConnectionResetError
        size -= len(piece)
        target.write(piece)
        await target.drain()


async def _main(port: int, server_port: int, delay_ms: float) -> None:
    proxy = Proxy(server_port, delay_ms / 1000)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=HEAD_BYTES)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
