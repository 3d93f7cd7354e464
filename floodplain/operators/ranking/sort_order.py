"""The order of rows: by columns that the user names, and where those are alike by all others, so that it is always the same."""

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
    """One column of an order. Nulls come first where it ascends and last where it descends, as in Spark, unless said."""

    column: str
    descending: bool = False
    nulls_first: bool = True


Order: TypeAlias = tuple[By, ...]
ColumnAt: TypeAlias = Callable[[str, np.ndarray], pa.Array]
"""``(name, places)``: the values of a column in the rows at these places."""


def parse_order(by: str, what: str = "by") -> Order:
    """``"price desc, ts"`` or ``"price desc nulls first"``; names that are not plain stand in backticks."""
    if not isinstance(by, str) or not by.strip():
        raise BadInput(f"{what}={by!r} names no column: write it as in 'price desc, ts'")
    try:
        return tuple(By(item.column, item.descending, item.nulls_first) for item in sort_items(by))
    except Unreadable as error:
        raise BadInput(
            f"{what}={by!r} is not an order of columns at {by[error.at :].strip()!r}: write it as in 'price desc, ts'; what "
            "is to be computed is a column of its own: with_column(name, expression)"
        ) from None


def backwards(order: Order) -> Order:
    """The other way round, but nulls come last in any case: a row that does not say where it belongs yields to all that do."""
    return tuple(By(by.column, not by.descending, False) for by in order)


def nulls_last(order: Order) -> Order:
    return tuple(replace(by, nulls_first=False) for by in order)


def check_order(order: Order, rows: pa.Schema, what: str) -> None:
    """Raises unless rows with these columns can be ordered so."""
    for by in order:
        if not rows.get_all_field_indices(by.column):
            raise BadInput(f"{what}: there is no column {by.column} to order by; there are: {', '.join(rows.names)}")
        if pa.types.is_nested(rows.field(by.column).type):
            raise BadInput(f"{what}: {by.column} is {rows.field(by.column).type}, which has no order: name a field of it")


def the_rest(order: Order, rows: pa.Schema, but: Sequence[str] = (), descending: bool = False) -> Order:
    """All columns that the order does not have and that can be compared, ``but`` these: they decide where it does not."""
    named = {by.column for by in order}.union(but)
    return tuple(
        By(field.name, descending, not descending)
        for field in rows
        if field.name not in named and not pa.types.is_nested(field.type)
    )


def within_keys(order: Order, keys: Sequence[str]) -> Order:
    """The order without the keys: all rows of one key are alike in them, and what is kept of a row does not have them."""
    return tuple(by for by in order if by.column not in keys)


def codes(values: pa.Array, by: By) -> list[np.ndarray]:
    """Integers in the order of the values, the more significant column first."""
    values = one_array(values)
    found: list[np.ndarray] = []
    if values.null_count:
        missing = np.asarray(values.is_null())
        found.append((~missing if by.nulls_first else missing).astype(np.int64))
    code = _code(values)
    return [*found, ~code if by.descending else code]


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
    """The bits of a float, with those of negative ones turned: NaN is above all and −0.0 is 0.0, as in Spark."""
    given = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(given), np.nan, given).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)


def leaders(owner: np.ndarray, order: Order, column: ColumnAt) -> np.ndarray:
    """The place of the row of each owner that comes first, by owner. Columns are asked for only where there is a choice.

    Requires: the rows of one owner are side by side.
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
    """The rows of each owner that have the smallest keys."""
    rows = np.arange(len(owner))
    for key in keys:
        first = starts_of(owner[rows])
        least = np.minimum.reduceat(key[rows], np.flatnonzero(first))
        rows = rows[key[rows] == least[np.cumsum(first) - 1]]
    return rows


def precedes(one: ColumnAt, other: ColumnAt, places: np.ndarray, order: Order) -> np.ndarray:
    """For each of these places whether the row that ``one`` has there comes before that of ``other``."""
    before = np.zeros(len(places), bool)
    alike = np.arange(len(places))
    for by in order:
        if not len(alike):
            break
        values = [one_array(side(by.column, places[alike])) for side in (one, other)]
        sign = np.zeros(len(alike), np.int64)
        for key in codes(pa.concat_arrays(values), by):
            mine, theirs = np.split(key, 2)
            sign = np.where(sign == 0, (mine > theirs).astype(np.int64) - (mine < theirs), sign)
        before[alike[sign < 0]] = True
        alike = alike[sign == 0]
    return before


def ranked(owner: np.ndarray, order: Order, rest: Order, column: ColumnAt) -> tuple[np.ndarray, np.ndarray]:
    """The places of all rows by owner, then in order; and for each, whether it differs in owner or order from the one before.

    Rows alike in the order come by the ``rest``. A column is asked for only where those before it do not decide.
    """
    keys = codes(column(order[0].column, np.arange(len(owner))), order[0])
    place = sort_places(owner, *keys)
    apart = starts_of(owner[place], *(key[place] for key in keys))
    first = apart
    for number, by in enumerate((*order, *rest)[1:], 1):
        if number == len(order):
            first = apart.copy()
        tied = np.flatnonzero(~apart | ~np.append(apart[1:], True)[: len(apart)])
        if not len(tied):
            break
        rows, alike = place[tied], np.cumsum(apart)[tied]
        keys = codes(column(by.column, rows), by)
        again = sort_places(alike, *keys)
        place[tied] = rows[again]
        apart[tied] |= starts_of(alike, *(key[again] for key in keys))
    return place, first


def ranks_of(owner: np.ndarray, first: np.ndarray, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each row, in the order of ``ranked``: where the rows of its owner begin, and where, with ``ties``, those alike begin.
    The difference is its rank, from 0. ``owner`` and ``first`` are in that order, too."""
    number = np.arange(len(owner))
    begin = np.maximum.accumulate(np.where(starts_of(owner), number, 0))
    return begin, np.maximum.accumulate(np.where(first, number, 0)) if ties else number


def sort_places(*keys: np.ndarray) -> np.ndarray:
    """The stable order of rows by these columns of integers, the first one counting most.

    Columns whose ranges fit into 64 bits together become one number; with room for the place it is sorted several times faster.
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
