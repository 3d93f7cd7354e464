"""Numbers rows by equality: equal rows get the same number, in the time of a sort.

Pairs of rows are compared by ``keys.columns_equal``. Where any of many rows may equal any other, comparing them pair by pair
takes the square of their number: that of keys that share a hash is up to whoever makes the keys.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.keys import Column, normalize_keys


def equality_classes(columns: Sequence[Column]) -> np.ndarray:
    """A number for each row: two have the same exactly if all columns are equal by grouping equality. In no particular order.

    Requires: at least one column, all of one length.
    """
    numbers = _numbers(normalize_keys(columns[:1])[0])
    for column in columns[1:]:
        numbers = _both(numbers, _numbers(normalize_keys([column])[0]))
    return numbers


def _both(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A number for each pair of numbers."""
    order = np.lexsort((right, left))
    first = np.ones(len(order), bool)
    first[1:] = (left[order][1:] != left[order][:-1]) | (right[order][1:] != right[order][:-1])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(first) - 1
    return numbers


def _numbers(column: pa.Array) -> np.ndarray:
    """Requires: a column in the form that ``normalize_keys`` gives."""
    if pa.types.is_nested(column.type):
        numbers = _of_struct(column) if pa.types.is_struct(column.type) else _of_lists(column)
    else:
        numbers = _of_plain(column)
    if not column.null_count:
        return numbers
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, numbers + 1, 0)


def _of_plain(column: pa.Array) -> np.ndarray:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    if pa.types.is_floating(column.type):
        column = column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width])
    try:
        return pc.rank(column, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    except pa.ArrowNotImplementedError:  # a type without an order
        return column.dictionary_encode().indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _of_struct(column: pa.StructArray) -> np.ndarray:
    numbers = np.zeros(len(column), np.int64)
    for field in column.flatten():
        numbers = _both(numbers, _numbers(normalize_keys([field])[0]))
    return numbers


def _of_lists(column: pa.Array) -> np.ndarray:
    """The numbers of the elements of a list, one behind the other, are a text that stands for it. A map is a list of pairs."""
    if pa.types.is_map(column.type):
        pairs = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        column = pa.Array.from_buffers(
            pa.list_(pairs.type), len(column), column.buffers()[:2], offset=column.offset, children=[pairs]
        )
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = np.diff(column.offsets.to_numpy().astype(np.int64))
    # Arrow drops the elements of lists that are null, too.
    ends = np.append(0, np.cumsum(np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0))) * 8
    letters = _numbers(normalize_keys([column.flatten()])[0]).astype("<i8")
    texts = [None, pa.py_buffer(ends.astype("<i8")), pa.py_buffer(letters)]
    return _of_plain(pa.Array.from_buffers(pa.large_binary(), len(column), texts))
