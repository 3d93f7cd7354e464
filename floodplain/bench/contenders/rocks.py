"""The contender RocksDB, through rocksdict: raw bytes, its batch calls, and settings that suit it.

These made RocksDB faster here: keys sorted (in Arrow) before a multi-get or a write, numbers decoded and encoded for a whole
batch at once, no write-ahead log (a flush is its commit), no compression, a block cache larger than the state, full bloom
filters. Its compactions run in its own threads; the benchmark waits for them outside the timed part.
"""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import BlockBasedOptions, Cache, Checkpoint, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from floodplain.bench.workloads.state_updates import Kind
from floodplain.clock import Clock

NAME = "rocksdb"

_CACHE_BYTES = 1 << 30
_BUFFER_BYTES = 256 << 20
_NUMBERS = np.dtype([("n", "<i8"), ("s", "<f8")])
_SEPARATOR = "\0"


def options() -> Options:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(Cache(_CACHE_BYTES))
    table.set_format_version(5)
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.set_max_background_jobs(2)
    chosen.set_block_based_table_factory(table)
    chosen.set_write_buffer_size(_BUFFER_BYTES)
    chosen.set_compression_type(DBCompressionType.none())
    return chosen


def open_db(path: Path) -> Rdict:
    db = Rdict(str(path), options())
    write: Any = WriteOptions()
    write.disable_wal = True
    db.set_write_options(write)
    return db


def values_of(db: Rdict, keys: list[bytes]) -> list[bytes | None]:
    """Its multi-get: None where there is no such key."""
    untyped: Any = keys
    values: Any = db[untyped]
    return values


def entries(db: Rdict) -> list[tuple[bytes, bytes]]:
    """All entries, by key."""
    items: Any = db.items()
    return list(items)


class Last(msgspec.Struct, array_like=True):
    page: str
    at: int


class Profile(msgspec.Struct, array_like=True):
    visits: int
    last: Last
    tags: list[str]


class Rocks:
    """One kind of state in one database. Subclasses define how a batch becomes entries."""

    name = NAME

    def __init__(self, kind: Kind, home: Path, clock: Clock) -> None:
        self.kind = kind
        self.db = open_db(home / f"rocksdb-{kind.name}")
        self._clock = clock
        self._saved = home / f"rocksdb-{kind.name}-saved"
        self._saves = 0

    def update(self, batch: pa.Table) -> None:
        changes = WriteBatch(raw_mode=True)
        self._write(changes, batch)
        self.db.write(changes)
        self.db.flush()

    def checkpoint(self, batch: pa.Table) -> None:
        """The update, and a RocksDB checkpoint: hard links to its current files."""
        self.update(batch)
        self._saves += 1
        Checkpoint(self.db).create_checkpoint(str(self._saved) + str(self._saves))

    def point(self, keys: pa.Table) -> int:
        get, number = self.db.get, self.number
        return sum(number(value) for key in self.encoded(keys) if (value := get(key)) is not None)

    def multi_get(self, keys: pa.Table) -> int:
        column = self.key_column(keys)
        return self.total(values_of(self.db, column.take(pc.sort_indices(column)).to_pylist()))

    def scan(self, number: int = 0) -> int:  # noqa: ARG002
        return self.total(list(self.db.values()))

    def restore(self, keys: pa.Table) -> int:
        with contextlib.closing(open_db(Path(str(self._saved) + str(self._saves)))) as db:
            return self.total(values_of(db, self.encoded(keys)))

    def rows(self) -> pa.Table:
        pairs = entries(self.db)
        return self.decoded([key for key, _ in pairs], [value for _, value in pairs])

    def finish_compactions(self) -> None:
        """Waits for its compactions, untimed."""
        while any(self.db.property_int_value(f"rocksdb.{what}") for what in _BUSY):
            self._clock.sleep_s(0.005)

    def close(self) -> None:
        self.db.close()

    def encoded(self, keys: pa.Table) -> list[bytes]:
        return self.key_column(keys).to_pylist()

    def key_column(self, rows: pa.Table) -> pa.ChunkedArray:
        return rows.column("user").cast(pa.binary())

    def _sorted(self, batch: pa.Table) -> tuple[list[bytes], pa.Table]:
        """The encoded keys in order, and the other columns of the batch in the same order."""
        column = self.key_column(batch)
        order = pc.sort_indices(column)
        return column.take(order).to_pylist(), batch.drop_columns(list(self.kind.keys)).take(order)

    def number(self, value: bytes) -> int:
        """The number of one entry."""
        return int.from_bytes(value[:8], "little", signed=True)

    def total(self, values: Sequence[bytes | None]) -> int:
        """The sum of the numbers of many entries."""
        raise NotImplementedError

    def decoded(self, keys: list[bytes], values: list[bytes]) -> pa.Table:
        raise NotImplementedError

    def _write(self, changes: WriteBatch, batch: pa.Table) -> None:
        raise NotImplementedError


_BUSY = ("num-running-compactions", "compaction-pending", "num-running-flushes")


