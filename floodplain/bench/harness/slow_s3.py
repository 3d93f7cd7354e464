"""An S3 server that answers as late as one in a cloud, and tells what it was asked for."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.error import URLError
from urllib.request import urlopen

from floodplain.bench.harness import slow_proxy
from floodplain.bench.harness.ports import free_ports
from floodplain.bench.harness.s3_server import S3Server
from floodplain.clock import Clock
from floodplain.errors import Unavailable
from floodplain.tier_use import TierUse

START_S = 20.0
_POLL_S = 0.02


class SlowS3:
    """``server``: what is behind it, to be asked without waiting and without being counted. ``slow``: through the proxy."""

    def __init__(self, server: S3Server, slow: S3Server) -> None:
        self.server, self.slow = server, slow

    def requests(self) -> TierUse:
        """What came through the proxy so far."""
        with urlopen(self.slow.endpoint + slow_proxy.COUNTS.decode(), timeout=START_S) as answer:
            return TierUse(**json.load(answer))


@contextmanager
def slowed(server: S3Server, delay_ms: float, clock: Clock) -> Iterator[SlowS3]:
    """The server behind a proxy that makes each request wait. It runs as long as the block."""
    (port,) = free_ports(1)
    server_port = server.endpoint.rpartition(":")[2]
    # By its file: as a module it would import all of the package first.
    process = subprocess.Popen([sys.executable, "-I", slow_proxy.__file__, str(port), server_port, str(delay_ms)])
    try:
        slow = SlowS3(server, replace(server, endpoint=f"http://127.0.0.1:{port}"))
        _wait(slow, process, clock)
        yield slow
    finally:
        process.kill()
        process.wait()


def _wait(slow: SlowS3, process: subprocess.Popen[bytes], clock: Clock) -> None:
    deadline_s = clock.monotonic_s() + START_S
    while True:
        try:
            slow.requests()
            return
        except (URLError, ConnectionError) as error:
            if process.poll() is not None or clock.monotonic_s() > deadline_s:
                raise Unavailable(f"the proxy in front of {slow.server.endpoint} does not answer: {error}") from error
            clock.sleep_s(_POLL_S)
