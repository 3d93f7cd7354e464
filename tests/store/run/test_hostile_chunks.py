"""Chunks with valid checksums that Arrow should not be trusted with: false offsets, flipped bits, bombs."""

import random
import struct
import subprocess
import sys

import pyarrow as pa
import pytest

from floodplain.errors import BadInput, Corrupt
from floodplain.store.rows.definition import value_table
from floodplain.store.run.validation import MOST_CHUNK_BYTES, unpacked_bytes
from floodplain.store.run.writer import BuiltRun
from floodplain.store.store import Store
from tests.store import forge

NESTED = pa.list_(pa.struct([("a", pa.string()), ("b", pa.map_(pa.string(), pa.list_(pa.int32())))]))
TABLE = value_table("t", {"user": pa.string()}, {"s": pa.string(), "l": pa.large_binary(), "deep": NESTED, "flag": pa.bool_()})
ROWS = 20


def a_run(compression: str | None = None) -> tuple[Store, BuiltRun]:
    store = forge.with_table(TABLE)
    deep = [[{"a": str(n), "b": [("k", [n, None])]}, None] if n % 3 else None for n in range(ROWS)]
    columns = {"user": [f"u{n}" for n in range(ROWS)], "s": ["abc" * n for n in range(ROWS)], "l": [b"x"] * ROWS}
    rows = pa.table({**columns, "deep": pa.array(deep, NESTED), "flag": [None, True] * (ROWS // 2)})
    return store, forge.built(store, "t", rows, compression=compression)


def read(store: Store) -> pa.Table:
    return forge.reopen(store.history.blobs).snapshot().table("t").to_arrow()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_any_bits_of_a_chunk_may_be_flipped(compression: str | None) -> None:
    """Values may change; nothing may crash, and no error but ours comes out."""
    rng = random.Random(5)
    _, run = a_run(compression)
    good = forge.chunk_of(run)
    refused = 0
    for _ in range(100):
        store, run = a_run(compression)
        damaged = bytearray(good)
        for _ in range(rng.choice((1, 1, 4))):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        forge.commit_runs(store, forge.with_chunk(run, bytes(damaged)))
        try:
            read(store)
        except Corrupt:
            refused += 1
    assert refused > 30


def offsets_of(chunk: bytes, values: list[int]) -> int:
    """Where in an uncompressed chunk these 32-bit offsets stand."""
    return chunk.index(struct.pack(f"<{len(values)}i", *values))


@pytest.mark.parametrize("value", [-1, 2**31 - 1, 10**6])
def test_string_offsets_outside(value: int) -> None:
    store, run = a_run()
    chunk = bytearray(forge.chunk_of(run))
    lengths = [len(text.as_py()) for text in forge.physical_of(run).column("f2")]
    offsets = [sum(lengths[:n]) for n in range(ROWS + 1)]
    struct.pack_into("<i", chunk, offsets_of(bytes(chunk), offsets) + 4 * 7, value)
    forge.commit_runs(store, forge.with_chunk(run, bytes(chunk)))
    with pytest.raises(Corrupt, match="Arrow's format"):
        read(store)


def test_a_batch_of_another_schema() -> None:
    store, run = a_run()
    forge.commit_runs(store, forge.with_chunk(run, forge.message_of(pa.table({"x": [1.5] * ROWS}))))
    with pytest.raises(Corrupt):
        read(store)


def test_a_message_of_another_kind() -> None:
    store, run = a_run()
    forge.commit_runs(store, forge.with_chunk(run, pa.schema([("x", pa.int8())]).serialize().to_pybytes()))
    with pytest.raises(Corrupt):
        read(store)


def test_what_a_chunk_claims_is_what_it_unpacks_to() -> None:
    rows = pa.table({"a": range(1000), "s": ["abc" * 9] * 1000})
    for compression in ("lz4", "zstd"):
        assert rows.nbytes <= unpacked_bytes(pa.py_buffer(forge.message_of(rows, compression))) <= rows.nbytes + 64
    assert unpacked_bytes(pa.py_buffer(forge.message_of(rows))) == 0


def claims(chunk: bytes) -> list[int]:
    """Where the claimed sizes of compressed buffers of 160 bytes or more stand: ours are of 8-byte numbers."""
    sizes = {struct.pack("<q", size) for size in (8 * ROWS,)}
    return [at for at in range(0, len(chunk) - 8, 8) if chunk[at : at + 8] in sizes]


@pytest.mark.parametrize("size", [2**40, 2**62, 2**63 - 1, MOST_CHUNK_BYTES + 1])
def test_a_false_claim_reserves_nothing(size: int) -> None:
    store, run = a_run("zstd")
    chunk = bytearray(forge.chunk_of(run))
    struct.pack_into("<q", chunk, claims(bytes(chunk))[0], size)
    forge.commit_runs(store, forge.with_chunk(run, bytes(chunk)))
    with pytest.raises(Corrupt, match="when unpacked"):
        read(store)


def test_a_true_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = a_run("zstd")
    rows = forge.physical_of(run)
    zeros = pa.array([bytes(1 << 20)] * 16 + [b""] * (ROWS - 16), pa.large_binary())
    message = forge.message_of(rows.set_column(rows.schema.get_field_index("f3"), "f3", zeros), "zstd")
    assert len(message) < 1 << 16
    forge.commit_runs(store, forge.with_chunk(run, message))
    assert len(read(store)) == ROWS
    monkeypatch.setattr("floodplain.store.run.validation.MOST_CHUNK_BYTES", 1 << 23)
    with pytest.raises(Corrupt, match="when unpacked"):
        read(store)


def test_what_readers_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodplain.store.run.validation.MOST_CHUNK_BYTES", 1 << 20)
    store = forge.with_table(TABLE, forge.objects())
    with pytest.raises(BadInput, match="rows that lie together"):
        forge.write(store, "t", ("put", {"user": ["a"], "l": pa.array([bytes(1 << 20)], pa.large_binary())}))
    assert store.head.epoch == 0
    forge.write(store, "t", ("put", {"user": ["a"], "l": pa.array([bytes(1 << 19)], pa.large_binary())}))
    assert len(read(store)) == 1


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from tests.store.run import test_hostile_chunks as tests
from tests.store import forge
from floodplain.errors import BadInput, Corrupt
import struct
for size in (2**40, 2**62, 2**63 - 1, -2, -(2**62)):
    store, run = tests.a_run("zstd")
    chunk = bytearray(forge.chunk_of(run))
    struct.pack_into("<q", chunk, tests.claims(bytes(chunk))[0], size)
    forge.commit_runs(store, forge.with_chunk(run, bytes(chunk)))
    try:
        tests.read(store)
        sys.exit("accepted")
    except Corrupt:
        pass
"""


def test_bombs_in_a_process_with_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
