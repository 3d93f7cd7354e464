"""Writing: sorted rows become a run, runs become an object."""

import io
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from floodplain.errors import BadInput
from floodplain.keys import group_firsts, key_group
from floodplain.store import claims, filters, layout
from floodplain.store.footer import MAGIC, Footer, Place, encode
from floodplain.store.identity import hash_order, starts_of
from floodplain.store.layout import CLEAR, DELETE, EXPIRES, HASH, MERGE, OP, PUT, SUB
from floodplain.tiers.blobs import Gathered
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
    data: Gathered | bytes


def build_run(rows: pa.Table, schema: TableSchema, low: int, high: int, added: int, options: RunOptions) -> BuiltRun:
    """Requires: ``rows`` are physical rows of ``schema`` in run order, at least one. The run refers to their memory."""
    rows = _in_pieces(rows, options.chunk_bytes)
    hashes = layout.numbers(rows, HASH)
    begins = _group_begins(hashes, schema, options.key_groups)
    members = from_members(key_group(hashes[begins], options.key_groups).tolist())
    sink = _Sink()
    chunks = _write_chunks(sink, rows, schema, hashes, begins, options)
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
            rows=len(rows),
            groups=members,
            unique=schema.shape != "time" and bool(starts_of(hashes).all()),
            arrow=rows.schema.serialize().to_pybytes(),
            index=index,
            filter=filter_,
            **chunks,
        )
    )
    sink.write(footer)
    data = Gathered(sink.parts)
    ref = RunRef(
        object="",
        offset=0,
        length=len(data),
        footer_length=len(footer),
        footer_checksum=xxhash.xxh3_64_intdigest(footer),
        object_size=0,
        table=schema.table,
        schema_id=schema.id,
        low=low,
        high=high,
        groups=members,
        rows=len(rows),
        written_groups=size(members),
        added=added,
        **_traits(rows, schema),
    )
    return BuiltRun(ref, data)


def pack(runs: Sequence[BuiltRun], name: str) -> tuple[Gathered, tuple[RunRef, ...]]:
    """Several runs as one object, each aligned; the references say where."""
    parts: list[pa.Buffer | bytes] = []
    offsets: list[int] = []
    size = 0
    for run in runs:
        padding = -size % ALIGNMENT
        offsets.append(size + padding)
        parts += [bytes(padding), *(run.data.parts if isinstance(run.data, Gathered) else [run.data])]
        size += padding + len(run.data)
    refs = [
        msgspec.structs.replace(run.ref, object=name, offset=offset, object_size=size)
        for run, offset in zip(runs, offsets, strict=True)
    ]
    return Gathered(parts), tuple(refs)


class _Sink(io.RawIOBase):
    """Remembers what Arrow writes where it lies. Fresh memory to copy it to costs more than all the rest of writing."""

    def __init__(self) -> None:
        self.parts: list[bytes | pa.Buffer] = []
        self._starts: list[int] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        self.parts.append(data)
        self._starts.append(self._size)
        self._size += len(data)
        return len(data)

    def since(self, start: int) -> list[bytes | pa.Buffer]:
        """What was written from here on. Requires: a write began here."""
        return self.parts[bisect_left(self._starts, start) :]


def _in_pieces(rows: pa.Table, chunk_bytes: int) -> pa.Table:
    """The rows as they lie; pieces of them that are too small for chunks of their own are put together with their neighbours."""
    pieces: list[list[pa.RecordBatch]] = [[]]
    for batch in filter(len, rows.to_batches()):
        if pieces[-1] and sum(other.nbytes for other in pieces[-1]) >= chunk_bytes // 2:
            pieces.append([])
        pieces[-1].append(batch)
    if len(pieces) > 1 and sum(batch.nbytes for batch in pieces[-1]) < chunk_bytes // 2:
        last = pieces.pop()
        pieces[-1] += last
    return pa.concat_tables(pa.Table.from_batches(piece, rows.schema).combine_chunks() for piece in pieces)


