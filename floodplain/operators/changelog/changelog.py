"""Changelogs: rows with a weight, +1 inserts and -1 retracts, and how they fold into a current result."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.keys import columns_equal
from floodplain.operators.kernel.key_grouping import group
from floodplain.structs import fields_of

Mode: TypeAlias = Literal["append", "update", "retract"]
"""``append``: a row is final. ``update``: a row replaces the one of its key. ``retract``: a row with ``weight`` −1 retracts one
that was emitted before, one with +1 inserts."""

WEIGHT = "weight"
NO_COLUMNS = pa.schema([])
"""Of an operator that is not bound to a schema yet."""


def check_mode(what: str, mode: str, *allowed: str) -> None:
    allowed = allowed or get_args(Mode)
    if mode not in allowed:
        raise BadInput(f"{what}: mode={mode!r} is not possible here: use {' or '.join(map(repr, allowed))}")


def changelog_refused(operator: str, why: str, instead: str) -> BadInput:
    """The error of an operator that cannot consume a changelog."""
    return BadInput(
        f"operator {operator}: its input is a changelog with retractions (column {WEIGHT}), and {why}: {instead}; or "
        "call as_rows() before it, and every change is a row of its own"
    )


def without_weight(changes: pa.Schema) -> pa.Schema:
    """The columns of a changelog without the weight."""
    return pa.schema([field for field in changes if field.name != WEIGHT])


def weights_of(column: pa.Array) -> np.ndarray:
    """The weights of changes. Raises unless each is 1 or -1."""
    weights: np.ndarray = column.to_numpy(zero_copy_only=False)
    if (np.abs(weights) != 1).any():
        raise BadInput(f"the {WEIGHT} of a change is 1 or -1: a step upstream has changed it")
    return weights.astype(np.int64, copy=False)


def with_columns(what: str, rows: pa.Schema, *more: tuple[str, pa.DataType]) -> pa.Schema:
    """The columns of the input, then further ones. Raises if the input has one of these names."""
    for name, _ in more:
        if rows.get_all_field_indices(name):
            raise BadInput(f"{what}: the input has a column {name}, which the output is to have for itself: rename or drop it")
    return pa.schema([*((field.name, field.type) for field in rows), *more])


def changelog_of(retractions: pa.Table, insertions: pa.Table) -> pa.Table:
    """One table with weights, retractions first."""
    weights = np.repeat(np.array([-1, 1]), [len(retractions), len(insertions)])
    return pa.concat_tables([retractions, insertions]).append_column(WEIGHT, pa.array(weights, pa.int64()))


def fold_changes(changes: pa.Table | Iterable[pa.Table], keys: Sequence[str] = ()) -> pa.Table:
    """The current rows after all changes, in no particular order.

    ``changes``: the output, epoch after epoch. With a column ``weight`` they are folded by it, and ``keys`` is not needed;
    without, the last row of each of the ``keys`` counts. Raises ``BadInput`` where a row is retracted that was never inserted.
    """
    table = changes if isinstance(changes, pa.Table) else pa.concat_tables(list(changes))
    if WEIGHT in table.column_names:
        return _net_rows(table)
    if not keys:
        raise BadInput("fold_changes: the changes have no column weight: say by which keys a row replaces another")
    grouped = group(table, {name: name for name in keys})
    return grouped.take(grouped.starts[1:] - 1)


def _net_rows(table: pa.Table) -> pa.Table:
    values = table.drop_columns([WEIGHT])
    grouped = group(table, {name: name for name in values.column_names})
    weights = grouped.column(WEIGHT).to_numpy()
    net = np.add.reduceat(weights, grouped.starts[:-1]) if len(weights) else weights
    if (net < 0).any():
        wrong = grouped.take(grouped.starts[:-1][net < 0][:1], values.column_names).to_pylist()[0]
        raise BadInput(f"fold_changes: {wrong} is retracted more often than it was inserted: some changes are missing")
    return grouped.take(np.repeat(grouped.starts[:-1], net), values.column_names)


def same(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Whether two structs are equal, row by row; nulls and NaNs are equal to each other."""
    left, right = fields_of(one), fields_of(other)
    alike = one.is_valid().to_numpy(zero_copy_only=False)
    plain = [(a, b) for a, b in zip(left, right, strict=True) if not pa.types.is_map(a.type)]
    return alike & columns_equal([a for a, _ in plain], [b for _, b in plain])
