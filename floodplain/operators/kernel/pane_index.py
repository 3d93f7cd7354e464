"""Sorting, union and lookup of (key, number) pairs, such as the panes of keys."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from floodplain.store.rows.row_classes import starts_of

Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]
"""The key number and the own number of each entry, such as the start of a pane."""


def order_of(pairs: Pairs) -> np.ndarray | None:
    """The stable order by key and number; None if the pairs are sorted."""
    key, number = pairs
    if not len(key):
        return None
    low, high = int(number.min()), int(number.max())
    bits, row_bits = (high - low).bit_length(), (len(key) - 1).bit_length()
    if bits + int(key.max()).bit_length() > 63:
        order = np.lexsort((number, key))
        return None if (order == np.arange(len(order))).all() else order
    packed = (key << bits) | (number - low)
    if (packed[1:] >= packed[:-1]).all():
        return None
    if int(packed.max()).bit_length() + row_bits > 63:
        return np.argsort(packed, kind="stable")
    packed = (packed << row_bits) | np.arange(len(packed))
    packed.sort()
    sorted_rows: np.ndarray = packed & ((1 << row_bits) - 1)
    return sorted_rows


def union(sources: Sequence[Pairs]) -> tuple[Pairs, list[np.ndarray]]:
    """The distinct pairs, sorted; and for each source the positions of its pairs among them."""
    key, number = (np.concatenate([source[side] for source in sources]) for side in (0, 1))
    order = order_of((key, number))
    if order is not None:
        key, number = key[order], number[order]
    first = starts_of(key, number)
    position = np.cumsum(first) - 1
    if order is not None:
        back = np.empty(len(order), np.int64)
        back[order] = position
        position = back
    ends = np.cumsum([len(source[0]) for source in sources])
    return (key[first], number[first]), np.split(position, ends[:-1])


def find(pairs: Pairs, wanted: Pairs) -> np.ndarray:
    """The positions of ``wanted`` in ``pairs``, or where they would be inserted. Requires: ``pairs`` are sorted and not empty."""
    low = min(int(pairs[1].min()), int(wanted[1].min(initial=0)))
    bits = (max(int(pairs[1].max()), int(wanted[1].max(initial=0))) - low).bit_length()
    if bits + int(pairs[0].max()).bit_length() > 62:
        _, (position, sought) = union([pairs, wanted])
        return np.searchsorted(position, sought)
    packed, lookup_keys = ((key << bits) | (number - low) for key, number in (pairs, wanted))
    return np.searchsorted(packed, lookup_keys)
