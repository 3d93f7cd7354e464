"""The gigabytes themselves: rows that no single Arrow array holds, through everything that touches a table."""

import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from floodplain.settings import StoreSettings
from floodplain.store.rows.definition import map_table, value_table
from floodplain.store.store import Store
from floodplain.versions.records.schema import TableSchema

pytestmark = pytest.mark.soak

ROWS, ROW_BYTES = 230_000, 10_000
KEY = {"k": pa.int64()}
VALUE = value_table("t", KEY, {"v": pa.string()})
MAP = map_table("t", KEY, {"s": pa.int64()}, {"v": pa.string()})
FEW_GROUPS = StoreSettings(key_groups=1, sync=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Gone at once: what pytest keeps of failed tests would be gigabytes."""
    with TemporaryDirectory() as name:
        yield Path(name)


def texts(numbers: Iterable[int], epoch: int) -> list[str]:
    return [f"{number}/{epoch}".ljust(ROW_BYTES, chr(97 + number % 26)) for number in numbers]


def row_sum(key: int, text: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{key} {text}".encode())


def digest(pieces: Iterable[pa.Table], key: str = "k") -> tuple[int, int]:
    """The number of rows, and a sum that does not depend on their order."""
    count = total = 0
    for piece in pieces:
        count += len(piece)
        for batch in piece.to_batches(max_chunksize=4096):
            for number, text in zip(batch.column(key).to_pylist(), batch.column("v").to_pylist(), strict=True):
                total = (total + row_sum(number, text)) % 2**64
    return count, total


def expected(numbers: Iterable[int], epoch_of: Iterable[int]) -> tuple[int, int]:
    count = total = 0
    for number, epoch in zip(numbers, epoch_of, strict=True):
        count, total = count + 1, (total + row_sum(number, *texts([number], epoch))) % 2**64
    return count, total


def batches(numbers: range, epoch: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(numbers), 20_000):
        part = numbers[start : start + 20_000]
        yield pa.record_batch({"k": pa.array(part, pa.int64()), "v": texts(part, epoch)})


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def test_rows_of_ten_kilobytes(folder: Path) -> None:
    many_rows(folder)
    print(f"230,000 rows of 10 KB: peak of the process {peak_gib():.1f} GiB")


def many_rows(folder: Path, count: int = ROWS) -> None:
    """Written as one delta, of 2.3 GB if there are as many as there are, and a tenth of them once more."""
    store = Store.open(folder, create=True, settings=StoreSettings(key_groups=16, sync=False))
    with store.writer("soak") as writer:
        writer.define(VALUE)
        epoch = writer.epoch()
        for batch in batches(range(count), 1):
            epoch.put("t", batch)
        epoch.commit()
        epoch = writer.epoch()
        for batch in batches(range(0, count, 10), 2):
            epoch.put("t", batch)
        epoch.commit()
    wanted = expected(range(count), (2 if number % 10 == 0 else 1 for number in range(count)))
    table = store.snapshot().table("t")
    assert digest(table.scan()) == wanted
    assert table.count() == count
    whole = table.to_arrow()
    assert whole["v"].nbytes > count * ROW_BYTES and digest([whole]) == wanted
    del whole
    assert sum(len(change.added) for change in store.diff("t", 1, 2)) == 0
    assert sum(len(change.after) for change in store.diff("t", 1, 2)) == count // 10
    found = table.multi_get(pa.table({"k": np.random.default_rng(1).permutation(count)}))
    assert digest([found.rows]) == wanted
    del found
    list(store.compact(full=True))
    assert len(store.head.runs["t"]) < 40
    assert digest(store.snapshot().table("t").scan()) == wanted
    assert store.verify().good


@pytest.mark.parametrize("schema", [VALUE, MAP], ids=["many_keys", "one_key"])
def test_a_key_group_larger_than_an_array(schema: TableSchema, folder: Path) -> None:
    one_group(schema, folder)
    print(f"a key group of 2.3 GB: peak of the process {peak_gib():.1f} GiB")


def one_group(schema: TableSchema, folder: Path, count: int = ROWS) -> None:
    """One key group, and as a map one key, in four epochs becomes one run."""
    store, quarter = Store.open(folder, create=True, settings=FEW_GROUPS), count // 4
    with store.writer("soak") as writer:
        writer.define(schema)
        for number in range(4):
            epoch = writer.epoch()
            for batch in batches(range(number * quarter, (number + 1) * quarter), number):
                if schema is MAP:
                    batch = pa.record_batch({"k": pa.array([7] * len(batch), pa.int64()), "s": batch["k"], "v": batch["v"]})
                epoch.put("t", batch)
            epoch.commit()
    wanted = expected(range(4 * quarter), (number // quarter for number in range(4 * quarter)))
    key = "s" if schema is MAP else "k"
    list(store.compact(full=True))
    (run,) = store.head.runs["t"]
    assert run.length > 4 * quarter * ROW_BYTES and run.rows == 4 * quarter
    table = store.snapshot().table("t")
    assert digest(table.scan(), key) == wanted
    if schema is MAP:
        assert digest(table.pieces(pa.table({"k": [7]})), key) == wanted
        assert digest([table.multi_get(pa.table({"k": [7]})).rows], key) == wanted
    assert store.verify().good
