"""Matching: pairs of rows of two sides with the same key and a time difference within bounds."""

from dataclasses import dataclass

import numpy as np

_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Ranges:
    """The partners of each row, as a range: ``order[first[i] : last[i]]``."""

    order: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @property
    def matched(self) -> np.ndarray:
        """Per row, whether it has a partner."""
        return self.last > self.first

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The row and the partner of each pair."""
        counts = self.last - self.first
        row = np.repeat(np.arange(len(counts)), counts)
        before = np.cumsum(counts) - counts
        return row, self.order[np.arange(len(row)) + np.repeat(self.first - before, counts)]


def partners(of: np.ndarray, on: np.ndarray, other_of: np.ndarray, other_on: np.ndarray, low: int, high: int) -> Ranges:
    """The rows of the other side with the same key and ``on + low <= other_on <= on + high``."""
    if not len(of) or not len(other_of):
        nothing = np.zeros(len(of), np.int64)
        return Ranges(np.arange(len(other_of)), nothing, nothing)
    base, top = int(other_on.min()), int(other_on.max())
    place, since, until = other_on - base, on + (low - base), on + (high + 1 - base)
    width = top - base + 2
    if width * (int(max(of.max(), other_of.max())) + 1) >= _MOST:
        times = np.unique(other_on)
        place, since, until = (np.searchsorted(times, wanted) for wanted in (other_on, on + low, on + high + 1))
        width = len(times) + 1
    code = other_of * width + place
    order = np.argsort(code, kind="stable")
    code, start = code[order], of * width
    first = np.searchsorted(code, start + np.clip(since, 0, width - 1))
    last = np.searchsorted(code, start + np.clip(until, 0, width - 1))
    return Ranges(order, first, np.maximum(first, last))


def newest_before(of: np.ndarray, on: np.ndarray, other_of: np.ndarray, other_on: np.ndarray) -> np.ndarray:
    """For each row the newest row of the other side with its key that is not later, −1 if there is none.

    Requires: the other side is sorted by key and time; of several rows at one time the last is taken.
    """
    if not len(other_of):
        return np.full(len(of), -1)
    ranges = partners(of, on, other_of, other_on, int(other_on.min()) - int(on.max(initial=0)), 0)
    return np.where(ranges.matched, ranges.order[np.maximum(ranges.last - 1, 0)], -1)
