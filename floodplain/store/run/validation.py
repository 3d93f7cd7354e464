"""Validates a run: the manifest's entry, the footer and the rows must agree.

Checksums show that bytes are those that were written, not that their writer was correct or honest.
"""

import struct

import numpy as np
import pyarrow as pa

from floodplain.keys import key_group
from floodplain.store.rows import layout
from floodplain.store.rows.definition import recorded
from floodplain.store.rows.evolution import can_read
from floodplain.store.rows.layout import CLEAR, DELETE, HASH, MERGE, OP, SUB
from floodplain.store.run import bloom
from floodplain.store.run.footer import Footer, damaged
from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema

MOST_CHUNK_BYTES = 1 << 30
"""Of a decompressed chunk: a writer refuses more, a reader takes more for damage."""


def check_ref(ref: RunRef) -> None:
    """The run lies inside its object, and its footer inside the run."""
    inside = ref.offset >= 0 and 0 < ref.footer_length <= ref.length and ref.offset + ref.length <= ref.object_size < 1 << 63
    if not inside or ref.rows < 0:
        where = f"{ref.length} bytes at {ref.offset} of {ref.object_size}, {ref.footer_length} of them its footer"
        raise damaged(ref, "a run inside its object", f"{ref.rows} rows in {where}")


def schema_of(ref: RunRef, manifest: Manifest) -> TableSchema:
    """The schema that the run was written under."""
    versions = manifest.schemas.get(ref.table, ())
    if not 1 <= ref.schema_id <= len(versions):
        raise damaged(ref, f"one of the {len(versions)} schemas of table {ref.table}", f"schema {ref.schema_id}")
    schema = versions[ref.schema_id - 1]
    if not can_read(recorded(schema), recorded(versions[-1])):
        raise damaged(ref, f"schema {schema.id} of table {ref.table}, which schema {versions[-1].id} can read", "another")
    return schema


def membership(ref: RunRef, key_groups: int) -> np.ndarray:
    """Per key group, whether the manifest still reads the run for it. May be shared: read-only."""
    member = np.zeros(key_groups, bool)
    for low, high in ref.groups:
        if not 0 <= low < high <= key_groups:
            raise damaged(ref, f"key groups from 0 to {key_groups}", f"{low} to {high}")
        member[low:high] = True
    member.flags.writeable = False
    return member


def check_rows(batch: pa.RecordBatch, chunk: int, ref: RunRef, footer: Footer, schema: TableSchema, key_groups: int) -> None:
    """The rows of a chunk match the footer: their number, ops, order and bounds."""
    if len(batch) != int(footer.column("count")[chunk]):
        raise damaged(ref, f"{footer.column('count')[chunk]} rows in chunk {chunk}", f"{len(batch)}")
    names = (HASH, OP) if schema.shape == "value" else (HASH, SUB, OP)
    if any(batch.column(name).null_count for name in names):
        raise damaged(ref, f"numbers in the system columns of chunk {chunk}", "nulls")
    _check_ops(layout.numbers(batch, OP), chunk, ref)
    hashes = layout.numbers(batch, HASH)
    major = key_group(hashes, key_groups).astype(np.uint64) if schema.shape == "time" else hashes
    minor = np.broadcast_to(np.uint64(0), len(batch)) if schema.shape == "value" else layout.numbers(batch, SUB)
    if not _ascends(major, minor, strictly=footer.unique):
        raise damaged(ref, f"chunk {chunk} in order", "rows out of order")
    bounds = [(major[at], minor[at]) for at in (0, -1)] if len(batch) else []
    names_of = (("first", "first_sub"), ("last", "last_sub"))
    claimed = [tuple(footer.column(name)[chunk] for name in pair) for pair in names_of]
    if bounds != claimed:
        raise damaged(ref, f"chunk {chunk} from {claimed[0]} to {claimed[1]}", str(bounds))


def _check_ops(op: np.ndarray, chunk: int, ref: RunRef) -> None:
    if not op.any():
        return
    unsaid = (not ref.merges and (op == MERGE).any()) or (not ref.deletes and ((op == DELETE) | (op == CLEAR)).any())
    if op.max(initial=0) > MERGE or unsaid:
        raise damaged(ref, f"ops in chunk {chunk} that the log tells of", f"{np.unique(op).tolist()}")


