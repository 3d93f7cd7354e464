"""Full validation of Arrow columns, with a fast path for ASCII strings."""

import numpy as np
import pyarrow as pa


def validate(column: pa.Array) -> None:
    """As ``column.validate(full=True)``: raises ``pa.ArrowInvalid`` for lengths, offsets, numbers or texts that cannot be."""
    _plain(column).validate(full=True)


def validate_batch(batch: pa.RecordBatch) -> None:
    """As ``batch.validate(full=True)``."""
    batch.validate()
    for column in batch.columns:
        validate(column)


def _plain(column: pa.Array) -> pa.Array:
    """Texts of nothing but ASCII as bytes, of which Arrow checks the offsets only: any cut through ASCII is UTF-8."""
    if not pa.types.is_string(column.type) or (data := column.buffers()[2]) is None or not _is_ascii(data):
        return column
    return pa.Array.from_buffers(pa.binary(), len(column), column.buffers(), offset=column.offset)


def _is_ascii(data: pa.Buffer) -> bool:
    return np.frombuffer(data, np.int8).min(initial=0) >= 0
