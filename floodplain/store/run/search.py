"""Vectorised binary search: many numbers at once."""

import numpy as np


def expand(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All (i, x) with ``low[i] <= x < high[i]``, by i and then x."""
    size = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(low)), size)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(size) - size, size) + np.repeat(low, size)


def narrow(present: np.ndarray, low: np.ndarray, high: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Within each ``low[i] .. high[i]``, where ``present`` ascends, the rows equal to ``wanted[i]``; all search in step."""

    def bound(strictly: bool) -> np.ndarray:
        bottom, top = low.copy(), np.maximum(high, low)
        while (open_ := bottom < top).any():
            middle = (bottom + top) // 2
            value = present[np.minimum(middle, len(present) - 1)]
            below = open_ & ((value <= wanted) if strictly else (value < wanted))
            bottom = np.where(below, middle + 1, bottom)
            top = np.where(open_ & ~below, middle, top)
        return bottom

    return bound(strictly=False), bound(strictly=True)