def check_chunk_order(footer: Footer, ref: RunRef) -> None:
    """Chunks are sorted and do not overlap, except at their bounds."""
    major, minor = (
        np.stack([footer.column(first), footer.column(last)], axis=1).ravel()
        for first, last in (("first", "last"), ("first_sub", "last_sub"))
    )
    if not _ascends(major, minor, strictly=False):
        raise damaged(ref, "chunks in order", "chunks out of order")


def _ascends(major: np.ndarray, minor: np.ndarray, *, strictly: bool) -> bool:
    later = major[1:] > major[:-1]
    if strictly or later.all():
        return bool(later.all())
    return bool((later | ((major[1:] == major[:-1]) & (minor[1:] >= minor[:-1]))).all())


def check_index(data: pa.Buffer, hashes: np.ndarray, ref: RunRef) -> None:
    """The hash index of a time table is sorted and names each row once."""
    index = np.frombuffer(data, "<u8")
    present, rows = index[: len(index) // 2], index[len(index) // 2 :]
    if not np.array_equal(np.sort(rows), np.arange(len(hashes), dtype=np.uint64)):
        raise damaged(ref, f"an index of {len(hashes)} rows", "other rows")
    if not (np.array_equal(present, hashes[rows]) and (present[1:] >= present[:-1]).all()):
        raise damaged(ref, "an index that leads to its keys", "other rows")


def check_filter(data: pa.Buffer, hashes: np.ndarray, ref: RunRef) -> None:
    if not in_filter(data, hashes, ref).all():
        raise damaged(ref, "a filter that knows every key", "one that does not")


def in_filter(data: pa.Buffer, hashes: np.ndarray, ref: RunRef) -> np.ndarray:
    """Per hash, whether the filter lets it through."""
    if not data.size or data.size % bloom.BLOCK_BYTES:
        raise damaged(ref, f"a filter of {bloom.BLOCK_BYTES}-byte blocks", f"{data.size} bytes")
    return bloom.may_contain(np.frombuffer(data, np.uint8), hashes)


def unpacked_bytes(data: pa.Buffer) -> int:
    """How much memory the chunk asks for when it is unpacked: the claims that stand before its compressed buffers.

    Arrow believes these and reserves them, so they are summed up first. Raises ``ValueError`` if it is no record batch.
    """
    view = memoryview(data)
    try:
        _, metadata_bytes = struct.unpack_from("<Ii", view, 0)
        batch = _table(view, _root(view), _HEADER)
        if batch is None or _table(view, batch, _COMPRESSION) is None:
            return 0
        buffers = _table(view, batch, _BUFFERS)
        if buffers is None:
            return 0
        (count,) = struct.unpack_from("<I", view, buffers)
        places = np.frombuffer(view, "<i8", 2 * count, buffers + 4).reshape(-1, 2)
        body = 8 + metadata_bytes
        claims = [(struct.unpack_from("<q", view, body + int(offset))[0], int(length)) for offset, length in places if length]
    except (struct.error, ValueError, IndexError) as error:
        raise ValueError(f"no record batch: {error}") from None
    return sum(length if claim == _AS_IT_IS else max(claim, 0) for claim, length in claims)


def decoded_bytes(data: pa.Buffer) -> int:
    """How much memory the rows of the chunk take. Raises ``ValueError`` if it is no record batch."""
    return unpacked_bytes(data) or int(data.size)


_AS_IT_IS = -1
"""Stands before a buffer that was not compressed although others were."""
# Arrow's Message and RecordBatch, by the number of a field in their flatbuffers.
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3


def _root(view: memoryview) -> int:
    return 8 + int(struct.unpack_from("<I", view, 8)[0])


def _table(view: memoryview, at: int, field: int) -> int | None:
    """Where the table or vector in a field of the flatbuffer table at ``at`` lies."""
    vtable = at - int(struct.unpack_from("<i", view, at)[0])
    (size,) = struct.unpack_from("<H", view, vtable)
    if vtable < 0 or 4 + 2 * field >= size:
        return None
    (offset,) = struct.unpack_from("<H", view, vtable + 4 + 2 * field)
    return at + offset + int(struct.unpack_from("<I", view, at + offset)[0]) if offset else None
