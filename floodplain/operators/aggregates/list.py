"""Aggregates whose accumulator is a list: ``top_k`` and ``collect``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.operators.aggregates.base import Aggregate, Columns, Types
from floodplain.operators.aggregates.scalar import check_comparable
from floodplain.operators.kernel.segments import Groups, codes, filled, flattened, list_type, listed, valid
from floodplain.structs import fields_of


class ListAggregate(Aggregate):
    """The partial is a list; subclasses choose which elements of a group stay, and their order."""

    def element(self, types: Types) -> pa.DataType:
        """The type of an element."""
        raise NotImplementedError

    def elements(self, columns: Columns) -> tuple[np.ndarray, pa.Array]:
        """The rows that add an element, and these elements."""
        raise NotImplementedError

    def kept(self, owner: np.ndarray, elements: pa.Array) -> np.ndarray:
        """Which elements stay, by group. Requires: ascending groups."""
        raise NotImplementedError

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        return (list_type(self.element(types)),)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        rows, elements = self.elements(columns)
        return self._listed(groups.of_row[rows], elements, groups)

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        return self._listed(*flattened(partials[0], groups), groups)

    def _listed(self, owner: np.ndarray, elements: pa.Array, groups: Groups) -> list[pa.Array]:
        kept = self.kept(owner, elements)
        return [listed(owner[kept], elements.take(pa.array(kept)), len(groups))]


@dataclass(frozen=True)
class OrderedListAggregate(ListAggregate):
    """A list of values with the columns that order them."""

    def output(self, types: Types) -> pa.DataType:
        for by in types[1:]:
            if pa.types.is_nested(by) or pa.types.is_null(by):
                raise SchemaMismatch(f"rows can be ordered by a type with an order, not {by}")
        check_comparable(types[0])
        return list_type(types[0])

    def element(self, types: Types) -> pa.DataType:
        return pa.struct([pa.field(name, type_) for name, type_ in zip(("value", "by"), types, strict=False)])

    def elements(self, columns: Columns) -> tuple[np.ndarray, pa.Array]:
        rows = np.flatnonzero(np.logical_and.reduce([valid(column) for column in columns]))
        taken = [column.take(pa.array(rows)) for column in columns]
        return rows, pa.StructArray.from_arrays(taken, ["value", "by"][: len(taken)])

    def result(self, partials: Columns) -> pa.Array:
        (lists,) = partials
        offsets = np.append(0, np.cumsum(filled(pc.list_value_length(lists), 0))).astype(np.int32)
        values = pc.struct_field(pc.list_flatten(lists), 0)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=list_type(values.type))


def _keys(elements: pa.Array) -> Sequence[np.ndarray]:
    """Sort keys of the elements, the least significant first, as ``np.lexsort`` takes them."""
    return [codes(field) for field in fields_of(elements)]


@dataclass(frozen=True)
class TopK(OrderedListAggregate):
    k: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise BadInput(f"top_k keeps a number of values from 1 on, not {self.k!r}")

    def kept(self, owner: np.ndarray, elements: pa.Array) -> np.ndarray:
        order = np.lexsort([*(~key for key in _keys(elements)), owner])
        of = owner[order]
        rank = np.arange(len(of)) - np.searchsorted(of, of)
        return order[rank < self.k]


@dataclass(frozen=True)
class Collect(OrderedListAggregate):
    def kept(self, owner: np.ndarray, elements: pa.Array) -> np.ndarray:
        return np.lexsort([*_keys(elements), owner])
