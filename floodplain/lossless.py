"""Lossless casts of Arrow columns: a value that the target type cannot hold is refused by name.

Arrow refuses most of it by itself; what it lets pass is refused here. A ``double`` that is rounded to a ``float`` is no loss,
as in Spark, unless it becomes infinite.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import short
from floodplain.structs import fields_of

Column: TypeAlias = pa.Array | pa.ChunkedArray


class Lossy(ValueError):
    """A value that would not be the same once it is converted."""

    @classmethod
    def of(cls, value: Any, made: Any) -> "Lossy":
        return cls(f"{short(value)} would become {short(made)}: convert it before, or declare another type")


UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What is raised for a value that does not fit a type; ``Lossy`` is one of them."""

NO_ZONE = "a time without a time zone is no instant: give one with a zone, or declare timestamp_ntz"
ZONE_LOST = "timestamp_ntz would forget the time zone: take it off before, or declare timestamp"


def cast(column: Column, type_: pa.DataType) -> Column:
    """The column as one of this type. Raises one of ``UNFIT`` if a value would not survive."""
    if column.type == type_:
        return column
    refusal = _refusal(column.type, type_)
    if refusal is not None and column.null_count < len(column):
        raise Lossy(refusal)
    try:
        return _cast(column, type_)
    except UNFIT:
        if not pa.types.is_nested(column.type):
            raise
        # A slice holds values of its neighbours, too, and they are no reason to refuse it.
        return _cast(column.take(pa.array(range(len(column)), pa.int64())), type_)


def _cast(column: Column, type_: pa.DataType) -> Column:
    made = column.cast(type_)
    if _may_lose(column.type, type_):
        for before, after in zip(_chunks(column), _chunks(made), strict=True):
            _check(before, after)
    return made


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """As ``cast``, for all columns: those of the schema in its order. Requires: the table has columns of these names."""
    return pa.Table.from_arrays([_named_cast(table, field) for field in schema], schema=schema)


def first_unfit(column: Column, type_: pa.DataType) -> int:
    """The place of the first value that ``cast`` refuses.

    Requires: it refuses one.
    """
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cast(column.slice(low, middle - low), type_)
            low = middle
        except UNFIT:
            high = middle
    return low


def _named_cast(table: pa.Table, field: pa.Field) -> Column:
    column = table.column(field.name)
    try:
        return cast(column, field.type)
    except UNFIT as error:
        value = short(column[first_unfit(column, field.type)].as_py())
        reason = str(error).partition("\n")[0]
        raise Lossy(f"{value} does not fit column {field.name} of type {field.type}: {reason}") from error


def _chunks(column: Column) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


@lru_cache(maxsize=4096)
def _refusal(source: pa.DataType, wanted: pa.DataType) -> str | None:
    """Why no value of the one type can be one of the other, though Arrow makes it one."""
    types = pa.types
    if types.is_timestamp(source):
        if types.is_timestamp(wanted) and (source.tz is None) != (wanted.tz is None):
            return NO_ZONE if source.tz is None else ZONE_LOST
        if types.is_time(wanted):
            return f"{wanted} would forget the day"
        if types.is_date(wanted) and source.tz is not None:
            return f"{wanted} would forget the time zone"
    if types.is_date(source) and types.is_timestamp(wanted) and wanted.tz is not None:
        return NO_ZONE
    if types.is_struct(source) and types.is_struct(wanted):
        names = {field.name for field in wanted}
        lost = [field.name for field in source if field.name not in names]
        if lost:
            return f"the struct has no field {lost[0]}; it has: {', '.join(field.name for field in wanted)}"
    return next(filter(None, (_refusal(*pair) for pair in _children(source, wanted))), None)


@lru_cache(maxsize=4096)
def _may_lose(source: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's own checks leave something to look for."""
    if source == wanted or pa.types.is_null(source):
        return False
    return _loses_unseen(source, wanted) or any(_may_lose(*pair) for pair in _children(source, wanted))


def _loses_unseen(source: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    floats = types.is_floating(source)
    if types.is_floating(wanted):
        return types.is_decimal(source) or (floats and wanted.bit_width < source.bit_width)
    if types.is_boolean(wanted):
        return floats or types.is_integer(source) or types.is_decimal(source)
    return (types.is_decimal(wanted) and floats) or (types.is_date(wanted) and types.is_timestamp(source))


def _children(source: pa.DataType, wanted: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    """The types inside that Arrow converts into one another."""
    types = pa.types
    if types.is_struct(source) and types.is_struct(wanted):
        of = {field.name: field.type for field in source}
        yield from ((of[field.name], field.type) for field in wanted if field.name in of)
    elif types.is_map(source) and types.is_map(wanted):
        yield source.key_type, wanted.key_type
        yield source.item_type, wanted.item_type
    elif types.is_nested(source) and types.is_nested(wanted) and hasattr(source, "value_type") and hasattr(wanted, "value_type"):
        yield source.value_type, wanted.value_type


def _check(before: pa.Array, after: pa.Array) -> None:
    """Raises ``Lossy`` if a value is another one after Arrow converted it."""
    source, wanted = before.type, after.type
    if not _may_lose(source, wanted):
        return
    if _loses_unseen(source, wanted):
        _check_plain(before, after)
    elif pa.types.is_struct(source):
        old, new = fields_of(before), fields_of(after)
        for number, field in enumerate(wanted):
            if (place := source.get_field_index(field.name)) >= 0:
                _check(old[place], new[number])
    elif pa.types.is_map(source):
        for old, new in zip(_parts(before), _parts(after), strict=True):
            _check(old, new)
    else:
        _check(before.flatten(), after.flatten())


def _parts(maps: pa.MapArray) -> list[pa.Array]:
    """The keys and the items of these maps only, which a slice shares with others."""
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return [part.slice(first, last - first) for part in (maps.keys, maps.items)]


def _check_plain(before: pa.Array, after: pa.Array) -> None:
    if pa.types.is_floating(before.type) and pa.types.is_floating(after.type):
        lost = pc.and_(pc.is_inf(after), pc.invert(pc.is_inf(before)))
    else:
        lost = pc.not_equal(before, after.cast(before.type, safe=False))
    lost = pc.fill_null(lost, False)
    if pc.any(lost).as_py():
        at = pc.index(lost, True).as_py()
        raise Lossy.of(before[at].as_py(), after[at].as_py())
