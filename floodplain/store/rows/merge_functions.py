"""Merge functions (merge operators): how operands fold into a value.

A merge is named in the schema. The built-in ones are always there; a user's own must be registered in every process that
folds it, because a store must never make a process import code that the store's files name.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain import lossless
from floodplain.errors import BadInput, MergeUnavailable, UserError


class MergeFunction(Protocol):
    def __call__(self, operands: pa.Array, starts: np.ndarray) -> pa.Array:
        """One value per segment. Operands have no nulls and stand oldest first; segments are not empty."""


Combine = Callable[[pa.Array, pa.Array], pa.Array]
"""A user's merge: element-wise ``(older, newer) -> merged``, associative, of the column's own type."""

_registered: dict[str, MergeFunction] = {}


def register_merge(combine: Combine) -> str:
    """Make a user's merge known to this process; returns the name to put in a schema: its import path."""
    if "<" in combine.__qualname__ or combine.__module__ == "__main__":
        raise BadInput(f"merge {combine.__qualname__} has no import path: define it at the top level of a module")
    name = f"{combine.__module__}:{combine.__qualname__}"
    _registered[name] = partial(_pairwise, combine)
    return name


def is_builtin(name: str) -> bool:
    return name in _BUILTIN


def find(name: str) -> MergeFunction | None:
    return _BUILTIN.get(name) or _registered.get(name)


def required(name: str, table: str) -> MergeFunction:
    fold = find(name)
    if fold is None:
        raise MergeUnavailable(f"table {table} needs the merge {name}: import its module and call register_merge in this process")
    return fold


def check_type(name: str, type_: pa.DataType) -> str | None:
    """Why this merge cannot fold this type, or None if it can."""
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    if name in ("sum", "count") and not number:
        return f"{name} needs a number, not {type_}"
    if name == "append" and not (pa.types.is_list(type_) or pa.types.is_large_list(type_)):
        return f"append needs a list, not {type_}"
    if name in ("min", "max") or pa.types.is_decimal(type_):
        return _untried(name, type_)
    return None


def _untried(name: str, type_: pa.DataType) -> str | None:
    fold = _BUILTIN.get(name)
    try:
        if fold is not None:
            fold(pa.nulls(1, type_), np.zeros(1, np.int64))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return f"{name} needs a type with {'an order' if name in ('min', 'max') else 'sums'}, not {type_}"
    return None


def _sum(operands: pa.Array, starts: np.ndarray) -> pa.Array:
    if pa.types.is_decimal(operands.type):
        return _decimal_sum(operands, starts)
    values = operands.to_numpy(zero_copy_only=False)
    return pa.array(np.add.reduceat(values, starts, dtype=values.dtype), operands.type)


def _decimal_sum(operands: pa.Array, starts: np.ndarray) -> pa.Array:
    segment = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(operands))))
    try:
        grouped = pa.table({"s": segment, "v": operands}).group_by("s", use_threads=False).aggregate([("v", "sum")])
        return grouped.sort_by("s")["v_sum"].combine_chunks().cast(operands.type)
    except pa.ArrowInvalid as error:
        raise BadInput(f"a sum does not fit {operands.type}: declare the column wider ({error})") from error


def _extreme(reduce: np.ufunc, operands: pa.Array, starts: np.ndarray) -> pa.Array:
    # Ranks stand in for the values, so one reduction serves every type that has an order.
    rank = pc.rank(operands, sort_keys="ascending", tiebreaker="first").to_numpy().astype(np.int64) - 1
    row = np.empty(len(rank), np.int64)
    row[rank] = np.arange(len(rank))
    return operands.take(pa.array(row[reduce.reduceat(rank, starts)]))


def _append(operands: pa.Array, starts: np.ndarray) -> pa.Array:
    elements = operands.flatten()
    ends = np.append(np.cumsum(operands.value_lengths().to_numpy(zero_copy_only=False)), 0)
    bounds = np.append(np.where(starts > 0, ends[starts - 1], 0), ends[-2])
    kind = pa.LargeListArray if pa.types.is_large_list(operands.type) else pa.ListArray
    return kind.from_arrays(
        pa.array(bounds, pa.int64() if kind is pa.LargeListArray else pa.int32()), elements, type=operands.type
    )


def _pairwise(combine: Combine, operands: pa.Array, starts: np.ndarray) -> pa.Array:
    """Folds neighbours in rounds, so that a segment of n operands takes log2(n) vectorised calls."""
    segment = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(operands))))
    while len(operands) > len(starts):
        place = np.arange(len(segment)) - np.searchsorted(segment, segment)
        older = np.flatnonzero((place % 2 == 0) & np.append(segment[1:] == segment[:-1], False))
        merged = _called(combine, operands.take(pa.array(older)), operands.take(pa.array(older + 1)))
        if len(merged) != len(older):
            raise BadInput(f"merge {combine.__qualname__} returned {len(merged)} values for {len(older)} pairs")
        source = np.arange(len(segment))
        source[older] = len(segment) + np.arange(len(older))
        kept = place % 2 == 0
        operands = pa.concat_arrays([operands, _typed(combine, merged, operands.type)]).take(pa.array(source[kept]))
        segment = segment[kept]
    return operands


def _called(combine: Combine, older: pa.Array, newer: pa.Array) -> pa.Array:
    try:
        return combine(older, newer)
    except Exception as error:
        raise UserError(f"{type(error).__name__} in merge {combine.__module__}:{combine.__qualname__}: {error}") from error


def _typed(combine: Combine, merged: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return lossless.cast(merged, type_)
    except lossless.UNFIT as error:
        raise UserError(
            f"merge {combine.__module__}:{combine.__qualname__} returned {merged.type}, which does not fit {type_}: {error}"
        ) from error


_BUILTIN: dict[str, MergeFunction] = {
    "sum": _sum,
    "count": _sum,
    "min": partial(_extreme, np.minimum),
    "max": partial(_extreme, np.maximum),
    "append": _append,
}
