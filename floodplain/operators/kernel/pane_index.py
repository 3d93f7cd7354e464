"""Entries of keys known by a number, such as the panes of a key: put in order, put together, found again."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from floodplain.store.rows.row_classes import starts_of

Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]
"""The number of a key, and a number of its own, of each entry."""


def order_of(pairs: Pairs) -> np.ndarray | None:
    """The stable order by key and number; None if they are in order."""
    key, number = pairs
    if not len(key):
        return None
    low, high = int(number.min()), int(number.max())
    bits, place = (high - low).bit_length(), (len(key) - 1).bit_length()
    if bits + int(key.max()).bit_length() > 63:
        order = np.lexsort((number, key))
        return None if (order == np.arange(len(order))).all() else order
    packed = (key << bits) | (number - low)
    if (packed[1:] >= packed[:-1]).all():
        return None
    if int(packed.max()).bit_length() + place > 63:
        return np.argsort(packed, kind="stable")
    packed = (packed << place) | np.arange(len(packed))
    packed.sort()
    found: np.ndarray = packed & ((1 << place) - 1)
    return found


def union(sources: Sequence[Pairs]) -> tuple[Pairs, list[np.ndarray]]:
    """Each pair once, in order; and for each source the place of its pairs."""
    key, number = (np.concatenate([source[side] for source in sources]) for side in (0, 1))
    order = order_of((key, number))
    if order is not None:
        key, number = key[order], number[order]
    first = starts_of(key, number)
    place = np.cumsum(first) - 1
    if order is not None:
        back = np.empty(len(order), np.int64)
        back[order] = place
        place = back
    ends = np.cumsum([len(source[0]) for source in sources])
    return (key[first], number[first]), np.split(place, ends[:-1])


def find(pairs: Pairs, wanted: Pairs) -> np.ndarray:
    """Where these pairs stand, or would stand, among others. Requires: ``pairs`` are in order, and not empty."""
    low = min(int(pairs[1].min()), int(wanted[1].min(initial=0)))
    bits = (max(int(pairs[1].max()), int(wanted[1].max(initial=0))) - low).bit_length()
    if bits + int(pairs[0].max()).bit_length() > 62:
        _, (place, sought) = union([pairs, wanted])
        return np.searchsorted(place, sought)
    packed, lookup_keys = ((key << bits) | (number - low) for key, number in (pairs, wanted))
    return np.searchsorted(packed, lookup_keys)