def _group_begins(hashes: np.ndarray, schema: TableSchema, key_groups: int) -> np.ndarray:
    """The first row of each key group that has one."""
    if schema.shape == "time" or len(hashes) < key_groups:
        return np.flatnonzero(starts_of(key_group(hashes, key_groups)))
    places = np.append(np.searchsorted(hashes, group_firsts(key_groups)), len(hashes))
    return places[:-1][places[1:] > places[:-1]]


def _write_chunks(
    sink: _Sink, rows: pa.Table, schema: TableSchema, hashes: np.ndarray, begins: np.ndarray, options: RunOptions
) -> dict[str, bytes]:
    """Write the stream; returns the footer's columns about its chunks."""
    cuts, ends, sums = [0], [rows.schema.serialize().size], list[int]()
    ipc = pa.ipc.IpcWriteOptions(compression=options.compression)
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), rows.schema, options=ipc) as writer:
        for batch in rows.to_batches():
            for start, stop in pairwise(_cuts(batch, begins - cuts[-1], options.chunk_bytes)):
                writer.write_batch(batch.slice(start, stop - start))
                cuts.append(cuts[-1] + stop - start)
                sums.append(_checked_sum(sink.since(ends[-1]), schema.table, options))
                ends.append(sink.tell())
    first, last = np.array(cuts[:-1]), np.array(cuts[1:]) - 1
    bounds = [hashes[at] for at in (first, last)]
    major = [key_group(found, options.key_groups) for found in bounds] if schema.shape == "time" else bounds
    minor = np.broadcast_to(np.uint64(0), len(rows)) if schema.shape == "value" else layout.numbers(rows, SUB)
    columns = {
        "first": major[0],
        "first_sub": minor[first],
        "last": major[1],
        "last_sub": minor[last],
        "offset": ends[:-1],
        "length": np.diff(ends),
        "count": np.diff(cuts),
        "checksum": sums,
    }
    return {name: np.array(column, "<u8").tobytes() for name, column in columns.items()}


def _checked_sum(chunk: list[bytes | pa.Buffer], table: str, options: RunOptions) -> int:
    if options.compression is not None:
        _check_unpacked(pa.py_buffer(b"".join(chunk)), table)
    hashed = xxhash.xxh3_64()
    for part in chunk:
        hashed.update(part)
    return hashed.intdigest()


def _check_unpacked(chunk: pa.Buffer, table: str) -> None:
    """What readers refuse must not be written."""
    if (size_bytes := claims.unpacked_bytes(chunk)) > claims.MOST_CHUNK_BYTES:
        raise BadInput(
            f"table {table}: rows that lie together take {size_bytes:,} bytes, and a chunk can have {claims.MOST_CHUNK_BYTES:,}: "
            "store values this large elsewhere, or set compression to none"
        )


def _cuts(batch: pa.RecordBatch, begins: np.ndarray, chunk_bytes: int) -> list[int]:
    """Where chunks begin, and the end: about the size asked for, cut where a key group begins if one does in the second half."""
    target = max(1, int(len(batch) * chunk_bytes / max(batch.nbytes, 1)))
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


def _traits(batch: pa.Table, schema: TableSchema) -> dict[str, Any]:
    """What readers and the compaction policy want to know of a run without opening it."""
    op = layout.numbers(batch, OP)
    traits: dict[str, Any] = {"deletes": bool(((op == DELETE) | (op == CLEAR)).any()), "merges": bool((op == MERGE).any())}
    ends = [EXPIRES] if schema.ttl_ms else []
    ends += [layout.expires_column(field) for field in schema.values if field.ttl_ms]
    first = min((int(layout.expiries(batch, name).min()) for name in ends), default=layout.NEVER)
    if first < layout.NEVER:
        traits["first_expiry_ms"] = max(first, 1)
    if schema.ttl_ms and (lasting := (op == PUT) | (op == MERGE)).any():
        last = int(layout.expiries(batch, EXPIRES)[lasting].max())
        traits["last_expiry_ms"] = max(last, 1) if last < layout.NEVER else 0
    return traits
