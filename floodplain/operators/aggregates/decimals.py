"""Exact quotients of decimals, rounded as Spark rounds them."""

import numpy as np
import pyarrow as pa

from floodplain.operators.kernel.segments import TooLarge

DIGITS = 38
"""The largest precision of a decimal."""
_MORE = 4
"""Further fractional digits of an average."""


def quotients(totals: pa.Array, counts: np.ndarray) -> pa.Array:
    """Total divided by count, with four more fractional digits, rounded half up; null where the count is 0.

    Raises ``TooLarge`` if a quotient has more than 38 digits.
    """
    scale = min(totals.type.scale + _MORE, DIGITS)
    factor = 10 ** (scale - totals.type.scale)
    present = (counts > 0) & np.asarray(totals.is_valid())
    low, high = _words(totals)
    # Below, a long must hold twice the scaled total plus the count.
    small = present & (high == low >> 63) & (np.abs(low >> 1) < (1 << 60) // factor) & (counts < 1 << 61)
    words = np.zeros((len(totals), 2), np.int64)
    words[small, 0] = _rounded(low[small] * factor, counts[small])
    words[:, 1] = words[:, 0] >> 63
    for row in np.flatnonzero(present & ~small).tolist():
        words[row] = _split(_exact((int(high[row]) << 64) + (int(low[row]) & _MASK), int(counts[row]), totals.type.scale), row)
    mask = None if present.all() else pa.array(present).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(DIGITS, scale), len(totals), [mask, pa.py_buffer(words)])


_MASK = (1 << 64) - 1


def _words(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high word of each unscaled number."""
    words = np.frombuffer(column.buffers()[1] or b"", np.int64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    return words[:, 0], words[:, 1]


def _rounded(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.sign(totals) * ((2 * np.abs(totals) + counts) // (2 * counts))
    return rounded


def _exact(total: int, count: int, scale: int) -> int:
    """As in Spark, which rounds the quotient to 38 fractional digits, and then again to the scale of the result."""
    divided = _half_up(abs(total) * 10 ** (DIGITS - scale), count)
    rounded = _half_up(divided, 10 ** (DIGITS - min(scale + _MORE, DIGITS)))
    return -rounded if total < 0 else rounded


def _half_up(number: int, by: int) -> int:
    return (2 * number + by) // (2 * by)


def _split(number: int, row: int) -> tuple[int, int]:
    if abs(number) >= 10**DIGITS:
        raise TooLarge(f"an average has more than {DIGITS} digits: cast to fewer before, or average a double", row)
    low = number & _MASK
    return low - (1 << 64) if low >> 63 else low, number >> 64