class RocksValue(Rocks):
    """User → count and sum, as sixteen bytes."""

    def _write(self, changes: WriteBatch, batch: pa.Table) -> None:
        keys, batch = self._sorted(batch)
        state = np.frombuffer(_joined(values_of(self.db, keys), bytes(_NUMBERS.itemsize)), _NUMBERS).copy()
        state["n"] += batch.column("n").to_numpy()
        state["s"] += batch.column("s").to_numpy()
        _put_fixed(changes, keys, state)

    def total(self, values: Sequence[bytes | None]) -> int:
        return int(np.frombuffer(_joined(values, b""), _NUMBERS)["n"].sum())

    def decoded(self, keys: list[bytes], values: list[bytes]) -> pa.Table:
        state = np.frombuffer(b"".join(values), _NUMBERS)
        return pa.table({"user": pa.array(keys).cast(pa.string()), "n": state["n"], "s": state["s"]})


class RocksList(Rocks):
    """User → all items, packed. Appending reads first: the binding has no merge operators."""

    def _write(self, changes: WriteBatch, batch: pa.Table) -> None:
        keys, batch = self._sorted(batch)
        items = batch.column("items").combine_chunks()
        data = items.flatten().to_numpy().astype("<i8").tobytes()
        ends = (np.cumsum(items.value_lengths().to_numpy()) * 8).tolist()
        put, start = changes.put, 0
        for key, value, end in zip(keys, values_of(self.db, keys), ends, strict=True):
            put(key, (value or b"") + data[start:end])
            start = end

    def number(self, value: bytes) -> int:
        return sum(memoryview(value).cast("q"))

    def total(self, values: Sequence[bytes | None]) -> int:
        return int(np.frombuffer(_joined(values, b""), "<i8").sum())

    def decoded(self, keys: list[bytes], values: list[bytes]) -> pa.Table:
        offsets = np.concatenate([[0], np.cumsum([len(value) // 8 for value in values])])
        items = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.frombuffer(b"".join(values), "<i8")))
        return pa.table({"user": pa.array(keys).cast(pa.string()), "items": items})


class RocksMap(Rocks):
    """User and page, joined → eight bytes."""

    def key_column(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.binary_join_element_wise(rows.column("user"), rows.column("page"), _SEPARATOR).cast(pa.binary())

    def _write(self, changes: WriteBatch, batch: pa.Table) -> None:
        keys, batch = self._sorted(batch)
        _put_fixed(changes, keys, batch.column("seen").to_numpy().astype("<i8"))

    def total(self, values: Sequence[bytes | None]) -> int:
        return int(np.frombuffer(_joined(values, b""), "<i8").sum())

    def decoded(self, keys: list[bytes], values: list[bytes]) -> pa.Table:
        parts = pc.split_pattern(pa.array(keys).cast(pa.string()), _SEPARATOR)
        seen = np.frombuffer(b"".join(values), "<i8")
        return pa.table({"user": pc.list_element(parts, 0), "page": pc.list_element(parts, 1), "seen": seen})


class RocksNested(Rocks):
    """User → the profile, in MessagePack without field names."""

    def __init__(self, kind: Kind, home: Path, clock: Clock) -> None:
        super().__init__(kind, home, clock)
        self._decode = msgspec.msgpack.Decoder(Profile).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def _write(self, changes: WriteBatch, batch: pa.Table) -> None:
        keys, batch = self._sorted(batch)
        columns = [batch.column(name).to_pylist() for name in ("page", "at", "tags")]
        put, decode, encode = changes.put, self._decode, self._encode
        for key, value, page, at, tags in zip(keys, values_of(self.db, keys), *columns, strict=True):
            visits = decode(value).visits if value else 0
            put(key, encode(Profile(visits + 1, Last(page, at), tags)))

    def number(self, value: bytes) -> int:
        return self._decode(value).visits

    def total(self, values: Sequence[bytes | None]) -> int:
        decode = self._decode
        return sum(decode(value).visits for value in values if value)

    def decoded(self, keys: list[bytes], values: list[bytes]) -> pa.Table:
        profiles = [msgspec.to_builtins(self._decode(value)) for value in values]
        rows = [{"visits": n, "last": {"page": last[0], "at": last[1]}, "tags": tags} for n, last, tags in profiles]
        return pa.table({"user": pa.array(keys).cast(pa.string()), "profile": rows})


BY_KIND: dict[str, type[Rocks]] = {"value": RocksValue, "list": RocksList, "map": RocksMap, "nested": RocksNested}


def _joined(values: Iterable[bytes | None], absent: bytes) -> bytes:
    try:
        return b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        return b"".join([absent if value is None else value for value in values])


def _put_fixed(changes: WriteBatch, keys: list[bytes], numbers: np.ndarray) -> None:
    put, data, width = changes.put, numbers.tobytes(), numbers.dtype.itemsize
    for key, at in zip(keys, range(0, len(data), width), strict=True):
        put(key, data[at : at + width])
