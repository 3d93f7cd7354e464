"""Vectorised reductions of columns that are sorted by group."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.keys import hash_columns, normalize_keys
from floodplain.store.rows.row_classes import starts_of

_LEAST = np.iinfo(np.int64).min
_REST = np.int64(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Groups:
    """Group i has the rows ``starts[i] : starts[i + 1]``, the last one those up to ``rows``. No group is empty."""

    starts: np.ndarray
    rows: int

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.diff(np.append(self.starts, self.rows))

    @cached_property
    def of_row(self) -> np.ndarray:
        """The group of each row."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def any(self, mask: np.ndarray) -> np.ndarray:
        """Per group, whether any of its rows is marked."""
        return np.logical_or.reduceat(mask, self.starts) if len(self) else np.empty(0, bool)

    def reduced(self, function: np.ufunc, values: np.ndarray) -> np.ndarray:
        """``function`` (such as ``np.add``) folded over the values of each group."""
        result: np.ndarray = function.reduceat(values, self.starts) if len(self) else values[:0]
        return result

    def extreme(self, keys: Sequence[np.ndarray], valid: np.ndarray, greatest: bool) -> np.ndarray:
        """Per group the valid row with the least (or greatest) keys, the first key most significant; -1 if no row is valid."""
        candidates = valid
        for key in keys:
            candidates = self._best(key, candidates, greatest)
        return self._first(np.flatnonzero(candidates))

    def extreme_by(self, by: np.ndarray, valid: np.ndarray, values: Sequence[pa.Array], greatest: bool) -> np.ndarray:
        """As ``extreme`` by ``by``; values break ties, the first one most significant. A null is less than any value.

        A value column is read only for rows that are tied in the columns before it.
        """
        hits = np.flatnonzero(self._best(by, valid, greatest))
        for value in values:
            alike = groups_of(self.of_row[hits])
            if len(alike) == len(hits):
                break
            several = alike.sizes > 1
            tied = slice(None) if several.all() else np.flatnonzero(np.repeat(several, alike.sizes))
            kept = np.ones(len(hits), bool)
            kept[tied] = groups_of(alike.of_row[tied])._extremes(value.take(pa.array(hits[tied])), greatest)
            hits = hits[kept]
        return self._first(hits)

    def _extremes(self, value: pa.Array, greatest: bool) -> np.ndarray:
        """Per row, whether its value is the least (or greatest) of its group."""
        candidates = np.ones(len(value), bool)
        if value.null_count:
            candidates = self._best(valid(value).astype(np.int64), candidates, greatest)
        return self._best(codes(value), candidates, greatest)

    def _best(self, key: np.ndarray, valid: np.ndarray, greatest: bool) -> np.ndarray:
        """Per row, whether it is valid and its key is the least (or greatest) of its group."""
        worst, better = (_LEAST, np.maximum) if greatest else (_REST, np.minimum)
        best = self.reduced(better, key if valid.all() else np.where(valid, key, worst))
        return valid & (key == np.repeat(best, self.sizes))

    def _first(self, hits: np.ndarray) -> np.ndarray:
        """Per group the first of these rows; -1 if it has none."""
        rows, groups = np.full(len(self), -1), self.of_row[hits]
        first = starts_of(groups)
        rows[groups[first]] = hits[first]
        return rows


def groups_of(*numbers: np.ndarray) -> Groups:
    """Groups of equal numbers. Requires: sorted."""
    return Groups(np.flatnonzero(starts_of(*numbers)), len(numbers[0]))


def valid(column: pa.Array) -> np.ndarray:
    """Per row, whether it is not null."""
    return np.array(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else np.ones(len(column), bool)


def filled(column: pa.Array, value: object) -> np.ndarray:
    """The values of a column of numbers, with ``value`` for null."""
    return (column.fill_null(value) if column.null_count else column).to_numpy(zero_copy_only=False)


def at(column: pa.Array, rows: np.ndarray) -> pa.Array:
    """The values at these rows, null for -1."""
    return column.take(pa.array(rows, mask=rows < 0))


def codes(column: pa.Array) -> np.ndarray:
    """A number per row in the order of its values: null first, NaN last. Comparable within this column only.

    Types without an order are ordered by hash, so that ties are broken independently of the input order.
    """
    type_ = column.type
    present = valid(column)
    if pa.types.is_floating(type_):
        (plain,) = normalize_keys([column.cast(pa.float64())])
        bits = filled(plain, 0.0).view(np.int64)
        numbers = bits ^ ((bits >> 63) & _REST)
    elif pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        numbers = filled(column.cast(pa.int64()), 0)
    elif pa.types.is_temporal(type_) and type_.bit_width == 64:
        numbers = filled(column.view(pa.int64()), 0)
    elif pa.types.is_temporal(type_):
        numbers = filled(column.view(pa.int32()), 0).astype(np.int64)
    elif pa.types.is_nested(type_):
        numbers = hash_columns([column]).view(np.int64)
    else:
        coded = column.dictionary_encode()
        ranks = pc.rank(coded.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
        numbers = ranks[filled(coded.indices, 0)] if len(ranks) else np.zeros(len(column), np.int64)
    return numbers if present.all() else np.where(present, numbers, _LEAST)


def flattened(lists: pa.Array, groups: Groups) -> tuple[np.ndarray, pa.Array]:
    """The elements of all lists, and the group of each; a null list has none."""
    sizes = filled(pc.list_value_length(lists), 0)
    return np.repeat(groups.of_row, sizes), pc.list_flatten(lists)


def listed(owner: np.ndarray, elements: pa.Array, count: int) -> pa.Array:
    """One list per owner ``0 .. count - 1`` of its elements. Requires: ascending owners."""
    offsets = np.searchsorted(owner, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, type=list_type(elements.type))


def list_type(element: pa.DataType) -> pa.DataType:
    """The Arrow type of a Spark array."""
    return pa.list_(pa.field("element", element))


class TooLarge(BadInput):
    """A result overflows its type."""

    def __init__(self, text: str, group: int) -> None:
        super().__init__(text)
        self.group = group
        """The number of its group; ``groups_are`` translates it to a key number."""


@contextmanager
def groups_are(numbers: np.ndarray | None, what: str = "") -> Iterator[None]:
    """Translates the group of a ``TooLarge`` raised within to ``numbers[group]``, and prefixes its message with ``what``."""
    try:
        yield
    except TooLarge as error:
        group = error.group if numbers is None else int(numbers[error.group])
        raise TooLarge(f"{what}{error}", group) from None
