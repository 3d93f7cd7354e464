"""Writing: sorted rows become a run, runs become an object."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from floodplain.errors import BadInput
from floodplain.keys import key_group
from floodplain.store import claims, filters, layout
from floodplain.store.footer import MAGIC, Footer, Place, encode
from floodplain.store.identity import hash_order, starts_of
from floodplain.store.layout import CLEAR, DELETE, EXPIRES, HASH, MERGE, OP, SUB
from floodplain.versions.edit import RunRef
from floodplain.versions.groups import from_members, size
from floodplain.versions.schema import TableSchema

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run's bytes depend on besides its rows."""

    store: str
    key_groups: int
    chunk_bytes: int
    compression: str | None
    filtered: bool
    """Whether to add a membership filter: it pays where a run is not at hand."""


@dataclass(frozen=True, slots=True)
class BuiltRun:
    """A run's bytes and its reference, still without a place."""

    ref: RunRef
    data: pa.Buffer | bytes


def build_run(rows: pa.Table, schema: TableSchema, low: int, high: int, added: int, options: RunOptions) -> BuiltRun:
    """Requires: ``rows`` are physical rows of ``schema`` in run order, at least one."""
    batch = rows.combine_chunks().to_batches()[0]
    hashes = layout.numbers(batch, HASH)
    groups = key_group(hashes, options.key_groups)
    members = from_members(groups[starts_of(groups)].tolist())
    sink = _Sink.sized_for(batch, options.chunk_bytes)
    chunks = _write_chunks(sink, batch, schema, groups, options)
    index = _append(sink, _hash_index(hashes)) if schema.shape == "time" else None
    filter_ = _append(sink, filters.build(hashes)) if options.filtered and schema.shape != "time" else None
    footer = encode(
        Footer(
            magic=MAGIC,
            store=options.store,
            table=schema.table,
            schema_id=schema.id,
            low=low,
            high=high,
            rows=len(batch),
            groups=members,
            unique=schema.shape != "time" and bool(starts_of(hashes).all()),
            arrow=batch.schema.serialize().to_pybytes(),
            index=index,
            filter=filter_,
            **chunks,
        )
    )
    sink.write(footer)
    data = sink.written(0, sink.tell())
    ref = RunRef(
        object="",
        offset=0,
        length=data.size,
        footer_length=len(footer),
        footer_checksum=xxhash.xxh3_64_intdigest(footer),
        object_size=0,
        table=schema.table,
        schema_id=schema.id,
        low=low,
        high=high,
        groups=members,
        rows=len(batch),
        written_groups=size(members),
        added=added,
        **_traits(batch, schema),
    )
    return BuiltRun(ref, data)


def pack(runs: Sequence[BuiltRun], name: str) -> tuple[pa.Buffer | bytes, tuple[RunRef, ...]]:
    """Several runs as one object, each aligned; the references say where."""
    parts: list[pa.Buffer | bytes] = []
    offsets: list[int] = []
    size = 0
    for run in runs:
        padding = -size % ALIGNMENT
        offsets.append(size + padding)
        parts += [bytes(padding), run.data]
        size += padding + len(run.data)
    refs = [
        msgspec.structs.replace(run.ref, object=name, offset=offset, object_size=size)
        for run, offset in zip(runs, offsets, strict=True)
    ]
    return parts[1] if len(runs) == 1 else b"".join(parts), tuple(refs)


