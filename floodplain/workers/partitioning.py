"""Splits rows by the slots that own their keys."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from floodplain.keys import normalize_keys
from floodplain.operators.kernel.key_grouping import hashes_of
from floodplain.store.rows.layout import HASH
from floodplain.versions.records.assignment import order_by_slot, slot_of_each_group, slots_of
from floodplain.versions.records.edit import GroupRanges


class Partitioner:
    """By the keys of an operator and an assignment."""

    def __init__(self, keys: Sequence[str], slots: tuple[GroupRanges, ...], key_groups: int) -> None:
        self._keys, self._slots = tuple(keys), len(slots)
        self._slot_of_group = slot_of_each_group(slots, key_groups)

    def hashed(self, rows: pa.Table) -> pa.Table:
        """The rows with the hash of their key, if they do not have it."""
        if HASH in rows.column_names:
            return rows
        hashes = hashes_of(rows, normalize_keys([rows.column(name) for name in self._keys]))
        return rows.append_column(HASH, pa.array(hashes.view(np.int64)))

    def split(self, rows: pa.Table) -> Iterable[tuple[int, pa.Table]]:
        """The rows of each slot that has some, in their order. A hash column is trusted."""
        keys = normalize_keys([rows.column(name) for name in self._keys])
        return by_slot(rows, slots_of(hashes_of(rows, keys), self._slot_of_group), self._slots)


def by_slot(rows: pa.Table, slot_of_row: np.ndarray, slots: int) -> Iterable[tuple[int, pa.Table]]:
    """The rows of each slot that has some, in their order."""
    if not len(rows):
        return
    first = int(slot_of_row[0])
    if slots == 1 or (slot_of_row == first).all():
        yield first, rows
        return
    order, bounds = order_by_slot(slot_of_row, slots)
    rows = rows.take(pa.array(order))
    for slot in range(slots):
        if bounds[slot] < bounds[slot + 1]:
            yield slot, rows.slice(bounds[slot], bounds[slot + 1] - bounds[slot])
