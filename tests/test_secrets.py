"""What gives access is nowhere to be read: not in messages and their causes, reprs, plans and logs, nor in what is written."""

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import floodplain as fp
from floodplain.cli.main import app
from floodplain.errors import FloodplainError
from floodplain.pipeline.stream import StartOptions
from floodplain.runtime.compatibility.migration import StartChanges
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.task_store import Work
from floodplain.settings import RetrySettings
from floodplain.sinks.registry import open_sink
from floodplain.store.store import Store
from floodplain.tiers.redact import without_credentials, without_values

SECRET = "hunter2Secret"
ONCE = fp.StoreSettings(retry=RetrySettings(attempts=1, timeout_ms=300))
NOBODY = {"endpoint": "http://127.0.0.1:1", "allow_http": "true", "region": "nowhere"}
URLS = [
    f"{scheme}://{place}"
    for scheme in ("s3", "gs", "az", "http", "file", "memory", "hdfs")
    for place in (f"user:{SECRET}@bucket/x", f"{SECRET}@bucket/x", f"bucket/x?sig={SECRET}", f"u:p@{SECRET}@b/x", f"b/x#{SECRET}")
]
OPTIONS = {
    "wrong endpoint": ("s3://b/x", {**NOBODY, "access_key_id": "me", "secret_access_key": SECRET}),
    "endpoint with a password": ("s3://b/x", {"endpoint": f"http://me:{SECRET}@127.0.0.1:1", "allow_http": "true"}),
    "no option": ("s3://b/x", {"nonsense": SECRET}),
    "no value": ("s3://b/x", {"aws_conditional_put": SECRET}),
    "no number": ("s3://b/x", {"pool_max_idle_per_host": SECRET}),
    "proxy": ("s3://b/x", {"proxy_url": f"http://me:{SECRET}@:::"}),
    "google key": ("gs://b/x", {"service_account_key": SECRET}),
    "azure key": ("az://b/x", {"account_name": "me", "access_key": SECRET}),
    "azure signature": ("az://b/x", {"account_name": "me", "sas_key": f"sig={SECRET}", **NOBODY}),
}
SINKS: dict[str, tuple[str, dict[str, Any]]] = {
    "kafka": ("kafka", {"servers": "127.0.0.1:1", "topic": "x", "config": {"sasl.password": SECRET, "sasl.mechanism": "none"}}),
    "kafka taken": ("kafka", {"servers": "h", "topic": "x", "config": {"sasl.password": SECRET, "transactional.id": "x"}}),
    "kafka option": ("kafka", {"servers": "h", "topic": "x", "password": SECRET}),
    "parquet": ("parquet", {"path": "s3://b/x", "storage_options": {"aws_conditional_put": "etag", "nonsense": SECRET}}),
    "delta": ("delta", {"path": "s3://b/x", "storage_options": {**NOBODY, "secret_access_key": SECRET}}),
}


def told(act: Callable[[], object]) -> str:
    """All that there is to read of what came of it, with causes."""
    try:
        found = act()
    except FloodplainError as error:
        return "".join(traceback.format_exception(error)) + repr(error)
    return f"{found!r} {found} {getattr(found, 'target', '')}"


def shown(text: str) -> list[str]:
    """Lines with the secret, but for source lines of a traceback, which hold no values."""
    return [line for line in text.splitlines() if SECRET in line]


@pytest.mark.parametrize("url", URLS)
def test_urls(url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with caplog.at_level(logging.DEBUG):
        access = NOBODY if url.startswith("s3") else {}
        assert not shown(told(lambda: fp.open(url, options=access, settings=ONCE)))
        for format_ in ("parquet", "delta"):
            assert not shown(told(lambda format_=format_: open_sink(format_, {"path": url})))
        shell = CliRunner().invoke(app, ["inspect", url]) if url.startswith(("http", "file", "memory", "hdfs")) else None
        assert shell is None or not shown(shell.output)
    assert not shown(caplog.text)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_stores(name: str, caplog: pytest.LogCaptureFixture) -> None:
    url, options = OPTIONS[name]
    with caplog.at_level(logging.DEBUG):
        assert not shown(told(lambda: fp.open(url, options=options, settings=ONCE)))
    assert not shown(caplog.text)


@pytest.mark.parametrize("name", SINKS)
def test_options_of_sinks(name: str) -> None:
    format_, options = SINKS[name]
    assert not shown(told(lambda: open_sink(format_, options)))


def test_what_is_handed_around_does_not_show_them(tmp_path: Path) -> None:
    url, access = f"s3://me:{SECRET}@b/x", {"secret_access_key": SECRET}
    store = Store.open(tmp_path, create=True)
    with store.writer("me") as writer:
        handed = [
            StateLocation(store, writer, url, store.history.settings, access),
            Work(url, store.history.settings, access, b""),
            StartOptions(url, 1, None, False, StartChanges(), None, False, store.history.settings, access),
        ]
        assert not shown(repr(handed))


def test_plans_logs_and_all_that_is_written_hold_none(caplog: pytest.LogCaptureFixture) -> None:
    """Pipelines in the kit, one with a sink that fails once the epoch is committed."""

    def build(stream: Any) -> Any:
        counted = stream.key_by("user").agg(n=fp.count())
        config = {"sasl.password": SECRET}
        kafka = counted.write("kafka", name="k", servers="127.0.0.1:1", topic="x", config=config)
        return kafka.also(counted.write("parquet", name="p", path=f"s3://me:{SECRET}@b/x"))

    with caplog.at_level(logging.DEBUG):
        kit = fp.PipelineKit(build, rows="user string")
        kit.epoch([{"user": "a"}])
        kit.sinks["p"].publish = _fail
        text = told(lambda: kit.epoch([{"user": "a"}]))
    assert "the place is full" in text
    plans = [kit.explain(format_) for format_ in ("text", "mermaid", "svg")]
    assert not shown("\n".join([text, caplog.text, repr(kit), *plans]))
    blobs = kit.store.history.blobs
    written = {info.name: bytes(blobs.get(info.name)) for info in blobs.list("")}
    assert written
    assert not [name for name, data in written.items() if SECRET.encode() in data]


def _fail(*_: object) -> None:
    raise FloodplainError("the place is full")


def test_what_is_left_out_and_what_is_not() -> None:
    assert without_credentials("/srv/a?b#c@d") == "/srv/a?b#c@d"
    assert without_credentials("s3://bucket/a@b") == "s3://bucket/a@b"
    assert without_credentials("s3://u:p@bucket/a?x=1#y") == "s3://bucket/a"
    assert without_values("cannot parse 'abcdef' as true", {"a": "true", "b": "abcdef"}) == "cannot parse '…' as true"
