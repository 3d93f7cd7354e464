"""Hash collisions among lookup keys: a hash is searched once, then its rows are matched to the keys that share it."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from floodplain.equality import equality_classes
from floodplain.store.rows.row_classes import starts_of
from floodplain.store.run.reader import Hits
from floodplain.store.run.search import expand

_FEW = 4
"""Pairs for each row and lookup key that are made and compared rather than sorted."""


def first_of_each(hashes: np.ndarray, subs: np.ndarray | None) -> np.ndarray:
    """The first lookup key of each hash, or of each hash and sub-key. Requires: ascending ones."""
    return np.flatnonzero(starts_of(hashes) if subs is None else starts_of(hashes, subs))


def spread(
    hits: Hits,
    first: np.ndarray,
    lookup_keys: int,
    stored: Callable[[np.ndarray], Sequence[pa.Array]],
    wanted_columns: Callable[[np.ndarray], Sequence[pa.Array]],
) -> Hits:
    """Hits of the lookup keys ``first`` as hits of all lookup keys that share their hashes, at least of those with the same key.

    ``stored`` gives the key columns at rows of the chunk, ``wanted_columns`` those at lookup keys.
    """
    ends = np.append(first[1:], lookup_keys)
    low, high = first[hits.key_number], ends[hits.key_number]
    if (high - low).sum() <= _FEW * (len(hits.row) + lookup_keys):
        which, key_number = expand(low, high)
        return Hits(hits.chunk, key_number, hits.row[which])
    wanted = np.unique(hits.key_number)
    _, left = expand(first[wanted], ends[wanted])
    group = np.searchsorted(first, left, "right") - 1
    columns = [pa.concat_arrays(pair) for pair in zip(wanted_columns(left), stored(hits.row), strict=True)]
    class_ = equality_classes(columns)
    order = np.lexsort((class_, np.concatenate([group, hits.key_number])))
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(starts_of(np.concatenate([group, hits.key_number])[order], class_[order])) - 1
    ours, theirs = number[: len(left)], number[len(left) :]
    by_number = np.argsort(ours, kind="stable")
    which, place = expand(*(np.searchsorted(ours[by_number], theirs, side) for side in ("left", "right")))
    return Hits(hits.chunk, left[by_number][place], hits.row[which])
