"""How a sink reads staged files, and how rows are encoded as Parquet."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.tiers.blobs import Blobs
from floodplain.versions.records.vouched import Vouched

STAGED_ROWS = 8192
"""Rows of a staged file that a sink holds at a time, where it goes through rows at all."""


SAMPLE_ROWS = 1000
"""Rows that tell how a file of them is best written."""


def staged_path(name: str, blobs: Blobs) -> Path | None:
    """Where a staged file is on this file system; None if it is in an object store. Raises ``Refused`` if it is no plain file."""
    parts = urlsplit(blobs.url)
    if parts.scheme != "file":
        return None
    blobs.size(name)
    return Path(unquote(parts.path)) / name


def check_staged(name: str, blobs: Blobs, path: Path) -> None:
    """Raises ``Corrupt`` unless what is at this path is the staged file, as far as anything vouches for that."""
    if isinstance(blobs, Vouched):
        blobs.check(name, _mapped(path))


def _mapped(path: Path) -> pa.Buffer:
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    with pa.memory_map(os.fspath(path)) as mapped:
        return mapped.read_buffer()


def open_staged(name: str, blobs: Blobs) -> pq.ParquetFile:
    mapped = blobs.map(name)
    return as_parquet(blobs.get(name) if mapped is None else mapped)


def as_parquet(data: pa.Buffer) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)


def staged_batches(staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in bounded pieces, in the same order each time."""
    for name in sorted(staged):
        for batch in open_staged(name, blobs).iter_batches(STAGED_ROWS):
            yield batch.cast(schema)


def read_staged(staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> pa.Table:
    tables = [open_staged(name, blobs).read().cast(schema) for name in sorted(staged)]
    return pa.concat_tables([schema.empty_table(), *tables])


def encoding(rows: pa.Table) -> dict[str, Any]:
    """How to write these rows as Parquet. A dictionary pays where values repeat; where they do not, trying is what costs most.
    Pages have checksums, which stay with files that are published."""
    head = rows.slice(0, SAMPLE_ROWS)
    plain = [field.name for field in head.schema if not pa.types.is_nested(field.type)]
    repeating = [name for name in plain if 4 * len(head.column(name).unique()) <= len(head)]
    return {"compression": "snappy", "use_dictionary": repeating, "write_page_checksum": True}
