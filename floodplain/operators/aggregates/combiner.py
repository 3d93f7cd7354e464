"""Combiner: pre-aggregates rows before the shuffle, one row per key (or key and pane) and input partition."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.eventtime.times import NONE_MS, as_ms, as_us
from floodplain.eventtime.windows import TimeWindows
from floodplain.keys import hash_columns, normalize_keys
from floodplain.operators.aggregates.aggregation import Aggregation, Partials
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.pane_index import order_of
from floodplain.operators.kernel.reserved_columns import PREFIX, ROWS
from floodplain.operators.kernel.segments import Groups, TooLarge, filled, groups_are, groups_of
from floodplain.operators.kernel.traits import Combiner, GroupedSql, Partial
from floodplain.store.rows.layout import one_array
from floodplain.store.rows.row_classes import hash_order, refine, starts_of

_PARTIAL = f"{PREFIX}partial_"
_GROUP = f"{PREFIX}group_"


def pane_ms(times: pa.ChunkedArray, *, inclusive: bool) -> np.ndarray:
    """The millisecond that decides in which window each time lies; 0 for null. Windows start and end at whole milliseconds, so
    the microseconds matter only where windows include their end."""
    return (filled(as_us(times), 0) - 1) // 1000 if inclusive else filled(as_ms(times), 0)


def partials_of(aggregation: Aggregation, batch: Batch, groups: Groups, order: np.ndarray | None) -> tuple[Partials, np.ndarray]:
    """The partials of the epoch's rows in this order, and the number of rows in each group, pre-aggregated or not."""

    def column(name: str) -> pa.Array:
        return batch.column(name, order)

    key_of = batch.key_of_row if order is None else batch.key_of_row[order]
    with groups_are(key_of[groups.starts]):
        if not batch.has(ROWS):
            return aggregation.of(column, groups), groups.sizes
        parts = [column(f"{_PARTIAL}{i}") for i in range(len(aggregation.partial))]
        return aggregation.combine(parts, groups), groups.reduced(np.add, column(ROWS).to_numpy())


@dataclass(frozen=True)
class AggregateCombiner(Combiner):
    """Aggregates the rows of each key and pane (of each key, without windows) to partials, in Spark SQL or in Arrow.

    A combined row has the latest event time of its rows. It is late exactly if they are, because windows open and close with
    whole panes.
    """

    aggregation: Aggregation
    keys: tuple[str, ...]
    time: pa.Field | None
    windows: TimeWindows | None
    when: Partial = "auto"
    inclusive: bool = False
    """Whether windows include their end."""

    @property
    def _own_time(self) -> list[str]:
        """The event-time column, unless it is a key: then all rows of a group have the same time."""
        return [] if self.time is None or self.time.name in self.keys else [self.time.name]

    def schema(self, rows: pa.Schema) -> pa.Schema:
        kept = [rows.field(name) for name in (*self.keys, *self._own_time)]
        partials = [pa.field(f"{_PARTIAL}{i}", field.type) for i, field in enumerate(self.aggregation.partial)]
        return pa.schema([*kept, pa.field(ROWS, pa.int64()), *partials])

    def sql(self) -> GroupedSql | None:
        computed = [f"count(1) as {ROWS}"]
        columns = [*(f"{_GROUP}{i} as {quoted(key)}" for i, key in enumerate(self.keys)), ROWS]
        type_ = None if self.time is None or self.windows is None else self.time.type
        if type_ is not None and pa.types.is_timestamp(type_) and type_.tz is None:
            return None
        for time in map(quoted, self._own_time):
            computed, columns = [*computed, f"max({time}) as {time}"], [*columns, time]
        at = 0
        for part in self.aggregation.parts:
            aggregate, width = part.aggregate, len(part.partial)
            where = "" if aggregate.where is None else f" filter (where {quoted(aggregate.where)})"
            expressions = aggregate.sql([quoted(each) for each in aggregate.arguments], where, part.types)
            if expressions is None:
                return None
            names = [f"{_PARTIAL}{at + i}" for i in range(width)]
            computed += [f"{expression} as {name}" for expression, name in zip(expressions, names, strict=False)]
            columns += names if len(expressions) == width else [f"{names[0]}.p{i} as {name}" for i, name in enumerate(names)]
            at += width
        by = [quoted(key) for key in self.keys] + ([] if self.windows is None else [self._pane()])
        return GroupedSql([f"{expression} as {_GROUP}{i}" for i, expression in enumerate(by)], computed, columns)

    def _pane(self) -> str:
        assert self.windows is not None and self.time is not None
        time = quoted(self.time.name)
        if pa.types.is_timestamp(self.time.type):
            time = f"unix_millis({f'timestamp_micros(unix_micros({time}) - 1)' if self.inclusive else time})"
        elif self.inclusive:
            time = f"({time} - 1)"
        return f"{time} - pmod({time} - {self.windows.offset_ms}L, {self.windows.pane_ms}L)"

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The Arrow version of ``sql``."""
        keys = normalize_keys([rows.column(key) for key in self.keys])
        pane = np.zeros(len(rows), np.int64)
        if self.windows is not None:
            assert self.time is not None
            times = rows.column(self.time.name)
            pane = np.where(times.is_null(), NONE_MS, self.windows.pane_of(pane_ms(times, inclusive=self.inclusive)))
        number, order = _numbered(keys)
        again = order_of((number, pane[order]))
        if again is not None:
            number, order = number[again], order[again]
        try:
            return self._combined(rows, keys, order, groups_of(number, pane[order]))
        except TooLarge:  # The operator gets each row by itself then, and raises the error with the key.
            return self._combined(rows, keys, order, Groups(np.arange(len(order)), len(order)))

    def _combined(self, rows: pa.Table, keys: Sequence[pa.Array], order: np.ndarray, groups: Groups) -> pa.Table:
        first = pa.array(order[groups.starts])
        columns = {key: column.take(first) for key, column in zip(self.keys, keys, strict=True)}
        for name in self._own_time:
            time = one_array(rows.column(name)).take(pa.array(order))
            columns[name] = (
                pa.table({"g": groups.of_row, "t": time}).group_by("g", use_threads=False).aggregate([("t", "max")])["t_max"]
            )
        partials = self.aggregation.of(lambda name: one_array(rows.column(name)).take(pa.array(order)), groups)
        columns[ROWS] = pa.array(groups.sizes)
        return pa.table(columns | {f"{_PARTIAL}{i}": part for i, part in enumerate(partials)})


def _numbered(keys: Sequence[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """A number for each distinct key, per row in ascending order, and the order that sorts the rows so."""
    hashes = hash_columns(keys)
    order = hash_order(hashes)
    return refine(starts_of(hashes[order]), [key.take(pa.array(order)) for key in keys]), order


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
