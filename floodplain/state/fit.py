"""Whether a Python value fits an Arrow type, where that can be told without making an array of it."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that does not fit."""


def surely_fits(type_: pa.DataType) -> Callable[[Any], bool]:
    """True: the value can be stored. False: only Arrow can tell."""
    if pa.types.is_signed_integer(type_):
        bound = 1 << (type_.bit_width - 1)
        return lambda value: value is None or (type(value) is int and -bound <= value < bound)
    if pa.types.is_string(type_):
        return lambda value: value is None or (type(value) is str and value.isascii())
    if pa.types.is_float64(type_):
        return lambda value: value is None or type(value) is float
    if pa.types.is_boolean(type_):
        return lambda value: value is None or type(value) is bool
    return lambda value: value is None
