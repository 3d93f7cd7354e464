"""Writes runs: sorted rows become a run, runs are packed into an object."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from floodplain.errors import BadInput
from floodplain.keys import group_firsts, key_group
from floodplain.store.rows import layout
from floodplain.store.rows.layout import HASH, SUB
from floodplain.store.rows.row_classes import hash_order, starts_of
from floodplain.store.run import bloom, validation
from floodplain.store.run.footer import MAGIC, Footer, Section, encode
from floodplain.store.run.output_buffer import RunSink
from floodplain.store.run.statistics import Chunks, Facts, Piece
from floodplain.tiers.blobs import Gathered
from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.groups import from_members, size
from floodplain.versions.records.schema import TableSchema

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run's bytes depend on besides its rows."""

    store: str
    key_groups: int
    chunk_bytes: int
    compression: str | None
    filtered: bool
    """Whether to add a membership filter: it pays where reading a run needs requests."""


@dataclass(frozen=True, slots=True)
class BuiltRun:
    """A run's bytes and its reference, before an object is assigned to it."""

    ref: RunRef
    data: Gathered | bytes


def build_run(rows: pa.Table, schema: TableSchema, low: int, high: int, added: int, options: RunOptions) -> BuiltRun:
    """Requires: ``rows`` are physical rows of ``schema`` in run order, at least one. The run refers to their memory."""
    builder = RunBuilder(schema, rows.schema, options)
    builder.add(rows)
    return builder.finish(low, high, added)


class RunBuilder:
    """Builds a run incrementally from batches of rows in run order."""

    def __init__(self, schema: TableSchema, arrow: pa.Schema, options: RunOptions, held_bytes: int | None = None) -> None:
        """``arrow``: the schema of the rows. ``held_bytes``: of the run in memory; what is more waits on the local disk."""
        self._schema = schema
        self._arrow = arrow
        self._options = options
        self._ready, self._pending = Piece(), Piece()
        self._sink = RunSink(held_bytes)
        ipc = pa.ipc.IpcWriteOptions(compression=options.compression)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), arrow, options=ipc)
        self._chunks = Chunks(arrow.serialize().size)
        self._facts = Facts(schema)
        self._hashes: list[np.ndarray] | None = [] if options.filtered or schema.shape == "time" else None

    @property
    def rows(self) -> int:
        return self._facts.rows + self._ready.rows + self._pending.rows

    def add(self, rows: pa.Table) -> None:
        """Requires: they come behind all rows so far. Pieces too small for chunks of their own go with their neighbours."""
        for batch in filter(len, rows.to_batches()):
            if self._pending.size_bytes >= self._options.chunk_bytes // 2 and self._pending.batches:
                self._write(self._ready)
                self._ready, self._pending = self._pending, Piece()
            self._pending.add(batch)

    def finish(self, low: int, high: int, added: int) -> BuiltRun:
        """The run of the epochs ``low`` to ``high``. Requires: at least one row was added."""
        if self._ready.batches and self._pending.size_bytes < self._options.chunk_bytes // 2:
            self._ready, self._pending = self._ready.joined(self._pending), Piece()
        self._write(self._ready)
        self._write(self._pending)
        self._writer.close()
        footer = encode(self._footer(low, high))
        self._sink.write(footer)
        data, members = self._sink.gathered(), from_members(self._facts.groups)
        ref = RunRef(
            object="",
            offset=0,
            length=len(data),
            footer_length=len(footer),
            footer_checksum=xxhash.xxh3_64_intdigest(footer),
            object_size=0,
            table=self._schema.table,
            schema_id=self._schema.id,
            low=low,
            high=high,
            groups=members,
            rows=self._facts.rows,
            written_groups=size(members),
            added=added,
            **self._facts.traits(),
        )
        return BuiltRun(ref, data)

    def _footer(self, low: int, high: int) -> Footer:
        is_timed = self._schema.shape == "time"
        hashes = np.concatenate(self._hashes) if self._hashes is not None else np.empty(0, np.uint64)
        return Footer(
            magic=MAGIC,
            store=self._options.store,
            table=self._schema.table,
            schema_id=self._schema.id,
            low=low,
            high=high,
            rows=self._facts.rows,
            groups=from_members(self._facts.groups),
            unique=not is_timed and self._facts.unique,
            arrow=self._arrow.serialize().to_pybytes(),
            index=_append(self._sink, _hash_index(hashes)) if is_timed else None,
            filter=_append(self._sink, bloom.build(hashes)) if self._options.filtered and not is_timed else None,
            **self._chunks.columns(),
        )

    def _write(self, piece: Piece) -> None:
        for batch in pa.Table.from_batches(piece.batches, self._arrow).combine_chunks().to_batches():
            hashes = layout.numbers(batch, HASH)
            begins = _group_begins(hashes, self._schema, self._options.key_groups)
            self._facts.add(batch, hashes, key_group(hashes[begins], self._options.key_groups))
            if self._hashes is not None:
                self._hashes.append(hashes.copy())
            major = key_group(hashes, self._options.key_groups) if self._schema.shape == "time" else hashes
            minor = np.broadcast_to(np.uint64(0), len(batch)) if self._schema.shape == "value" else layout.numbers(batch, SUB)
            for start, stop in pairwise(_cuts(batch, begins, self._options.chunk_bytes)):
                self._writer.write_batch(batch.slice(start, stop - start))
                checksum, decoded_bytes = _checked_sum(self._sink.since(self._chunks.end), self._schema.table, self._options)
                bounds = major[start], minor[start], major[stop - 1], minor[stop - 1]
                self._chunks.add(bounds, stop - start, checksum, decoded_bytes, self._sink.tell())
                self._sink.advance()


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


