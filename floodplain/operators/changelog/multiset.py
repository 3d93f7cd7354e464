"""A multiset of rows per key: each distinct row with its multiplicity, so that rows can be retracted."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.keys import check_key_type, hash_columns, normalize_keys
from floodplain.operators.kernel.batch import KEY_OF, Batch
from floodplain.state.descriptors import Map
from floodplain.store.rows.row_classes import refine, starts_of


def multiset_state(what: str, fields: Iterable[pa.Field], *, whole: bool = False) -> Map:
    """A state for a multiset of rows with these columns. Raises if they cannot be compared. ``whole``: as of a ``Map``."""
    kept = [pa.field(field.name, field.type) for field in fields]
    for field in kept:
        try:
            check_key_type(field.name, field.type)
        except SchemaMismatch as error:
            raise BadInput(
                f"{what}: column {field.name} is {field.type}, which has no equality, so its rows cannot be retracted: "
                "drop it with select, or cast it"
            ) from error
    return Map(pa.struct(kept), "long", whole=whole)


@dataclass(frozen=True)
class Multiset:
    """All distinct rows of the keys that have changes, by key and then in a fixed order."""

    owner: np.ndarray
    """The key number of each row."""
    values: pa.StructArray
    before: np.ndarray
    """Multiplicities as the epoch began."""
    now: np.ndarray

    @staticmethod
    def apply(batch: Batch, state: str, owner: np.ndarray, rows: pa.StructArray, weights: np.ndarray) -> "Multiset":
        """Applies changes to the multiset in ``state`` and writes it: rows, the key number of each, and its weight.

        Raises ``BadInput`` where a row is retracted that is not in the multiset.
        """
        entries = batch.entries(state)
        stored = len(entries)
        owner = np.concatenate([entries[KEY_OF].to_numpy(), owner])
        (values,) = normalize_keys([pa.chunked_array([*entries["key"].chunks, rows], rows.type)])
        counts = np.concatenate([entries["value"].to_numpy(), weights])
        order, first = _alike(owner, values)
        at = order[first]
        now, before = (
            np.add.reduceat(each, first) if len(first) else each
            for each in (counts[order], np.where(order < stored, counts[order], 0))
        )
        applied = Multiset(owner[at], values.take(pa.array(at)), before, now)
        applied._check(batch)
        applied._write(batch, state)
        return applied

    @property
    def added(self) -> np.ndarray:
        return self.now - self.before

    def _check(self, batch: Batch) -> None:
        wrong = np.flatnonzero(self.now < 0)
        if len(wrong):
            key, row = batch.keys.slice(self.owner[wrong[0]], 1).to_pylist()[0], self.values[int(wrong[0])].as_py()
            raise BadInput(f"key {key}: {row} is retracted more often than it was inserted")

    def _write(self, batch: Batch, state: str) -> None:
        changed = self.now != self.before
        kept, removed = np.flatnonzero(changed & (self.now > 0)), np.flatnonzero(changed & (self.now == 0))
        batch.put(state, self.values.take(pa.array(kept)), self.now[kept], self.owner[kept])
        batch.remove(state, self.values.take(pa.array(removed)), self.owner[removed])


def _alike(owner: np.ndarray, values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """An order by owner in which equal values are adjacent, and where each value begins.

    It does not depend on the input order, except where two values have one hash.
    """
    hashes = hash_columns([values])
    order = np.lexsort((hashes, owner))
    number = refine(starts_of(owner[order], hashes[order]), [values], order)
    if (number[1:] < number[:-1]).any():
        again = np.argsort(number, kind="stable")
        order, number = order[again], number[again]
    return order, np.flatnonzero(starts_of(number))
