"""Exact distinct counts: the accumulator is the set of values, each with the conditions under which it was seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.keys import check_key_type, hash_columns, normalize_keys
from floodplain.operators.aggregates.base import Aggregate, Columns, Owned, Types
from floodplain.operators.kernel.pane_index import order_of
from floodplain.operators.kernel.segments import Groups, codes, filled, list_type, valid
from floodplain.store.rows.row_classes import refine, starts_of

MOST = 63
"""The largest number of fused counts: each has a bit of one integer."""


@dataclass(frozen=True)
class CountDistinct(Aggregate):
    """The number of distinct values, or of distinct combinations of values without a null.

    Counts of the same columns are fused: a value is stored once, with a mark for each condition under which it was seen. The
    conditions are the last arguments then. The partials are a list of marks for each condition, and the list of values.
    """

    conditional: tuple[bool, ...] = (False,)
    """For each count, whether it has a condition."""

    @property
    def conditions(self) -> int:
        return sum(self.conditional)

    def output(self, types: Types) -> pa.DataType:
        if not types:
            raise BadInput("count_distinct needs a column")
        for type_ in types:
            check_key_type("of count_distinct", type_)
        return pa.int64()

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        values = types[: len(types) - self.conditions]
        element = values[0] if len(values) == 1 else pa.struct([pa.field(f"f{i}", type_) for i, type_ in enumerate(values)])
        return (*[list_type(pa.bool_())] * self.conditions, list_type(element))

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        values, conditions = columns[: len(columns) - self.conditions], columns[len(columns) - self.conditions :]
        rows, under = np.logical_and.reduce([valid(column) for column in values]), _bits(conditions)
        if under is not None and all(self.conditional):
            rows &= under != 0
        seen = _Seen(groups.of_row, _one(values), under)
        return self._listed([seen if rows.all() else seen.at(np.flatnonzero(rows))], len(groups))

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        return self.merged([(groups.of_row, partials)], len(groups))

    def merged(self, parts: Sequence[Owned], count: int) -> list[pa.Array]:
        """As ``combine``, of rows in any order, for owners ``0 .. count - 1``."""
        return self._listed([_Seen.of(owner, partials) for owner, partials in parts], count)

    def _listed(self, seen: "Sequence[_Seen]", count: int) -> list[pa.Array]:
        distinct = _distinct_integers(seen, self.conditions, count) or _distinct_rows(seen, count)
        marks = [] if distinct.under is None else [pa.array(distinct.under & (1 << i) != 0) for i in range(self.conditions)]
        offsets = pa.array(distinct.offsets.astype(np.int32))
        return [pa.ListArray.from_arrays(offsets, column, type=list_type(column.type)) for column in (*marks, distinct.values)]

    def results(self, partials: Columns) -> list[pa.Array]:
        """The results of all fused counts."""
        marks = iter(partials[:-1])
        return [_marked(next(marks)) if each else _size(partials[-1]) for each in self.conditional]


def fuse_counts(counts: Sequence[Aggregate]) -> CountDistinct:
    """Fuses distinct counts of the same columns."""
    conditions = [count.where for count in counts if count.where is not None]
    return CountDistinct((*counts[0].arguments, *conditions), None, tuple(count.where is not None for count in counts))


def _size(lists: pa.Array) -> pa.Array:
    return pa.array(filled(pc.list_value_length(lists), 0).astype(np.int64))


def _marked(lists: pa.Array) -> pa.Array:
    sizes, marks = _size(lists).to_numpy(), pc.list_flatten(lists).to_numpy(zero_copy_only=False)
    counts, some = np.zeros(len(sizes), np.int64), np.flatnonzero(sizes)
    if len(some):
        counts[some] = np.add.reduceat(marks, (np.cumsum(sizes) - sizes)[some], dtype=np.int64)
    return pa.array(counts)


def _bits(conditions: Columns) -> np.ndarray | None:
    """A bit set for each row, with a bit for each condition; null is false."""
    if not conditions:
        return None
    width = next(width for width in (8, 16, 32, 64) if len(conditions) < width)
    bits = np.zeros(len(conditions[0]), f"i{width // 8}")
    for i, condition in enumerate(conditions):
        bits |= filled(condition, False).astype(bits.dtype) << bits.dtype.type(i)
    return bits


class _Seen(NamedTuple):
    """Values, the owner of each, and the conditions under which it was seen, as bits."""

    owner: np.ndarray
    values: pa.Array
    under: np.ndarray | None

    @classmethod
    def of(cls, owner: np.ndarray, partials: Columns) -> "_Seen":
        *marks, values = (pc.list_flatten(lists) for lists in partials)
        # In the state of a key that is older than the count, no value was seen under its condition.
        marks = [each if len(each) == len(values) else _unmarked(partials[-1], partials[i]) for i, each in enumerate(marks)]
        return cls(np.repeat(owner, filled(pc.list_value_length(partials[-1]), 0)), values, _bits(marks))

    def at(self, rows: np.ndarray) -> "_Seen":
        return _Seen(self.owner[rows], self.values.take(pa.array(rows)), None if self.under is None else self.under[rows])


def _unmarked(values: pa.Array, marks: pa.Array) -> pa.Array:
    """Marks of all values; false where the list of marks is missing."""
    sizes, marked = filled(pc.list_value_length(values), 0), filled(pc.list_value_length(marks), 0)
    flat = np.zeros(sizes.sum(), bool)
    flat[np.repeat(marked > 0, sizes)] = pc.list_flatten(marks).to_numpy(zero_copy_only=False)
    return pa.array(flat)


def _one(values: Columns) -> pa.Array:
    return values[0] if len(values) == 1 else pa.StructArray.from_arrays(values, [f"f{i}" for i in range(len(values))])


class _Lists(NamedTuple):
    """The distinct values of each owner, sorted by owner."""

    offsets: np.ndarray
    values: pa.Array
    under: np.ndarray | None


class _Packed(NamedTuple):
    """Owner and value packed into one integer, so that sorting needs no second access to the rows."""

    numbers: np.ndarray
    under: np.ndarray | None

    @classmethod
    def of(cls, seen: _Seen, values: np.ndarray, low: int, bits: int) -> "_Packed":
        numbers = seen.owner.astype(np.int64) << bits
        numbers += values
        numbers -= low
        return cls(numbers, seen.under)

    def distinct(self, conditions: int) -> "_Packed":
        """The distinct numbers, ascending."""
        numbers, under = self
        if (numbers[1:] > numbers[:-1]).all():
            return self
        if under is None:
            numbers = np.sort(numbers)
            return _Packed(numbers[starts_of(numbers)], None)
        if int(numbers.max()).bit_length() + conditions <= 63:
            both = np.sort((numbers << conditions) | under)
            numbers, under = both >> conditions, (both & ((1 << conditions) - 1)).astype(under.dtype)
        else:
            order = np.argsort(numbers, kind="stable")
            numbers, under = numbers[order], under[order]
        first = np.flatnonzero(starts_of(numbers))
        return _Packed(numbers[first], np.bitwise_or.reduceat(under, first))

    def union(self, other: "_Packed") -> "_Packed":
        """Inserts the smaller into the larger. Requires: both are distinct and ascending."""
        position = np.searchsorted(self.numbers, other.numbers)
        known = position < len(self.numbers)
        known[known] = self.numbers[position[known]] == other.numbers[known]
        fresh, at = ~known, position[~known]
        numbers = np.insert(self.numbers, at, other.numbers[fresh])
        if self.under is None or other.under is None:
            return _Packed(numbers, None)
        under = self.under.copy()
        under[position[known]] |= other.under[known]
        return _Packed(numbers, np.insert(under, at, other.under[fresh]))


def _distinct_integers(parts: Sequence[_Seen], conditions: int, count: int) -> _Lists | None:
    """The distinct values of integer and time columns; None for other types, or if owner and value exceed 63 bits."""
    parts = [part for part in parts if len(part.owner)]
    if not parts:
        return None
    type_ = parts[0].values.type
    whole = pa.types.is_signed_integer(type_) or (pa.types.is_temporal(type_) and type_.bit_width <= 64)
    if not whole or any(part.values.null_count for part in parts):
        return None
    values = [codes(part.values) for part in parts]
    low, high = min(int(each.min()) for each in values), max(int(each.max()) for each in values)
    bits = (high - low).bit_length()
    if bits + count.bit_length() > 63:
        return None
    packed = [_Packed.of(part, each, low, bits).distinct(conditions) for part, each in zip(parts, values, strict=True)]
    merged = reduce(_Packed.union, sorted(packed, key=lambda each: -len(each.numbers)))
    offsets = np.searchsorted(merged.numbers, np.arange(count + 1) << bits)
    numbers = merged.numbers & ((1 << bits) - 1)
    numbers += low
    width = np.dtype(f"i{type_.bit_width // 8}")
    return _Lists(offsets, pa.array(numbers.astype(width, copy=False)).view(type_), merged.under)


def _distinct_rows(parts: Sequence[_Seen], count: int) -> _Lists:
    """The distinct values of any type, with the equality of keys."""
    owner, values = np.concatenate([part.owner for part in parts]), pa.concat_arrays([part.values for part in parts])
    (plain,) = normalize_keys([values])
    numbers = _shortened(hash_columns([plain]), owner)
    order = order_of((owner, numbers))
    order = np.arange(len(owner)) if order is None else order
    number = refine(starts_of(owner[order], numbers[order]), [plain], order)
    if (number[1:] < number[:-1]).any():
        again = np.argsort(number, kind="stable")
        order, number = order[again], number[again]
    first = np.flatnonzero(starts_of(number))
    under = None
    if parts[0].under is not None:
        all_under = np.concatenate([part.under for part in parts if part.under is not None])
        under = np.bitwise_or.reduceat(all_under[order], first) if len(first) else all_under
    kept = order[first]
    return _Lists(np.searchsorted(owner[kept], np.arange(count + 1)), values.take(pa.array(kept)), under)


def _shortened(hashes: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """The leading bits of each hash, as many as fit into one sortable integer with the owner and the row number."""
    taken = int(owner.max(initial=0)).bit_length() + len(owner).bit_length()
    return (hashes >> np.uint64(64 - max(63 - taken, 16))).astype(np.int64)
