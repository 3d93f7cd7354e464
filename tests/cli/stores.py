"""Small stores for the commands to work on, and ways to run and to damage."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner, Result

from floodplain.cli.main import app
from floodplain.settings import StoreSettings
from floodplain.store.rows.definition import Column, map_table, value_table
from floodplain.store.store import Store

SETTINGS = StoreSettings(key_groups=8, sync=False)
COUNTS = value_table("counts", {"user": pa.string()}, {"n": Column(pa.int64(), merge="sum", default=0)})
PAGES = map_table("pages", {"user": pa.string()}, {"page": pa.string()}, {"n": Column(pa.int64(), ttl_ms=3_600_000)})
USERS = [f"u{i}" for i in range(20)]


def rows(users: list[str] = USERS) -> pa.Table:
    return pa.table({"user": users, "n": pa.array([1] * len(users), pa.int64())})


def add_epochs(path: Path, count: int, owner: str = "test") -> None:
    store = Store.open(path, create=True, settings=SETTINGS)
    with store.writer(owner) as writer:
        writer.define(COUNTS)
        for _ in range(count):
            epoch = writer.epoch()
            epoch.merge("counts", rows())
            epoch.commit()
    store.close()


def counts(path: Path) -> dict[str, int]:
    store = Store.open(path)
    found = store.snapshot().table("counts").to_arrow()
    store.close()
    return dict(zip(found["user"].to_pylist(), found["n"].to_pylist(), strict=True))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: object, code: int = 0) -> Any:
    """The one JSON object on standard output; that it is the only thing there is part of the contract."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def newest(folder: Path) -> Path:
    return max(folder.iterdir())
