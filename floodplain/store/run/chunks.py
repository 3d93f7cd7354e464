"""Decoding a stored chunk: nothing of it is used before its checksum and its claims are checked."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import xxhash

from floodplain.store.run import validation
from floodplain.store.run.footer import Footer, damaged
from floodplain.versions.records.edit import RunRef

ALIGNMENT = 64


def decoded(ref: RunRef, footer: Footer, schema: pa.Schema, chunk: int, data: pa.Buffer) -> pa.RecordBatch:
    """The rows of a chunk from its bytes as they are stored. Raises ``Corrupt``."""
    length, expected = int(footer.column("length")[chunk]), int(footer.column("checksum")[chunk])
    actual = xxhash.xxh3_64_intdigest(data)
    if data.size != length or actual != expected:
        raise damaged(ref, f"chunk {chunk} with checksum {expected:016x}", f"{data.size} bytes with {actual:016x}")
    try:
        claimed = validation.unpacked_bytes(data)
        if claimed > validation.MOST_CHUNK_BYTES:
            raise damaged(ref, f"chunk {chunk} within {validation.MOST_CHUNK_BYTES} bytes", f"{claimed} when unpacked")
        if footer.decoded and (claimed or data.size) != footer.column("decoded")[chunk]:
            expected_bytes = footer.column("decoded")[chunk]
            raise damaged(ref, f"chunk {chunk} of {expected_bytes} bytes when decoded", f"{claimed or data.size}")
        return pa.ipc.read_record_batch(data, schema)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise damaged(ref, f"chunk {chunk} in Arrow's format", str(error)) from error


def packed(sections: Sequence[pa.Buffer]) -> pa.Buffer:
    """Several pieces of bytes as one, each aligned, with a table of where they are in front."""
    table = np.zeros((len(sections) + 1, 2), "<u8")
    table[0] = len(sections), 0
    end = table.nbytes
    for number, section in enumerate(sections, 1):
        start = end + -end % ALIGNMENT
        table[number], end = (start, section.size), start + section.size
    data = pa.allocate_buffer(end)
    view = np.frombuffer(data, np.uint8)
    view.flags.writeable = True
    view[: table.nbytes] = table.view(np.uint8).ravel()
    done = table.nbytes
    for (start, size), section in zip(table[1:].tolist(), sections, strict=True):
        view[done:start] = 0
        view[start : start + size] = np.frombuffer(section, np.uint8)
        done = start + size
    return data


def unpacked(data: pa.Buffer) -> list[pa.Buffer]:
    """What ``packed`` was given, where it lies. Raises ``ValueError`` for other bytes."""
    if data.size < 16:
        raise ValueError("no table")
    count = int(np.frombuffer(data, "<u8", 1)[0])
    if not 0 <= count < data.size // 16:
        raise ValueError("no table")
    table = np.frombuffer(data, "<u8", 2 * count, 16).reshape(-1, 2)
    if (table > data.size).any() or (table.sum(axis=1) > data.size).any():
        raise ValueError("parts outside")
    return [data.slice(int(start), int(size)) for start, size in table]
