"""Reads staged files for sinks, and chooses how rows are encoded as Parquet."""

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
"""Batch size of sinks that read staged files row by row: bounds their memory."""


SAMPLE_ROWS = 1000
"""Rows that are sampled to choose an encoding."""


def staged_path(name: str, blobs: Blobs) -> Path | None:
    """The path of a staged file; None if it has none. Raises ``Refused`` if it is no regular file."""
    parts = urlsplit(blobs.url)
    if parts.scheme != "file" or (isinstance(blobs, Vouched) and blobs.is_at_hand(name)):
        return None
    blobs.size(name)
    return Path(unquote(parts.path)) / name


def check_staged(name: str, blobs: Blobs, path: Path) -> None:
    """Raises ``Corrupt`` if the file at this path differs from what the edit recorded of the staged file, if it did."""
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
    """The rows in batches of bounded size, in deterministic order."""
    for name in sorted(staged):
        for batch in open_staged(name, blobs).iter_batches(STAGED_ROWS):
            yield batch.cast(schema)


def read_staged(staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> pa.Table:
    tables = [open_staged(name, blobs).read().cast(schema) for name in sorted(staged)]
    return pa.concat_tables([schema.empty_table(), *tables])


def encoding(rows: pa.Table) -> dict[str, Any]:
    """Arguments of Parquet's writer for these rows. Dictionary encoding pays for columns with repeating values; for others,
    attempting it is the largest cost. Pages have checksums, which published files keep."""
    head = rows.slice(0, SAMPLE_ROWS)
    plain = [field.name for field in head.schema if not pa.types.is_nested(field.type)]
    repeating = [name for name in plain if 4 * len(head.column(name).unique()) <= len(head)]
    return {"compression": "snappy", "use_dictionary": repeating, "write_page_checksum": True}
