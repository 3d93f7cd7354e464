"""The buffer of one side of a join: its new rows of an epoch and its stored rows."""

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
    """The new rows of a batch by side, as row numbers."""

    of_right: np.ndarray
    """Per row, whether it is of the right side."""
    at: np.ndarray
    """Per row, its time in microseconds."""
    timeless: np.ndarray
    """Per row, whether it lacks a time that the join needs."""
    left: np.ndarray
    right: np.ndarray
    """The rows of each side that may match."""
    unmatchable: np.ndarray
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
        unmatchable = timeless | null_keys[batch.key_of_row] if null_keys.any() else timeless
        return ArrivedRows(
            of_right,
            np.zeros(len(of_right), np.int64) if times is None else micros(times),
            timeless,
            np.flatnonzero(~of_right & ~unmatchable),
            np.flatnonzero(of_right & ~unmatchable),
            np.flatnonzero(unmatchable),
        )


@dataclass(frozen=True, slots=True)
class SideRows:
    """Rows of one side: first the new ones, then the buffered ones."""

    new: int
    of: np.ndarray
    """The key number of each row."""
    on: np.ndarray
    """The match value of each row, such as its time."""
    ends: np.ndarray
    """The watermark at which each row expires; empty if none does."""
    columns: list[pa.Array]
    matched: np.ndarray
    """Whether each row had a partner in an earlier epoch."""
    elements: Elements
    """The state elements of the buffered rows."""

    def __len__(self) -> int:
        return len(self.of)

    def take(self, rows: np.ndarray) -> list[pa.Array]:
        at = pa.array(rows)
        return [column.take(at) for column in self.columns]


@dataclass(frozen=True)
class SideState:
    """The state of a side: an append-only list of rows per key."""

    columns: SideColumns
    bound: Bound
    tracked: bool
    """Whether the state records which rows have had a partner."""

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

    def columns_of(self, batch: Batch, rows: np.ndarray) -> list[pa.Array]:
        """The columns of these rows of the batch."""
        packed = PACKED[self.name]
        own = [batch.column(AT, rows)] if self.columns.timed else []
        if len(self.columns.fields) > len(own):
            own += batch.column(packed, rows).flatten()
        return own

    def rows(self, batch: Batch, new: np.ndarray, at: np.ndarray, numbers: np.ndarray, late_ms: int) -> SideRows:
        """``new`` rows of the batch, whose times are ``at``, and the buffered rows of these keys.

        ``late_ms`` decides which rows are late and which have expired: a row on time finds all its partners.
        """
        row, on, ends = self.bound.spread(at, self.name, late_ms)
        new = new[row]
        stored = batch.elements(self.name).stored(numbers)
        new_columns = self.columns_of(batch, new)
        matched, waiting = self._unpacked(stored.values)
        before = micros(waiting[0]) if self.columns.timed else np.zeros(len(stored.numbers), np.int64)
        return SideRows(
            new=len(new),
            of=np.concatenate([batch.key_of_row[new], stored.numbers]),
            on=np.concatenate([on, self.bound.on(before, stored.ends)]),
            ends=np.concatenate([ends, stored.ends]) if self.bound.dated else ends,
            columns=[joined((one, other)) for one, other in zip(new_columns, waiting, strict=True)],
            matched=np.concatenate([np.zeros(len(new), bool), matched]),
            elements=stored,
        )

    def timeless(self, batch: Batch, new: np.ndarray) -> SideRows:
        """Rows of the batch that have no time."""
        columns, nothing = self.columns_of(batch, new), batch.elements(self.name).stored(np.empty(0, np.int64))
        ends = np.full(len(new), NONE_MS)
        return SideRows(len(new), batch.key_of_row[new], ends, ends, columns, np.zeros(len(new), bool), nothing)

    def keep(self, batch: Batch, rows: SideRows, kept: np.ndarray, matched: np.ndarray) -> None:
        """Buffers these of the new rows."""
        values = self._packed([column.take(pa.array(kept)) for column in rows.columns], matched[kept])
        batch.elements(self.name).append(rows.of[kept], values, rows.ends[kept] if self.bound.dated else None)

    def mark(self, batch: Batch, rows: SideRows, which: np.ndarray) -> None:
        """Marks these buffered rows as matched."""
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
    """Times as microseconds; integers are milliseconds. Any value for null."""
    if not pa.types.is_timestamp(times.type):
        return times.cast(pa.int64()).fill_null(0).to_numpy() * 1000
    return times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).fill_null(0).to_numpy()


def distinct(below: int, *numbers: np.ndarray) -> np.ndarray:
    """Distinct key numbers, ascending; faster than sorting, because they are dense."""
    mask = np.zeros(below, bool)
    for some in numbers:
        mask[some] = True
    return np.flatnonzero(mask)


def wake(batch: Batch, of: np.ndarray, ends: np.ndarray) -> None:
    """Sets one timer per key, at the first of these ends: when it fires, all rows of the key are checked, and the next is set."""
    never = np.iinfo(np.int64).max
    first = np.full(len(batch.keys), never)
    np.minimum.at(first, of, ends)
    numbers = np.flatnonzero(first < never)
    batch.timer(first[numbers], numbers)
