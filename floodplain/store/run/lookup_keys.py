"""The keys of a multi-get in their stored form, and the runs that it reads."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.keys import group_bounds, key_group
from floodplain.store.run.reader import RunReader
from floodplain.versions.records.schema import TableSchema


@dataclass(frozen=True, slots=True)
class LookupKeys:
    """The keys of a multi-get, in the form in which runs store them."""

    keys: list[pa.Array]
    hashes: np.ndarray
    subs: np.ndarray | None = None
    """Point lookups of exactly these sub-keys; None: all rows of each key."""
    subkeys: tuple[pa.Array, ...] = ()

    def order(self) -> np.ndarray | None:
        """The order by hash and sub-key; None if they are sorted already."""
        later, same = self.hashes[1:] > self.hashes[:-1], self.hashes[1:] == self.hashes[:-1]
        if self.subs is None:
            return None if (later | same).all() else np.argsort(self.hashes)
        in_order = later | (same & (self.subs[1:] >= self.subs[:-1]))
        return None if in_order.all() else np.lexsort((self.subs, self.hashes))

    def take(self, order: np.ndarray) -> "LookupKeys":
        at = pa.array(order)
        subs = None if self.subs is None else self.subs[order]
        return LookupKeys(
            [key.take(at) for key in self.keys], self.hashes[order], subs, tuple(key.take(at) for key in self.subkeys)
        )

    def slice(self, start: int, stop: int) -> "LookupKeys":
        keys, subkeys = ([key.slice(start, stop - start) for key in columns] for columns in (self.keys, self.subkeys))
        return LookupKeys(keys, self.hashes[start:stop], None if self.subs is None else self.subs[start:stop], tuple(subkeys))


@dataclass(frozen=True, slots=True)
class Source:
    """An open run, with the schema it was written under."""

    reader: RunReader
    schema: TableSchema
    member: np.ndarray
    """Per key group, whether the manifest still reads the run for it."""


def candidates(source: Source, lookup_keys: LookupKeys, pending: np.ndarray) -> np.ndarray:
    """The pending lookup keys that this run may contain, in hash order: by key group, then by its membership filter."""
    wanted = _of_members(source.member, lookup_keys, pending)
    if source.reader.mapped:
        return wanted
    return wanted[source.reader.may_contain(lookup_keys.hashes[wanted])]


def _of_members(member: np.ndarray, lookup_keys: LookupKeys, pending: np.ndarray) -> np.ndarray:
    """The pending lookup keys in these key groups. Mostly the groups are one range, and so are their keys."""
    groups = np.flatnonzero(member)
    if not len(groups):
        return pending[:0]
    low, high = int(groups[0]), int(groups[-1]) + 1
    first, last = group_bounds(low, high, len(member))
    begin, end = (
        np.searchsorted(lookup_keys.hashes, np.uint64(first), "left"),
        np.searchsorted(lookup_keys.hashes, np.uint64(last), "right"),
    )
    near = pending[slice(*np.searchsorted(pending, (begin, end)))]
    if len(groups) == high - low:
        return near
    return near[member[key_group(lookup_keys.hashes[near], len(member))]]