def _group_begins(hashes: np.ndarray, schema: TableSchema, key_groups: int) -> np.ndarray:
    """The first row of each key group that has one."""
    if schema.shape == "time" or len(hashes) < key_groups:
        return np.flatnonzero(starts_of(key_group(hashes, key_groups)))
    places = np.append(np.searchsorted(hashes, group_firsts(key_groups)), len(hashes))
    return places[:-1][places[1:] > places[:-1]]


def _checked_sum(chunk: list[bytes | pa.Buffer], table: str, options: RunOptions) -> tuple[int, int]:
    """The checksum of a chunk, and how many bytes it takes when it is decoded. What readers refuse must not be written."""
    hashed, decoded_bytes = xxhash.xxh3_64(), sum(map(len, chunk))
    for part in chunk:
        hashed.update(part)
    if options.compression is not None:
        decoded_bytes = validation.decoded_bytes(pa.py_buffer(b"".join(chunk)))
        if decoded_bytes > validation.MOST_CHUNK_BYTES:
            raise BadInput(
                f"table {table}: rows that lie together take {decoded_bytes:,} bytes, and a chunk can have "
                f"{validation.MOST_CHUNK_BYTES:,}: store values this large elsewhere, or set compression to none"
            )
    return hashed.intdigest(), decoded_bytes


def _cuts(batch: pa.RecordBatch, begins: np.ndarray, chunk_bytes: int) -> list[int]:
    """Where chunks begin, and the end: about the size asked for, cut where a key group begins if one does in the second half."""
    target = max(1, int(len(batch) * chunk_bytes / max(batch.nbytes, 1)))
    cuts = [0]
    while len(batch) - cuts[-1] > target:
        stop = cuts[-1] + target
        begin = int(begins[np.searchsorted(begins, stop, "right") - 1])
        cuts.append(begin if begin > cuts[-1] + target // 2 else stop)
    return [0, *(stop for pair in pairwise([*cuts, len(batch)]) for stop in _evened(batch, *pair, 2 * chunk_bytes))]


def _evened(batch: pa.RecordBatch, start: int, stop: int, most_bytes: int) -> list[int]:
    """Where chunks end within these rows: not one, where they are much larger than others."""
    if stop - start == 1 or batch.slice(start, stop - start).nbytes <= most_bytes:
        return [stop]
    middle = (start + stop) // 2
    return [*_evened(batch, start, middle, most_bytes), *_evened(batch, middle, stop, most_bytes)]


def _hash_index(hashes: np.ndarray) -> bytes:
    order = hash_order(hashes)
    return np.concatenate([hashes[order], order.astype(np.uint64)]).astype("<u8").tobytes()


def _append(sink: RunSink, data: bytes) -> Section:
    """Put ``data`` behind what is there, aligned."""
    sink.write(bytes(-sink.tell() % ALIGNMENT))
    offset = sink.tell()
    sink.write(data)
    return Section(offset, len(data), xxhash.xxh3_64_intdigest(data))
