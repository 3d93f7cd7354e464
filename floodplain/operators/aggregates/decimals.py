"""Exact quotients of decimals, rounded as Spark rounds them."""

import numpy as np
import pyarrow as pa

from floodplain.operators.kernel.segments import TooLarge

DIGITS = 38
"""The most that a decimal has, before or after its point."""
_MORE = 4
"""Digits that an average has more than what it is of."""


def quotients(totals: pa.Array, counts: np.ndarray) -> pa.Array:
    """Each total by its count, with four more digits after the point, halves rounded away from zero; null where the count is 0.

    Raises ``TooLarge`` where one has more than 38 digits.
    """
    scale = min(totals.type.scale + _MORE, DIGITS)
    factor = 10 ** (scale - totals.type.scale)
    there = (counts > 0) & np.asarray(totals.is_valid())
    low, high = _words(totals)
    # What is asked of a long below: twice the scaled total, and the count.
    small = there & (high == low >> 63) & (np.abs(low >> 1) < (1 << 60) // factor) & (counts < 1 << 61)
    found = np.zeros((len(totals), 2), np.int64)
    found[small, 0] = _rounded(low[small] * factor, counts[small])
    found[:, 1] = found[:, 0] >> 63
    for row in np.flatnonzero(there & ~small).tolist():
        found[row] = _split(_exact((int(high[row]) << 64) + (int(low[row]) & _MASK), int(counts[row]), totals.type.scale), row)
    mask = None if there.all() else pa.array(there).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(DIGITS, scale), len(totals), [mask, pa.py_buffer(found)])


_MASK = (1 << 64) - 1


def _words(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper half of each number without its point."""
    words = np.frombuffer(column.buffers()[1] or b"", np.int64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    return words[:, 0], words[:, 1]


def _rounded(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.sign(totals) * ((2 * np.abs(totals) + counts) // (2 * counts))
    return found


def _exact(total: int, count: int, scale: int) -> int:
    """Spark divides to 38 digits after the point and rounds what that gave, so it may round twice."""
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
