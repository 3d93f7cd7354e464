"""Rows that hold now where rows may be taken back: each different one of a key, and how many there are of it."""

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
    """A state for copies of rows with these columns. Raises if they cannot be told apart. ``whole``: as of a ``Map``."""
    kept = [pa.field(field.name, field.type) for field in fields]
    for field in kept:
        try:
            check_key_type(field.name, field.type)
        except SchemaMismatch as error:
            raise BadInput(
                f"{what}: column {field.name} is {field.type}, by which rows cannot be told apart, so none can be taken back: "
                "leave it out with select, or cast it"
            ) from error
    return Map(pa.struct(kept), "long", whole=whole)


@dataclass(frozen=True)
class Multiset:
    """All different rows of the keys that have changes, by key and then always in the same order."""

    owner: np.ndarray
    """The number of the key of each."""
    values: pa.StructArray
    before: np.ndarray
    """How many there were as the epoch began."""
    now: np.ndarray

    @staticmethod
    def apply(batch: Batch, state: str, owner: np.ndarray, rows: pa.StructArray, weights: np.ndarray) -> "Multiset":
        """What the state has and what changes make of it, which is noted: rows, the number of the key of each, and its weight.

        Raises ``BadInput`` where a row is taken back that is not there.
        """
        held = batch.entries(state)
        stored = len(held)
        owner = np.concatenate([held[KEY_OF].to_numpy(), owner])
        (values,) = normalize_keys([pa.chunked_array([*held["key"].chunks, rows], rows.type)])
        counts = np.concatenate([held["value"].to_numpy(), weights])
        order, first = _alike(owner, values)
        at = order[first]
        now, before = (
            np.add.reduceat(each, first) if len(first) else each
            for each in (counts[order], np.where(order < stored, counts[order], 0))
        )
        found = Multiset(owner[at], values.take(pa.array(at)), before, now)
        found._check(batch)
        found._note(batch, state)
        return found

    @property
    def added(self) -> np.ndarray:
        return self.now - self.before

    def _check(self, batch: Batch) -> None:
        wrong = np.flatnonzero(self.now < 0)
        if len(wrong):
            key, row = batch.keys.slice(self.owner[wrong[0]], 1).to_pylist()[0], self.values[int(wrong[0])].as_py()
            raise BadInput(f"key {key}: {row} is taken back more often than it came")

    def _note(self, batch: Batch, state: str) -> None:
        changed = self.now != self.before
        kept, gone = np.flatnonzero(changed & (self.now > 0)), np.flatnonzero(changed & (self.now == 0))
        batch.put(state, self.values.take(pa.array(kept)), self.now[kept], self.owner[kept])
        batch.remove(state, self.values.take(pa.array(gone)), self.owner[gone])


def _alike(owner: np.ndarray, values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """An order by owner in which equal values stand side by side, and where each value begins.

    It does not depend on how they stood but where two values have one hash.
    """
    hashes = hash_columns([values])
    order = np.lexsort((hashes, owner))
    number = refine(starts_of(owner[order], hashes[order]), [values], order)
    if (number[1:] < number[:-1]).any():
        again = np.argsort(number, kind="stable")
        order, number = order[again], number[again]
    return order, np.flatnonzero(starts_of(number))
