"""Stores for tests: honest ones, and ones whose files carry valid checksums and lie."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from floodplain.clock import Clock, ManualClock, SeededRandomness
from floodplain.metrics import Counters
from floodplain.settings import RetentionSettings, RetrySettings, StoreSettings
from floodplain.store.rows.delta import physical_rows, settle
from floodplain.store.run.footer import Footer, Section, encode
from floodplain.store.run.writer import BuiltRun, RunOptions, build_run, pack
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.memory import MemoryBlobs
from floodplain.tiers.objects import ObjectBlobs
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.records import frame
from floodplain.versions.records.edit import CommitEpoch, Edit, PutSchema, RunRef, Update
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema

GROUPS = 16
NOW_MS = 1_700_000_000_000
SETTINGS = StoreSettings(
    key_groups=GROUPS,
    sync=False,
    retry=RetrySettings(attempts=2, first_delay_ms=1, max_delay_ms=1),
    retention=RetentionSettings(newest=100, every_ms=()),
)
_seeds = itertools.count(1)


def memory() -> MemoryBlobs:
    """Runs are uncompressed, without filters, and not mapped."""
    return MemoryBlobs("memory://forge", Counters())


def objects() -> ObjectBlobs:
    """As an object store: runs are compressed, have filters, and are read by ranges."""
    return ObjectBlobs("memory:///", {}, RetrySettings(), Counters())


def create(blobs: Blobs | None = None, settings: StoreSettings = SETTINGS, clock: Clock | None = None) -> Store:
    where = {"settings": settings, "clock": clock or ManualClock(NOW_MS), "randomness": SeededRandomness(next(_seeds))}
    return Store(History.create(blobs or memory(), settings.key_groups, log_segment=1, **where), Counters())


def reopen(blobs: Blobs, settings: StoreSettings = SETTINGS, clock: Clock | None = None) -> Store:
    """As another process would."""
    where = {"settings": settings, "clock": clock or ManualClock(NOW_MS), "randomness": SeededRandomness(next(_seeds))}
    return Store(History.open(blobs, **where), Counters())


def with_table(schema: TableSchema, blobs: Blobs | None = None, settings: StoreSettings = SETTINGS) -> Store:
    store = create(blobs, settings)
    commit(store.history, [PutSchema(schema)])
    return store


def write(store: Store, table: str, *changes: tuple[str, Mapping[str, Any]], now_ms: int = NOW_MS, **more: Any) -> Manifest:
    """One epoch: each change is (op, columns)."""
    with store.writer("test") as writer:
        epoch = writer.epoch(now_ms=now_ms)
        for op, columns in changes:
            getattr(epoch, op)(table, columns if isinstance(columns, pa.Table) else pa.table(dict(columns)))
        return epoch.commit(**more)


def rows(store: Store, table: str, **scan: Any) -> list[dict[str, Any]]:
    return store.snapshot().table(table).to_arrow(**scan).to_pylist()


def options(store: Store, **changes: Any) -> RunOptions:
    usual = {"chunk_bytes": 1 << 20, "compression": None, "filtered": False}
    return RunOptions(store.head.store, store.head.key_groups, **{**usual, **changes})


def built(store: Store, table: str, columns: pa.Table, op: str = "put", **option: Any) -> BuiltRun:
    """An honest run for the next epoch."""
    schema = store.head.schemas[table][-1]
    physical = settle(schema, [physical_rows(schema, columns, op, NOW_MS)], NOW_MS, store.head.key_groups)
    return raw_run(store, table, physical, **option)


def raw_run(store: Store, table: str, physical: pa.Table, **option: Any) -> BuiltRun:
    """A run of physical rows as they are: unsorted, with unknown ops, or whatever."""
    epoch = store.head.epoch + 1
    return build_run(physical, store.head.schemas[table][-1], epoch, epoch, epoch, options(store, **option))


def footer_of(run: BuiltRun) -> Footer:
    return msgspec.msgpack.decode(bytes(run.data)[-run.ref.footer_length :], type=Footer)


def with_footer(run: BuiltRun, footer: Footer | bytes, body: bytes | None = None, **ref: Any) -> BuiltRun:
    """The run with another footer (and body), which its reference vouches for."""
    tail = footer if isinstance(footer, bytes) else encode(footer)
    data = (bytes(run.data)[: -run.ref.footer_length] if body is None else body) + tail
    vouched = {"length": len(data), "footer_length": len(tail), "footer_checksum": xxhash.xxh3_64_intdigest(tail)}
    return BuiltRun(msgspec.structs.replace(run.ref, **{**vouched, **ref}), data)


def chunk_of(run: BuiltRun) -> bytes:
    """The record batch message of a run of one chunk."""
    footer = footer_of(run)
    (offset,), (length,) = footer.column("offset"), footer.column("length")
    return bytes(run.data)[int(offset) : int(offset + length)]


def with_chunk(run: BuiltRun, message: bytes) -> BuiltRun:
    """The run with another message as its only chunk, about which nothing else of the footer is changed."""
    footer = footer_of(run)
    body = footer.arrow + message + b"\xff\xff\xff\xff\0\0\0\0"
    changes: dict[str, Any] = {
        "length": number(len(message)),
        "checksum": number(xxhash.xxh3_64_intdigest(message)),
        "decoded": b"",
    }
    for part in ("index", "filter"):
        place = getattr(footer, part)
        if place is not None:
            body += bytes(-len(body) % 64)
            changes[part] = msgspec.structs.replace(place, offset=len(body))
            body += bytes(run.data)[place.offset : place.offset + place.length]
    return with_footer(run, msgspec.structs.replace(footer, **changes), body)


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def message_of(rows: pa.Table, compression: str | None = None) -> bytes:
    """Rows as one record batch message, whatever they hold."""
    batch = rows.combine_chunks().to_batches()[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    return sink.getvalue().to_pybytes()[batch.schema.serialize().size : end]


def physical_of(run: BuiltRun) -> pa.Table:
    """The physical rows of a run, as Arrow reads them."""
    with pa.ipc.open_stream(pa.py_buffer(bytes(run.data))) as reader:
        return reader.read_all()


def with_part(run: BuiltRun, part: str, change: Callable[[bytes], bytes]) -> BuiltRun:
    """The run with its index or filter changed, and the checksum made to fit."""
    footer = footer_of(run)
    place = getattr(footer, part)
    data = change(bytes(run.data)[place.offset : place.offset + place.length])
    assert len(data) == place.length
    body = bytes(run.data)[: place.offset] + data + bytes(run.data)[place.offset + place.length : -run.ref.footer_length]
    checked = Section(place.offset, place.length, xxhash.xxh3_64_intdigest(data))
    return with_footer(run, msgspec.structs.replace(footer, **{part: checked}), body)


def place(store: Store, runs: Sequence[BuiltRun]) -> tuple[RunRef, ...]:
    """Store runs as one object, without looking at them."""
    name = paths.run(store.head.position, "forged", store.history.randomness.nonce())
    data, refs = pack(runs, name)
    store.history.blobs.create(name, data)
    return refs


def commit_runs(store: Store, *runs: BuiltRun, **ref: Any) -> None:
    """An epoch of these runs that nobody checked; ``ref`` changes what the edit says of them."""
    refs = tuple(msgspec.structs.replace(run, **ref) for run in place(store, runs))
    append(store, CommitEpoch(store.head.epoch + 1, refs))


def append(store: Store, *updates: Update, **changes: Any) -> None:
    """An edit at the end of the log that nobody checked."""
    head = store.head
    edit = Edit(
        store=head.store, position=head.position + 1, previous=head.chain, nonce="forged", at_ms=NOW_MS, token=0, updates=updates
    )
    edit = msgspec.structs.replace(edit, **changes)
    store.history.blobs.create(paths.log(head.position + 1), frame.encode(frame.Kind.EDIT, edit))
