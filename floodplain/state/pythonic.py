"""Converts Arrow columns to lists of Python values."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

_DAY_US = 86_400_000_000
_FIRST_US, _LAST_US = -62_135_596_800_000_000 + _DAY_US, 253_402_300_799_999_999 - _DAY_US
"""The range of ``datetime``, years 1 to 9999, in any zone."""


def to_python(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As ``column.to_pylist()``, several times faster for timestamps."""
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.unit == "ns":
        return column.to_pylist()
    micros = column.cast(pa.timestamp("us"))
    bounds = pa.compute.min_max(micros.cast(pa.int64())).as_py()
    if bounds["min"] is None or bounds["min"] < _FIRST_US or bounds["max"] > _LAST_US:
        return column.to_pylist()
    whole = micros.combine_chunks() if isinstance(micros, pa.ChunkedArray) else micros
    times = whole.to_numpy(zero_copy_only=False)
    if kind.tz is None:
        plain: list[Any] = times.astype(np.dtype(object)).tolist()
        return plain
    # Adding a timedelta to a datetime with a zone takes a tenth of the time of setting the zone of each.
    zone, spans = pa.lib.string_to_tzinfo(kind.tz), times.view("m8[us]").tolist()
    epoch = datetime(1970, 1, 1, tzinfo=zone if kind.tz == "UTC" else UTC)
    aware = [span if span is None else epoch + span for span in spans]
    return aware if kind.tz == "UTC" else [time if time is None else time.astimezone(zone) for time in aware]
