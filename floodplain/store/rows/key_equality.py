"""Compares keys whose hashes are equal. It runs for every row of a lookup, and nearly always they are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.keys import columns_equal
from floodplain.store.rows import layout


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A key column, prepared for many comparisons."""

    values: pa.Array
    records: np.ndarray | None
    """The same as records of one width, not copied; None where they have none, or where equal ones may differ in their bytes."""

    @classmethod
    def of(cls, values: pa.Array) -> "KeyColumn":
        return cls(values, _records(values))


def same_keys(left: Sequence[KeyColumn], left_rows: np.ndarray, right: Sequence[KeyColumn], right_rows: np.ndarray) -> bool:
    """Whether these rows of the one are, pair by pair, equal to those rows of the other. Requires: columns of the same types."""
    return all(_same(one, left_rows, other, right_rows) for one, other in zip(left, right, strict=True))


def _same(left: KeyColumn, left_rows: np.ndarray, right: KeyColumn, right_rows: np.ndarray) -> bool:
    if left.records is None or right.records is None:
        at_rows = [layout.at_rows(left.values, left_rows)], [layout.at_rows(right.values, right_rows)]
        return bool(columns_equal(*at_rows).all())
    if left.records.dtype != right.records.dtype:
        return not len(left_rows)
    return np.array_equal(_words(_at(left.records, left_rows)), _words(_at(right.records, right_rows)))


def _at(records: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if len(rows) == len(records) and layout.are_neighbours(rows):
        return records
    return records.take(rows)


def _records(values: pa.Array) -> np.ndarray | None:
    if values.null_count or not len(values):
        return None
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
        width = int(offsets[1] - offsets[0])
        if not width or (np.diff(offsets) != width).any():
            return None
        return np.ndarray(len(values), f"V{width}", values.buffers()[2], int(offsets[0]))
    return None if pa.types.is_floating(values.type) else layout.fixed(values)


def _words(records: np.ndarray) -> np.ndarray:
    """The bytes of records as the widest numbers that fit in one."""
    width = records.dtype.itemsize
    return records.view(f"u{min(8, width & -width)}")
