"""Groups the rows of a task by key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.keys import hash_columns, key_group, normalize_keys
from floodplain.state.keyspace import KeySpace
from floodplain.store.rows.layout import HASH, one_array
from floodplain.store.rows.row_classes import hash_order, refine, starts_of


@dataclass(frozen=True)
class Grouped:
    """Rows by key. Keys ``0 .. len(starts) - 2`` have rows ``starts[i] : starts[i + 1]``; further keys have none."""

    input: pa.Table
    """The rows in input order."""
    order: np.ndarray
    """The order by key: row i is row ``order[i]`` of the input."""
    starts: np.ndarray
    space: KeySpace
    more: np.ndarray
    """The key number of each of the keys of ``joined``; −1 if it is not in this part."""

    @cached_property
    def rows(self) -> pa.Table:
        return self.input.take(pa.array(self.order))

    def column(self, name: str, at: np.ndarray | None = None) -> pa.Array:
        """One column of the rows, or of the rows numbered ``at``; other columns are not sorted."""
        order = self.order if at is None else self.order[at]
        return one_array(self.input.column(name)).take(pa.array(order))

    def joined(self, more_keys: pa.Table) -> "Grouped":
        """With further keys, that may have no rows, such as those with due timers. They have the column names of tables."""
        space, more = _joined(self.space, more_keys)
        return Grouped(self.input, self.order, self.starts, space, more)

    def part(self, numbers: np.ndarray) -> "Grouped":
        """These keys alone, with their rows, in the same order. Requires: ``numbers`` ascend."""
        with_rows = numbers[: np.searchsorted(numbers, len(self.starts) - 1)]
        sizes = np.diff(self.starts)[with_rows]
        starts = np.append(0, np.cumsum(sizes))
        places = np.repeat(self.starts[with_rows] - starts[:-1], sizes) + np.arange(starts[-1])
        position = np.full(len(self.space), -1)
        position[numbers] = np.arange(len(numbers))
        space = KeySpace(self.space.keys.take(pa.array(numbers)), self.space.hashes[numbers])
        return Grouped(self.input, self.order[places], starts, space, position[self.more])

    def rows_of_group(self, key_groups: int) -> np.ndarray:
        """How many rows each key group has."""
        groups = key_group(self.space.hashes[: len(self.starts) - 1], key_groups)
        return np.bincount(groups, np.diff(self.starts), key_groups).astype(np.int64)

    def take(self, positions: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these positions, or only some columns of them."""
        selected = self.input if columns is None else self.input.select(list(columns))
        return selected.take(pa.array(self.order[positions]))


def group(rows: pa.Table, key_columns: Mapping[str, str], order_by: Sequence[str] = ()) -> Grouped:
    """``key_columns``: name in the rows → name in tables. Rows of a key are sorted by ``order_by``, or keep their order."""
    keys = normalize_keys([rows.column(name) for name in key_columns])
    hashes = hashes_of(rows, keys)
    order = _order(rows, hashes, order_by)
    number = refine(starts_of(hashes[order]), keys, order)
    if (number[1:] < number[:-1]).any():
        again = np.argsort(number, kind="stable")
        order, number = order[again], number[again]
    first = np.flatnonzero(starts_of(number))
    at = pa.array(order[first])
    space = KeySpace(
        pa.table({name: key.take(at) for name, key in zip(key_columns.values(), keys, strict=True)}), hashes[order[first]]
    )
    columns = [name for name in rows.column_names if name != HASH]
    return Grouped(rows.select(columns), order, np.append(first, len(number)), space, np.empty(0, np.int64))


def hashes_of(rows: pa.Table, keys: list[pa.Array]) -> np.ndarray:
    """The key hash of each row; a hash column is trusted. Requires: ``keys`` are normalised."""
    if HASH in rows.column_names:
        return one_array(rows.column(HASH)).to_numpy(zero_copy_only=False).view(np.uint64)
    return hash_columns(keys) if len(rows) else np.empty(0, np.uint64)


def has_order(type_: pa.DataType) -> bool:
    """Whether ``order_by`` supports a column of this type."""
    try:
        pc.rank(pa.nulls(0, type_), tiebreaker="dense")
    except pa.ArrowNotImplementedError:
        return False
    return True


def _order(rows: pa.Table, hashes: np.ndarray, order_by: Sequence[str]) -> np.ndarray:
    if not order_by:
        return hash_order(hashes)
    ranks = [pc.rank(one_array(rows.column(name)), tiebreaker="dense").to_numpy() for name in reversed(order_by)]
    return np.lexsort([*ranks, hashes])


def _joined(space: KeySpace, more: pa.Table) -> tuple[KeySpace, np.ndarray]:
    """The key space with new keys of ``more`` appended, and the key number of each of ``more``."""
    if not len(more):
        return space, np.empty(0, np.int64)
    hashes = np.concatenate([space.hashes, hash_columns([one_array(column) for column in more.columns])])
    keys = pa.concat_tables([space.keys, more.cast(space.keys.schema)]).combine_chunks()
    order = hash_order(hashes)
    number = refine(starts_of(hashes[order]), [one_array(column).take(pa.array(order)) for column in keys.columns])
    _, first = np.unique(number, return_index=True)
    kept = np.sort(order[first])
    position = np.empty(len(order), np.int64)
    position[order] = np.searchsorted(kept, order[first])[number]
    return KeySpace(keys.take(pa.array(kept)), hashes[kept]), position[len(space) :]
