"""From the rows of a task to its distinct keys, with the rows of each key side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.keys import hash_columns, normalize_keys
from floodplain.state.keyspace import KeySpace
from floodplain.store.rows.layout import HASH, one_array
from floodplain.store.rows.row_classes import hash_order, refine, starts_of


@dataclass(frozen=True)
class Grouped:
    """Rows by key. Keys ``0 .. len(starts) - 2`` have rows ``starts[i] : starts[i + 1]``; further keys have none."""

    given: pa.Table
    """The rows as they came."""
    order: np.ndarray
    """By key: row i is row ``order[i]`` of those given."""
    starts: np.ndarray
    space: KeySpace
    more: np.ndarray
    """The number of each of the ``more_keys``."""

    @cached_property
    def rows(self) -> pa.Table:
        return self.given.take(pa.array(self.order))

    def column(self, name: str, at: np.ndarray | None = None) -> pa.Array:
        """One column of the rows, or of those numbered ``at``; the others are not sorted for it."""
        order = self.order if at is None else self.order[at]
        return one_array(self.given.column(name)).take(pa.array(order))

    def take(self, places: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these places, or some columns of them."""
        given = self.given if columns is None else self.given.select(list(columns))
        return given.take(pa.array(self.order[places]))


def group(
    rows: pa.Table, key_columns: Mapping[str, str], order_by: Sequence[str] = (), more_keys: pa.Table | None = None
) -> Grouped:
    """``key_columns``: name in the rows → name in tables. ``more_keys``: keys without rows, already under the tables' names.

    Rows of a key keep their order, or come in that of ``order_by``.
    """
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
    space, more = _joined(space, more_keys)
    return Grouped(rows.select(columns), order, np.append(first, len(number)), space, more)


def hashes_of(rows: pa.Table, keys: list[pa.Array]) -> np.ndarray:
    """The key hash of each row; a column with it is believed. ``keys`` are normalised."""
    if HASH in rows.column_names:
        return one_array(rows.column(HASH)).to_numpy(zero_copy_only=False).view(np.uint64)
    return hash_columns(keys) if len(rows) else np.empty(0, np.uint64)


def has_order(type_: pa.DataType) -> bool:
    """Whether ``order_by`` can have a column of this type."""
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


def _joined(space: KeySpace, more: pa.Table | None) -> tuple[KeySpace, np.ndarray]:
    """The space with the keys of ``more`` that it lacks behind its own, and the number of each of ``more``."""
    if more is None or not len(more):
        return space, np.empty(0, np.int64)
    hashes = np.concatenate([space.hashes, hash_columns([one_array(column) for column in more.columns])])
    keys = pa.concat_tables([space.keys, more.cast(space.keys.schema)]).combine_chunks()
    order = hash_order(hashes)
    number = refine(starts_of(hashes[order]), [one_array(column).take(pa.array(order)) for column in keys.columns])
    _, first = np.unique(number, return_index=True)
    kept = np.sort(order[first])
    place = np.empty(len(order), np.int64)
    place[order] = np.searchsorted(kept, order[first])[number]
    return KeySpace(keys.take(pa.array(kept)), hashes[kept]), place[len(space) :]
