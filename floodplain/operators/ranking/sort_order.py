"""Sort orders: by the columns that the user names; all other columns break ties, so that the order is deterministic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.expressions.sort_items import sort_items
from floodplain.expressions.tokens import Unreadable
from floodplain.store.rows.layout import one_array
from floodplain.store.rows.row_classes import starts_of


@dataclass(frozen=True, slots=True)
class By:
    """One column of an order. By default nulls are first in ascending and last in descending order, as in Spark."""

    column: str
    descending: bool = False
    nulls_first: bool = True


Order: TypeAlias = tuple[By, ...]
ColumnAt: TypeAlias = Callable[[str, np.ndarray], pa.Array]
"""``(name, rows)``: the values of a column in these rows."""


def parse_order(by: str, what: str = "by") -> Order:
    """Parses ``"price desc, ts"`` or ``"price desc nulls first"``; other names than identifiers need backticks."""
    if not isinstance(by, str) or not by.strip():
        raise BadInput(f"{what}={by!r} names no column: write it as in 'price desc, ts'")
    try:
        return tuple(By(item.column, item.descending, item.nulls_first) for item in sort_items(by))
    except Unreadable as error:
        raise BadInput(
            f"{what}={by!r} is not an order of columns at {by[error.at :].strip()!r}: write it as in 'price desc, ts'; "
            "to order by an expression, add a column: with_column(name, expression)"
        ) from None


def backwards(order: Order) -> Order:
    """The reverse order, but with nulls last: a row without a value ranks below all others."""
    return tuple(By(by.column, not by.descending, False) for by in order)


def nulls_last(order: Order) -> Order:
    return tuple(replace(by, nulls_first=False) for by in order)


def check_order(order: Order, rows: pa.Schema, what: str) -> None:
    """Raises unless rows of this schema can be sorted by this order."""
    for by in order:
        if not rows.get_all_field_indices(by.column):
            raise BadInput(f"{what}: there is no column {by.column} to order by; there are: {', '.join(rows.names)}")
        if pa.types.is_nested(rows.field(by.column).type):
            raise BadInput(f"{what}: {by.column} is {rows.field(by.column).type}, which has no order: name a field of it")


def the_rest(order: Order, rows: pa.Schema, but: Sequence[str] = (), descending: bool = False) -> Order:
    """The tie breakers: all comparable columns that are not in the order, ``but`` these."""
    named = {by.column for by in order}.union(but)
    return tuple(
        By(field.name, descending, not descending)
        for field in rows
        if field.name not in named and not pa.types.is_nested(field.type)
    )


def within_keys(order: Order, keys: Sequence[str]) -> Order:
    """The order without the keys: all rows of a key are equal in them, and stored rows do not have them."""
    return tuple(by for by in order if by.column not in keys)


def codes(values: pa.Array, by: By) -> list[np.ndarray]:
    """Integer columns that sort as the values do, the most significant first."""
    values = one_array(values)
    null_codes: list[np.ndarray] = []
    if values.null_count:
        missing = np.asarray(values.is_null())
        null_codes.append((~missing if by.nulls_first else missing).astype(np.int64))
    code = _code(values)
    return [*null_codes, ~code if by.descending else code]


def _code(values: pa.Array) -> np.ndarray:
    kind = values.type
    if pa.types.is_floating(kind):
        return _float_code(values)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        values = values.view(pa.int64())
    if not pa.types.is_integer(values.type):
        plain = values.dictionary_decode() if pa.types.is_dictionary(kind) else values
        return pc.rank(plain, tiebreaker="dense").to_numpy().view(np.int64)
    whole = (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)
    return whole.view(np.int64) ^ np.int64(-(1 << 63)) if whole.dtype == np.uint64 else whole.astype(np.int64, copy=False)


def _float_code(values: pa.Array) -> np.ndarray:
    """The bits of a float, inverted for negative ones: NaN is greater than all others and −0.0 equals 0.0, as in Spark."""
    floats = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(floats), np.nan, floats).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)


def leaders(owner: np.ndarray, order: Order, column: ColumnAt) -> np.ndarray:
    """The first row of each owner in this order, by owner. A column is read only where the columns before it are tied.

    Requires: the rows of one owner are adjacent.
    """
    alive, settled = np.arange(len(owner)), [np.empty(0, np.int64)]
    for by in order:
        first = starts_of(owner[alive])
        alone = first & np.append(first[1:], True)[: len(first)]
        settled.append(alive[alone])
        alive = alive[~alone]
        if not len(alive):
            break
        alive = alive[_best(owner[alive], codes(column(by.column, alive), by))]
    settled.append(alive[starts_of(owner[alive])])
    return np.sort(np.concatenate(settled))


def _best(owner: np.ndarray, keys: list[np.ndarray]) -> np.ndarray:
    """The rows with the least keys of each owner."""
    rows = np.arange(len(owner))
    for key in keys:
        first = starts_of(owner[rows])
        least = np.minimum.reduceat(key[rows], np.flatnonzero(first))
        rows = rows[key[rows] == least[np.cumsum(first) - 1]]
    return rows


def precedes(one: ColumnAt, other: ColumnAt, rows: np.ndarray, order: Order) -> np.ndarray:
    """For each of these rows, whether that of ``one`` sorts before that of ``other``."""
    before = np.zeros(len(rows), bool)
    alike = np.arange(len(rows))
    for by in order:
        if not len(alike):
            break
        values = [one_array(side(by.column, rows[alike])) for side in (one, other)]
        sign = np.zeros(len(alike), np.int64)
        for key in codes(pa.concat_arrays(values), by):
            mine, theirs = np.split(key, 2)
            sign = np.where(sign == 0, (mine > theirs).astype(np.int64) - (mine < theirs), sign)
        before[alike[sign < 0]] = True
        alike = alike[sign == 0]
    return before


def ranked(owner: np.ndarray, order: Order, rest: Order, column: ColumnAt) -> tuple[np.ndarray, np.ndarray]:
    """The rows sorted by owner, then in order; and for each, whether it differs in owner or order from the one before.

    ``rest``: tie breakers. A column is read only where the columns before it are tied.
    """
    keys = codes(column(order[0].column, np.arange(len(owner))), order[0])
    row = argsort(owner, *keys)
    apart = starts_of(owner[row], *(key[row] for key in keys))
    first = apart
    for number, by in enumerate((*order, *rest)[1:], 1):
        if number == len(order):
            first = apart.copy()
        tied = np.flatnonzero(~apart | ~np.append(apart[1:], True)[: len(apart)])
        if not len(tied):
            break
        rows, alike = row[tied], np.cumsum(apart)[tied]
        keys = codes(column(by.column, rows), by)
        again = argsort(alike, *keys)
        row[tied] = rows[again]
        apart[tied] |= starts_of(alike, *(key[again] for key in keys))
    return row, first


def ranks_of(owner: np.ndarray, first: np.ndarray, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each row, in the order of ``ranked``: the position of the first row of its owner, and its own position or, with
    ``ties``, that of the first row with which it is tied. The difference is its rank, from 0. Requires: ``owner`` and ``first``
    are in that order, too."""
    number = np.arange(len(owner))
    begin = np.maximum.accumulate(np.where(starts_of(owner), number, 0))
    return begin, np.maximum.accumulate(np.where(first, number, 0)) if ties else number


def argsort(*keys: np.ndarray) -> np.ndarray:
    """The stable order of rows by these integer columns, the first one most significant.

    Columns whose ranges fit into 64 bits are packed into one integer. If the row number fits, too, sorting is several times
    faster.
    """
    packed: list[tuple[np.ndarray, int]] = []
    for key in keys:
        low, high = (int(key.min()), int(key.max())) if len(key) else (0, 0)
        bits = (high - low).bit_length()
        code = (key.view(np.uint64) - np.uint64(low & _MASK)) if bits else np.zeros(len(key), np.uint64)
        if packed and packed[-1][1] + bits <= 64:
            before, used = packed[-1]
            packed[-1] = ((before << np.uint64(bits)) | code if used else code, used + bits)
        else:
            packed.append((code, bits))
    room = max(len(keys[0]) - 1, 0).bit_length()
    if len(packed) == 1 and packed[0][1] + room <= 64:
        whole = (packed[0][0] << np.uint64(room)) | np.arange(len(keys[0]), dtype=np.uint64)
        whole.sort()
        return (whole & np.uint64((1 << room) - 1)).view(np.int64)
    return np.lexsort([code for code, _ in reversed(packed)])


_MASK = (1 << 64) - 1
