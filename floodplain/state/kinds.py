"""The Python classes of Arrow types."""

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal

import pyarrow as pa

FINE_UNITS = ("us", "ns")
"""Units that represent all Python times exactly."""


def plain_kind(type_: pa.DataType) -> type | None:
    """The class whose instances need no conversion: Arrow stores them without loss, or rejects them."""
    types = pa.types
    if types.is_duration(type_):
        return timedelta if type_.unit in FINE_UNITS else None
    kinds: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
        (types.is_integer, int),
        (types.is_float64, float),
        (types.is_string, str),
        (types.is_binary, bytes),
        (types.is_boolean, bool),
        (types.is_decimal, Decimal),
        (types.is_date32, date),
    )
    return next((kind for is_one, kind in kinds if is_one(type_)), None)
