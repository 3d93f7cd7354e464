"""The rows of one side of a join in a task: those that came and those that wait."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.eventtime.times import NONE_MS
from floodplain.operators.joins.bounds import Bound
from floodplain.operators.joins.columns import PACKED, SideColumns
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.reserved_columns import AT, RIGHT_SIDE
from floodplain.state.columns import Elements
from floodplain.state.descriptors import List

MATCHED = "matched"
ROW = "row"


@dataclass(frozen=True, slots=True)
class ArrivedRows:
    """The rows of a batch, as numbers."""

    of_right: np.ndarray
    """Per row, whether it is one of the right side."""
    at: np.ndarray
    """Per row, its time in microseconds."""
    timeless: np.ndarray
    """Per row, whether it needs a time and has none."""
    left: np.ndarray
    right: np.ndarray
    """The rows of each side that may have partners."""
    hopeless: np.ndarray
    """The others: no time, or null in the key, which equals nothing."""

    @staticmethod
    def of(batch: Batch, *, timed: bool) -> "ArrivedRows":
        of_right = batch.column(RIGHT_SIDE).to_numpy(zero_copy_only=False)
        none = np.zeros(len(of_right), bool)
        times = batch.column(AT) if timed else None
        timeless = none if times is None or not times.null_count else times.is_null().to_numpy(zero_copy_only=False)
        null_keys = np.zeros(len(batch.keys), bool)
        for column in batch.keys.columns:
            if column.null_count:
                null_keys |= column.is_null().to_numpy()
        hopeless = timeless | null_keys[batch.key_of_row] if null_keys.any() else timeless
        return ArrivedRows(
            of_right,
            np.zeros(len(of_right), np.int64) if times is None else micros(times),
            timeless,
            np.flatnonzero(~of_right & ~hopeless),
            np.flatnonzero(of_right & ~hopeless),
            np.flatnonzero(hopeless),
        )


@dataclass(frozen=True, slots=True)
class SideRows:
    """Rows of one side: first those that came, then those that were stored."""

    new: int
    of: np.ndarray
    """The number of the key of each."""
    on: np.ndarray
    """What they are matched by."""
    ends: np.ndarray
    """When it is sure that no partner comes any more; empty if it never is."""
    columns: list[pa.Array]
    matched: np.ndarray
    """Whether they had a partner in an earlier epoch."""
    elements: Elements
    """Where the stored ones are."""

    def __len__(self) -> int:
        return len(self.of)

    def take(self, rows: np.ndarray) -> list[pa.Array]:
        at = pa.array(rows)
        return [column.take(at) for column in self.columns]


@dataclass(frozen=True)
class SideState:
    """How the rows of a side wait: a list of them per key, which is only appended to."""

    columns: SideColumns
    bound: Bound
    tracked: bool
    """Whether it is kept of each row that it had a partner."""

    @property
    def name(self) -> str:
        return self.columns.side

    def declared(self) -> List:
        return self.bound.state(self._type)

    @property
    def _type(self) -> pa.DataType:
        row = self.columns.stored
        if not self.tracked and row.num_fields:
            return row
        return pa.struct([(MATCHED, pa.bool_()), *([(ROW, row)] if row.num_fields else [])])

    def arrived(self, batch: Batch, rows: np.ndarray) -> list[pa.Array]:
        """The columns of these rows of the batch."""
        packed = PACKED[self.name]
        own = [batch.column(AT, rows)] if self.columns.timed else []
        if len(self.columns.fields) > len(own):
            own += batch.column(packed, rows).flatten()
        return own

    def rows(self, batch: Batch, new: np.ndarray, at: np.ndarray, numbers: np.ndarray, late_ms: int) -> SideRows:
        """``new`` rows of the batch, whose times are ``at``, and what is stored for these keys.

        Late is judged by ``late_ms``, as is what has expired by event time: what is not late finds all its partners.
        """
        row, on, ends = self.bound.spread(at, self.name, late_ms)
        new = new[row]
        stored = batch.elements(self.name).stored(numbers)
        came = self.arrived(batch, new)
        matched, waiting = self._unpacked(stored.values)
        before = micros(waiting[0]) if self.columns.timed else np.zeros(len(stored.numbers), np.int64)
        return SideRows(
            new=len(new),
            of=np.concatenate([batch.key_of_row[new], stored.numbers]),
            on=np.concatenate([on, self.bound.on(before, stored.ends)]),
            ends=np.concatenate([ends, stored.ends]) if self.bound.dated else ends,
            columns=[joined((one, other)) for one, other in zip(came, waiting, strict=True)],
            matched=np.concatenate([np.zeros(len(new), bool), matched]),
            elements=stored,
        )

    def timeless(self, batch: Batch, new: np.ndarray) -> SideRows:
        """Rows of the batch that have no time."""
        columns, nothing = self.arrived(batch, new), batch.elements(self.name).stored(np.empty(0, np.int64))
        ends = np.full(len(new), NONE_MS)
        return SideRows(len(new), batch.key_of_row[new], ends, ends, columns, np.zeros(len(new), bool), nothing)

    def keep(self, batch: Batch, rows: SideRows, kept: np.ndarray, matched: np.ndarray) -> None:
        """Store these of the rows that came."""
        values = self._packed([column.take(pa.array(kept)) for column in rows.columns], matched[kept])
        batch.elements(self.name).append(rows.of[kept], values, rows.ends[kept] if self.bound.dated else None)

    def mark(self, batch: Batch, rows: SideRows, which: np.ndarray) -> None:
        """Of these stored rows, note that they had a partner."""
        elements = rows.elements.at(which - rows.new)
        values = self._packed(self._unpacked(elements.values)[1], np.ones(len(which), bool))
        batch.elements(self.name).replace(Elements(elements.numbers, elements.positions, values, elements.ends))

    def forget(self, batch: Batch, rows: SideRows, which: np.ndarray) -> None:
        batch.elements(self.name).remove(rows.elements.at(which - rows.new))

    def _packed(self, columns: Sequence[pa.Array], matched: np.ndarray) -> pa.Array:
        row = pa.StructArray.from_arrays(list(columns), fields=list(self.columns.fields)) if columns else None
        if self._type == self.columns.stored:
            return row
        own = [pa.array(matched), *([] if row is None else [row])]
        return pa.StructArray.from_arrays(own, fields=list(self._type))

    def _unpacked(self, values: pa.Array) -> tuple[np.ndarray, list[pa.Array]]:
        if self._type == self.columns.stored:
            return np.zeros(len(values), bool), values.flatten()
        matched, *row = values.flatten()
        return matched.to_numpy(zero_copy_only=False), row[0].flatten() if row else []


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    some = [part for part in parts if len(part)]
    return pa.concat_arrays(some) if len(some) > 1 else (some or parts)[0]


def micros(times: pa.Array) -> np.ndarray:
    """Times as microseconds; integers are milliseconds. Where there is none, anything."""
    if not pa.types.is_timestamp(times.type):
        return times.cast(pa.int64()).fill_null(0).to_numpy() * 1000
    return times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).fill_null(0).to_numpy()


def distinct(below: int, *numbers: np.ndarray) -> np.ndarray:
    """Each number once, ascending; quicker than sorting them, since they are keys of the batch."""
    mask = np.zeros(below, bool)
    for some in numbers:
        mask[some] = True
    return np.flatnonzero(mask)


def wake(batch: Batch, of: np.ndarray, ends: np.ndarray) -> None:
    """One timer per key, at the first of these ends: who is woken looks at all that waits, and asks again for what is left."""
    never = np.iinfo(np.int64).max
    first = np.full(len(batch.keys), never)
    np.minimum.at(first, of, ends)
    numbers = np.flatnonzero(first < never)
    batch.timer(first[numbers], numbers)
