"""The columns of a join: of its input, where both sides are one table, and of its output."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.operators.kernel.reserved_columns import AT, PREFIX, RIGHT_SIDE, check_keys
from floodplain.state.tables import free_name

PACKED = {"left": f"{PREFIX}left", "right": f"{PREFIX}right"}
"""The columns of a side without key and time, as one struct; null in rows of the other side."""
REASON = "reason"
SIDE = "side"


@dataclass(frozen=True)
class SideColumns:
    """The columns of one side, its time first, with their input and output names."""

    side: str
    fields: tuple[pa.Field, ...]
    names: tuple[str, ...]
    timed: bool

    @property
    def schema(self) -> pa.Schema:
        """The output schema."""
        return pa.schema([pa.field(name, field.type) for name, field in zip(self.names, self.fields, strict=True)])

    @property
    def stored(self) -> pa.StructType:
        return pa.struct(self.fields)

    def nulls(self, rows: int) -> list[pa.Array]:
        return [pa.nulls(rows, field.type) for field in self.fields]


@dataclass(frozen=True)
class JoinColumns:
    """The columns of both sides."""

    keys: tuple[pa.Field, ...]
    left: SideColumns
    right: SideColumns

    def output(self, first: Sequence[pa.Field] = (), last: Sequence[pa.Field] = (), *, with_right: bool = True) -> pa.Schema:
        """Keys, ``first``, the left columns, the right ones, ``last``. Raises ``BadInput`` for duplicate names."""
        fields = [*self.keys, *first, *self.left.schema, *(self.right.schema if with_right else ()), *last]
        for name, times in Counter(field.name for field in fields).items():
            if times > 1:
                raise BadInput(
                    f"join: there would be {times} output columns called {name}: rename them with "
                    'suffixes=("_left", "_right"), or with select before the join'
                )
        return pa.schema(fields)

    def late(self) -> pa.Schema:
        """The schema of late rows: side, key, own columns (those of the other side are null), and the drop reason."""
        check_keys("join", [key.name for key in self.keys], REASON)
        named = {field.name: field for field in (*self.keys, *self.left.schema, *self.right.schema)}
        side, reason = (pa.field(free_name(name, named), pa.string()) for name in (SIDE, REASON))
        return pa.schema([side, *named.values(), reason])

    def late_rows(self, rows: pa.Table) -> pa.Table:
        """Late rows of both sides as ``late`` has them."""
        right = rows.column(RIGHT_SIDE)
        sides = [self._late_of(side, rows.filter(mask)) for side, mask in ((self.left, pc.invert(right)), (self.right, right))]
        return pa.concat_tables(sides, promote_options="default").select(self.late().names)

    def _late_of(self, side: SideColumns, rows: pa.Table) -> pa.Table:
        own = [rows.column(AT)] if side.timed else []
        own += rows.column(PACKED[side.side]).combine_chunks().flatten() if PACKED[side.side] in rows.column_names else []
        columns = self.late()
        named = {
            columns.names[0]: pa.repeat(side.side, len(rows)),
            columns.names[-1]: rows.column(REASON),
            **{key.name: rows.column(key.name) for key in self.keys},
            **dict(zip(side.names, own, strict=True)),
        }
        missing = [field for field in columns if field.name not in named]
        return pa.table({**named, **{field.name: pa.nulls(len(rows), field.type) for field in missing}})


def time_name(times: Sequence[str], suffixes: tuple[str, str] | None, right: int) -> str:
    """The output name of a side's time column, before the other columns are known."""
    return times[right] + (suffixes[right] if suffixes and times[0] == times[1] else "")


def join_columns(
    rows: pa.Schema, keys: Sequence[str], times: tuple[str | None, str | None], suffixes: tuple[str, str] | None
) -> JoinColumns:
    """The columns of both sides, from the schema of their common table. ``suffixes`` rename columns that both sides have."""
    left, right = (tuple(_fields(rows, side, time)) for side, time in zip(PACKED, times, strict=True))
    both = {field.name for field in left} & {field.name for field in right}
    ends = suffixes or ("", "")
    sides = [
        SideColumns(
            side, fields, tuple(field.name + end if field.name in both else field.name for field in fields), time is not None
        )
        for side, fields, end, time in zip(PACKED, (left, right), ends, times, strict=True)
    ]
    return JoinColumns(tuple(pa.field(key, rows.field(key).type) for key in keys), *sides)


def _fields(rows: pa.Schema, side: str, time: str | None) -> Iterator[pa.Field]:
    if time is not None:
        yield pa.field(time, rows.field(AT).type)
    if PACKED[side] in rows.names:
        packed = rows.field(PACKED[side]).type
        yield from (pa.field(field.name, field.type) for field in packed)
