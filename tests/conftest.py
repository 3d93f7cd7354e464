"""What tests of all folders share."""

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from floodplain.bench.harness.ports import free_ports
from floodplain.bench.harness.s3_server import S3Server, seaweedfs
from floodplain.errors import BadInput
from tests import engines, groups
from tests.java_archive import java_options
from tests.kafka_broker import Unfetchable, broker
from tests.spark_session import local_spark

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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """SeaweedFS, for the whole session; tests keep apart by using a path of their own."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(seaweedfs())
        except BadInput as reason:
            _skip(str(reason))
        yield server


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