class _Sink:
    """Memory for a whole run, reserved at once: growing it step by step costs more than all the rest of writing."""

    def __init__(self, size_bytes: int) -> None:
        # NumPy asks the kernel for huge pages, Arrow does not: touching fresh memory page by page took longer than filling it.
        self._memory = pa.py_buffer(np.empty(size_bytes, np.uint8))
        self.stream = pa.FixedSizeBufferWriter(self._memory)
        self.write = self.stream.write
        self.tell = self.stream.tell

    @classmethod
    def sized_for(cls, batch: pa.RecordBatch, chunk_bytes: int) -> "_Sink":
        """Room for the batch, for what compression may add, and for headers, index, filter and footer."""
        chunks = 2 + 2 * batch.nbytes // chunk_bytes
        return cls(batch.nbytes * 33 // 32 + 24 * len(batch) + (4096 + 1024 * batch.num_columns) * (chunks + 4) + (1 << 20))

    def written(self, start: int, stop: int) -> pa.Buffer:
        return self._memory.slice(start, stop - start)


def _write_chunks(
    sink: _Sink, batch: pa.RecordBatch, schema: TableSchema, groups: np.ndarray, options: RunOptions
) -> dict[str, bytes]:
    """Write the stream; returns the footer's columns about its chunks."""
    cuts = _cuts(batch, groups, options.chunk_bytes)
    ends = [batch.schema.serialize().size]
    ipc = pa.ipc.IpcWriteOptions(compression=options.compression)
    with pa.ipc.new_stream(sink.stream, batch.schema, options=ipc) as writer:
        for start, stop in pairwise(cuts):
            writer.write_batch(batch.slice(start, stop - start))
            ends.append(sink.tell())
            _check_unpacked(sink.written(*ends[-2:]), schema.table)
    first, last = np.array(cuts[:-1]), np.array(cuts[1:]) - 1
    major = groups if schema.shape == "time" else layout.numbers(batch, HASH)
    minor = np.zeros(len(batch), np.uint64) if schema.shape == "value" else layout.numbers(batch, SUB)
    columns = {
        "first": major[first],
        "first_sub": minor[first],
        "last": major[last],
        "last_sub": minor[last],
        "offset": ends[:-1],
        "length": np.diff(ends),
        "count": np.diff(cuts),
        "checksum": [xxhash.xxh3_64_intdigest(sink.written(at, to)) for at, to in pairwise(ends)],
    }
    return {name: np.array(column, "<u8").tobytes() for name, column in columns.items()}


def _check_unpacked(chunk: pa.Buffer, table: str) -> None:
    """What readers refuse must not be written."""
    if (size_bytes := claims.unpacked_bytes(chunk)) > claims.MOST_CHUNK_BYTES:
        raise BadInput(
            f"table {table}: rows that lie together take {size_bytes:,} bytes, and a chunk can have {claims.MOST_CHUNK_BYTES:,}: "
            "store values this large elsewhere, or set compression to none"
        )


def _cuts(batch: pa.RecordBatch, groups: np.ndarray, chunk_bytes: int) -> list[int]:
    """Where chunks begin, and the end: about the size asked for, cut where a key group begins if one does in the second half."""
    target = max(1, int(len(batch) * chunk_bytes / max(batch.nbytes, 1)))
    begins = np.flatnonzero(starts_of(groups))
    cuts = [0]
    while len(batch) - cuts[-1] > target:
        stop = cuts[-1] + target
        begin = int(begins[np.searchsorted(begins, stop, "right") - 1])
        cuts.append(begin if begin > cuts[-1] + target // 2 else stop)
    return [*cuts, len(batch)]


def _hash_index(hashes: np.ndarray) -> bytes:
    order = hash_order(hashes)
    return np.concatenate([hashes[order], order.astype(np.uint64)]).astype("<u8").tobytes()


def _append(sink: _Sink, data: bytes) -> Place:
    """Put ``data`` behind what is there, aligned."""
    sink.write(bytes(-sink.tell() % ALIGNMENT))
    offset = sink.tell()
    sink.write(data)
    return Place(offset, len(data), xxhash.xxh3_64_intdigest(data))


def _traits(batch: pa.RecordBatch, schema: TableSchema) -> dict[str, Any]:
    """What readers and the compaction policy want to know of a run without opening it."""
    op = layout.numbers(batch, OP)
    traits: dict[str, Any] = {"deletes": bool(np.isin(op, (DELETE, CLEAR)).any()), "merges": bool((op == MERGE).any())}
    ends = [EXPIRES] if schema.ttl_ms else []
    ends += [layout.expires_column(field) for field in schema.values if field.ttl_ms]
    first = min((int(layout.expiries(batch, name).min()) for name in ends), default=layout.NEVER)
    if first < layout.NEVER:
        traits["first_expiry_ms"] = max(first, 1)
    return traits
