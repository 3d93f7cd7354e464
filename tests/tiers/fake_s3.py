"""Just enough S3 to misbehave on purpose."""

import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of the right thing."""

    status: int | None
    """None: the connection is dropped without an answer."""
    stores: bool = False
    """Whether a PUT takes effect all the same."""
    hangs: bool = False
    """Whether the answer waits until the server is stopped."""
    code: str = "Fault"
    method: str = "PUT"


@dataclass
class FakeS3:
    """State of one server, shared by its handler threads."""

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    requests: list[tuple[str, str]] = field(default_factory=list)
    heeds_if_none_match: bool = True
    meet: threading.Barrier | None = None
    """Set: conditional PUTs look, meet once, and then store, as a server does that looks and stores in two steps."""
    forgets: bool = False
    """PUTs are answered with success and lost."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    options: dict[str, str] = field(default_factory=dict)

    def look_then_store(self, racers: int) -> None:
        self.meet = threading.Barrier(racers, action=lambda: setattr(self, "meet", None))

    def next_fault(self, method: str) -> Fault | None:
        with self.lock:
            if self.faults and self.faults[0].method == method:
                return self.faults.popleft()
        return None

    def asked(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.requests)

    def store(self, key: str, data: bytes, conditional: bool) -> bool:
        if conditional and self.heeds_if_none_match and self.meet:
            meet, taken = self.meet, key in self.objects
            meet.wait()
            if not taken:
                self.objects[key] = data
            return not taken
        with self.lock:
            if conditional and self.heeds_if_none_match and key in self.objects:
                return False
            if not self.forgets:
                self.objects[key] = data
            return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeS3

    def do_PUT(self) -> None:
        data = self._body()
        fault = self._begin()
        conditional = self.headers.get("If-None-Match") == "*"
        if fault:
            if fault.stores:
                self.fake.store(self._key(), data, conditional)
            self._misbehave(fault)
        elif self.fake.store(self._key(), data, conditional):
            self._answer(200, headers={"ETag": '"x"'})
        else:
            self._error(412, "PreconditionFailed")

    def do_GET(self) -> None:
        fault = self._begin()
        if fault:
            self._misbehave(fault)
        elif "list-type" in self._query():
            self._list()
        else:
            self._read()

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        data = self._body().decode()
        fault = self._begin()
        if fault:
            self._misbehave(fault)
            return
        keys = re.findall(r"<Key>(.*?)</Key>", data)
        for key in keys:
            self.fake.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def log_message(self, *args: object) -> None:
        pass

    def _begin(self) -> Fault | None:
        with self.fake.lock:
            self.fake.requests.append((self.command, self.path))
        return self.fake.next_fault(self.command)

    def _misbehave(self, fault: Fault) -> None:
        if fault.hangs:
            self.fake.stopped.wait()
        if fault.status is None or fault.hangs:
            self.close_connection = True
            self.connection.close()
        else:
            self._error(fault.status, fault.code)

    def _read(self) -> None:
        data = self.fake.objects.get(self._key())
        if data is None:
            self._error(404, "NoSuchKey")
            return
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if not asked:
            self._answer(200, data, headers)
            return
        start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if start >= len(data):
            self._error(416, "InvalidRange")
            return
        self._answer(206, data[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(data)}"})

    def _list(self) -> None:
        prefix = self._query().get("prefix", [""])[0]
        after = self._query().get("start-after", [""])[0]
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag>"
            f"<Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self.fake.objects.items())
            if key.startswith(prefix) and key > after
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[FakeS3]:
    fake = FakeS3()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    fake.options = {
        "endpoint": f"http://127.0.0.1:{server.server_address[1]}",
        "access_key_id": "test",
        "secret_access_key": "test",
        "region": "us-east-1",
        "allow_http": "true",
    }
    try:
        yield fake
    finally:
        fake.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
