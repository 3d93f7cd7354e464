"""Memory follows the limit, whatever the rows are and however well they compress."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.settings import StoreSettings
from floodplain.store.rows.definition import list_table, value_table
from floodplain.store.store import Store
from floodplain.versions.records.schema import TableSchema
from tests.short_form import some

LIMIT = 1 << 20
ROWS_BYTES = 48 << 20
MOST = 8 * LIMIT
"""A window of rows is decoded, concatenated, sorted and resolved, and a chunk of each run is cut through."""
SETTINGS = StoreSettings(
    key_groups=2, sync=False, compression="zstd", chunk_bytes=1 << 17, window_bytes=LIMIT, memory_bytes=LIMIT, inline_bytes=0
)

KEY = {"k": pa.int64()}
NESTED = pa.list_(pa.list_(pa.int64()))
TABLES: dict[str, TableSchema] = {
    "strings": value_table("t", KEY, {"v": pa.string()}),
    "dictionary": value_table("t", KEY, {"v": pa.string()}),
    "nested": value_table("t", KEY, {"v": NESTED}),
    "wide": value_table("t", KEY, {f"w{n}": pa.binary(64) for n in range(32)}),
    "one_key": list_table("t", KEY, {"v": pa.string()}, position="s"),
}


def rows_of(shape: str, epoch: int) -> pa.Table:
    """Half of ``ROWS_BYTES``; a few kilobytes for each row, which hardly take any when compressed."""
    count = ROWS_BYTES // 2 // 2048
    keys: dict[str, Any] = {"k": np.arange(count) + epoch * count // 2}
    match shape:
        case "strings":
            return pa.table({**keys, "v": ["x" * 2048] * count})
        case "dictionary":
            return pa.table({**keys, "v": pa.DictionaryArray.from_arrays(np.arange(count) % 3, ["x" * 2048, "y" * 2048, ""])})
        case "nested":
            inner = pa.ListArray.from_arrays(np.arange(count * 16 + 1) * 16, pa.array(np.zeros(count * 256, np.int64)))
            return pa.table({**keys, "v": pa.ListArray.from_arrays(np.arange(count + 1) * 16, inner)})
        case "wide":
            column = pa.array([bytes(64)] * count, pa.binary(64))
            return pa.table({**keys, **{f"w{n}": column for n in range(32)}})
        case _:
            return pa.table({"k": [1] * count, "s": keys["k"], "v": ["x" * 2048] * count})


READ = """
import sys
import pyarrow as pa
from tests.store.test_limits_memory import read
from tests.short_form import some
read(sys.argv[1], int(sys.argv[2]))
print(pa.default_memory_pool().max_memory())
"""


def read(location: str, window_bytes: int) -> None:
    """All that goes through a table, and a lookup of few keys that are all over it."""
    store = Store.open(location, settings=replace(SETTINGS, window_bytes=window_bytes))
    table = store.snapshot().table("t")
    count = sum(len(rows) for rows in table.scan())
    assert table.count() == count == ROWS_BYTES // 2048 * 3 // 4
    changed = sum(len(change.added) + len(change.after) for change in store.diff("t", 1, 2))
    assert changed >= count // 3
    keys = pa.table({"k": range(0, ROWS_BYTES // 2048, 97)})
    if table.schema.shape == "value":
        assert table.multi_get(keys, columns=[table.schema.values[0].name]).found.any()
        assert table.multi_get(keys).found.any()
    assert store.verify().good
    list(store.compact(full=True, step_bytes=1 << 40))
    assert store.snapshot().table("t").count() == count


def peak_bytes(location: Path, window_bytes: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(location), str(window_bytes)], check=True, capture_output=True, text=True, timeout=300
    )
    return int(done.stdout)


@pytest.mark.parametrize("shape", some(TABLES, "strings", "one_key"))
def test_memory_follows_the_limit(shape: str, tmp_path: Path) -> None:
    """And without it, as a control, memory follows the table."""
    store = Store.open(tmp_path, create=True, settings=SETTINGS)
    with store.writer("test") as writer:
        writer.define(TABLES[shape])
        for epoch in range(2):
            writer.put("t", rows_of(shape, epoch))
    stored_bytes = sum(run.length for run in store.head.runs["t"])
    store.close()
    assert stored_bytes < ROWS_BYTES // 20
    assert peak_bytes(tmp_path, LIMIT) < MOST
    if shape == "strings":
        assert peak_bytes(tmp_path, 1 << 30) > 2 * MOST
