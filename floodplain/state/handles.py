"""Handles on states with one entry per key, by which process functions read and write state.

A handle points at one key at a time (``i``). It sees the state at the start of the epoch with the writes since; all writes become
one delta at the end. Values that Python code does not read stay in Arrow.
"""

import copy
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.lossless import cast
from floodplain.state.descriptors import Aggregating, Reducing, Value
from floodplain.state.keyspace import TableCursor
from floodplain.state.kinds import plain_kind
from floodplain.state.pythonic import to_python
from floodplain.state.tables import StateColumn
from floodplain.state.value_check import check_each, checked_converter, identity, quick_check
from floodplain.store.rows import merge_functions
from floodplain.store.rows.delta import EXPIRES_OF
from floodplain.store.rows.layout import at_rows, one_array
from floodplain.store.rows.row_classes import starts_of


class _Absent:
    """Marks a state that does not exist; null may be a value."""


ABSENT: Final = _Absent()


class ValueHandle:
    """One value per key: ``get``, ``set``, ``clear``, ``exists``."""

    def __init__(self, state: Value, place: StateColumn, cursor: TableCursor) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self.cursor = cursor
        self._default = state.default
        self._null = None if place.null_mark else ABSENT
        self._values: list[Any] | None = None
        self._replaced: pa.Array | None = None
        self._some: tuple[pa.Array, np.ndarray] | None = None
        """New values of some keys that are not in ``_replaced`` yet: writes alone need no copy of all values."""
        self._touched = bytearray(len(cursor.space))
        self._renewed = np.zeros(len(cursor.space), bool)
        self._fits = quick_check(state.arrow)
        self._kind, self._convert = plain_kind(state.arrow), checked_converter(f"state {place.column}", state.arrow)

    def trust(self) -> None:
        """Skips conversions: a built-in caller passes only valid values."""
        self._convert = identity

    def get(self) -> Any:
        """The value, or the default if there is none."""
        value = (self._values or self._load())[self.i]
        return self._default if value is ABSENT else value

    def exists(self) -> bool:
        return (self._values or self._load())[self.i] is not ABSENT

    def set(self, value: Any) -> None:
        if type(value) is not self._kind:
            value = self._null if value is None else self._convert(value)
        (self._values or self._load())[self.i] = value
        self._touched[self.i] = 1

    def has_set(self, value: Any) -> bool:
        """Whether this epoch has set the value of this key, and to this one."""
        if not self._touched[self.i]:
            return False
        return bool((self._values or self._load())[self.i] == (self._null if value is None else self._convert(value)))

    def clear(self) -> None:
        (self._values or self._load())[self.i] = ABSENT
        self._touched[self.i] = 1

    def _load(self) -> list[Any]:
        before = self.cursor.aligned()
        column = before.column(self.place.column)
        values = to_python(column)
        if column.null_count:
            marks = before.column(self.place.null_mark).to_pylist() if self.place.null_mark else [None] * len(values)
            values = [ABSENT if value is None and not mark else value for value, mark in zip(values, marks, strict=True)]
        self._values = values
        return values

    def column(self) -> pa.Array:
        """The values of all keys; the default where a key has none."""
        values = self._current()
        if self._default is None or not values.null_count:
            return values
        choice = np.where(self.present(), np.arange(len(values)), len(values))
        return pa.concat_arrays([values, pa.array([self._default], values.type)]).take(pa.array(choice))

    def present(self) -> np.ndarray:
        """Per key, whether it has a value; a null that was set is a value."""
        present = _valid(self._current())
        if self.place.null_mark:
            present |= _valid(self.cursor.aligned().column(self.place.null_mark)) & ~self.touched()
        return present

    def replace(self, values: pa.Array, numbers: np.ndarray | None = None) -> None:
        """Sets the values of all keys, or of these; null clears. If a key occurs twice, the last value counts."""
        if numbers is None:
            self._replaced, self._some = values, None
            self._touched = bytearray(b"\1" * len(self._touched))
            return
        self._current()
        np.frombuffer(self._touched, np.uint8)[numbers] = 1
        if len(numbers) == np.count_nonzero(self._touched):
            self._some = (values, numbers)
        else:
            self._replaced = self._with(values, numbers)

    def _with(self, values: pa.Array, numbers: np.ndarray) -> pa.Array:
        current = self._current()
        choice = np.arange(len(current))
        choice[numbers] = len(current) + np.arange(len(numbers))
        return pa.concat_arrays([current, values]).take(pa.array(choice))

    def _replaced_at(self, numbers: np.ndarray) -> pa.Array | None:
        """The new values of these keys; None if nothing was replaced. Without a copy if they were set for exactly these keys."""
        if self._some is not None and np.array_equal(self._some[1], numbers):
            return self._some[0]
        self._current()
        return None if self._replaced is None else at_rows(self._replaced, numbers)

    def _current(self) -> pa.Array:
        if self._some is not None:
            some, self._some = self._some, None
            self._replaced = self._with(*some)
        return one_array(self.cursor.aligned().column(self.place.column)) if self._replaced is None else self._replaced

    def renew(self, numbers: np.ndarray) -> None:
        """Restarts the ttl of the values of these keys."""
        self._renewed[numbers] = True

    def touched(self) -> np.ndarray:
        return np.frombuffer(self._touched, bool)

    def rewritten(self) -> np.ndarray:
        """Per key, whether its row must be put."""
        return self.touched() | self._renewed

    def columns(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        """The columns of this state in the rows to be put for these keys."""
        before = self.cursor.aligned()
        names = [name for name in (self.place.column, self.place.null_mark) if name]
        replaced = self._replaced_at(numbers)
        if replaced is not None:
            fresh = self.touched()[numbers]
            out = {names[0]: replaced}
            out |= {name: _cleared(at_rows(before.column(name), numbers), fresh) for name in names[1:]}
        elif self._values is None:
            out = {name: at_rows(before.column(name), numbers) for name in names}
        else:
            values = [self._values[number] for number in numbers.tolist()]
            out = {names[0]: pa.array([None if value is ABSENT else value for value in values], self.state.arrow)}
            if self.place.null_mark:
                out[self.place.null_mark] = pa.array([True if value is None else None for value in values], pa.bool_())
        if self.state.ttl_ms:
            out |= {EXPIRES_OF + name: _ends(self, self.cursor, name, numbers) for name in names}
        return out

    def mark(self) -> Any:
        """A savepoint of the current key for ``rollback``."""
        if not self._touched[self.i]:
            return None
        assert self._values is not None
        value = self._values[self.i]
        return (value if self._fits(value) else copy.deepcopy(value),)

    def rollback(self, marked: Any) -> None:
        """Restores the current key. A value that was not touched before is read again: it may have been changed in place."""
        self._touched[self.i] = marked is not None
        if marked is not None:
            (self._values or self._load())[self.i] = marked[0]
        elif self._values is not None:
            self._values[self.i] = self._stored(self.i)

    def check(self) -> None:
        """Raises if the value set for this key does not fit the declared type."""
        if self._touched[self.i] and self._values is not None:
            value = self._values[self.i]
            if value is not ABSENT and not self._fits(value):
                check_each([value], self.state.arrow)

    def _stored(self, number: int) -> Any:
        before = self.cursor.aligned()
        value = before.column(self.place.column)[number].as_py()
        if value is None and not (self.place.null_mark and before.column(self.place.null_mark)[number].as_py()):
            return ABSENT
        return value


class ReducingHandle:
    """``Reducing`` and ``Aggregating``: ``add`` (which reads nothing), ``get``, ``clear``, ``exists``."""

    def __init__(self, state: Reducing | Aggregating, place: StateColumn, cursor: TableCursor) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self.cursor = cursor
        self._fold = merge_functions.required(state.merge_name, cursor.name)
        self._added: dict[int, list[Any]] = {}
        self._added_many: list[tuple[np.ndarray, pa.Array]] = []
        self._cleared = bytearray(len(cursor.space))
        self._kind, self._convert = plain_kind(self.operand_type), checked_converter(f"state {place.column}", self.operand_type)

    def trust(self) -> None:
        """Skips conversions: a built-in caller passes only valid values."""
        self._convert = identity

    def add(self, operand: Any) -> None:
        if type(operand) is not self._kind:
            operand = self._convert(operand)
        added = self._added.get(self.i)
        if added is None:
            self._added[self.i] = [operand]
        else:
            added.append(operand)

    def get(self) -> Any:
        """The stored value with all operands folded in; the default if there is neither."""
        parts = [part for part in (self._base(), self._operands([self.i])) if len(part)]
        if not parts:
            return self.state.default
        folded = self._fold(pa.concat_arrays(parts), np.zeros(1, np.int64))
        return (self.state.finish(folded) if isinstance(self.state, Aggregating) else folded)[0].as_py()

    def exists(self) -> bool:
        return bool(len(self._base()) or self.i in self._added)

    def clear(self) -> None:
        self._added.pop(self.i, None)
        self._cleared[self.i] = 1

    def _base(self) -> pa.Array:
        if self._cleared[self.i]:
            return pa.nulls(0, self.state.arrow)
        return self.cursor.aligned().column(self.place.column).chunk(0).slice(self.i, 1).drop_null()

    def _operands(self, numbers: list[int]) -> pa.Array:
        return self._lifted(
            pa.array([operand for number in numbers for operand in self._added.get(number, ())], self.operand_type)
        )

    @property
    def operand_type(self) -> pa.DataType:
        return self.state.arrow_input if isinstance(self.state, Aggregating) else self.state.arrow

    def _lifted(self, inputs: pa.Array) -> pa.Array:
        return cast(one_array(self.state.lift(inputs)), self.state.arrow) if isinstance(self.state, Aggregating) else inputs

    def add_many(self, operands: pa.Array, numbers: np.ndarray) -> None:
        """Folds operand i into the value of key ``numbers[i]``, without reading it."""
        self._added_many.append((numbers, self._lifted(operands)))

    def clear_many(self, numbers: np.ndarray) -> None:
        np.frombuffer(self._cleared, np.uint8)[numbers] = 1
        gone = np.zeros(len(self._cleared), bool)
        gone[numbers] = True
        self._added_many = [(of[~gone[of]], operands.filter(pa.array(~gone[of]))) for of, operands in self._added_many]

    def column(self) -> pa.Array:
        """As ``get``, for all keys."""
        numbers, folded = self._folded()
        finished = one_array(self.state.finish(folded)) if isinstance(self.state, Aggregating) else folded
        return self._spread(numbers, finished, self.state.default)

    def present(self) -> np.ndarray:
        """Per key, whether it has a value."""
        mask = np.zeros(len(self._cleared), bool)
        mask[self._parts()[0]] = True
        return mask

    def _folded(self) -> tuple[np.ndarray, pa.Array]:
        """The keys that have a value, and their values with all operands folded in."""
        numbers, operands = self._parts()
        starts = starts_of(numbers)
        return numbers[starts], self._fold(operands, np.flatnonzero(starts)) if len(numbers) else operands

    def _spread(self, numbers: np.ndarray, values: pa.Array, otherwise: Any) -> pa.Array:
        """One value per key of the task."""
        choice = np.full(len(self._cleared), len(values))
        choice[numbers] = np.arange(len(values))
        return pa.concat_arrays([values, pa.array([otherwise], values.type)]).take(pa.array(choice))

    def _parts(self) -> tuple[np.ndarray, pa.Array]:
        """The key numbers and the operands to fold, sorted by key, oldest first; the stored value is the first operand."""
        base = one_array(self.cursor.aligned().column(self.place.column))
        kept = np.flatnonzero(_valid(base) & ~self.touched())
        parts = [(kept, base.take(pa.array(kept))), *self._added_singly(), *self._added_many]
        numbers, operands = np.concatenate([of for of, _ in parts]), pa.concat_arrays([values for _, values in parts])
        if operands.null_count:
            numbers, operands = numbers[_valid(operands)], operands.drop_null()
        order = np.argsort(numbers, kind="stable")
        return numbers[order], operands.take(pa.array(order))

    def touched(self) -> np.ndarray:
        return np.frombuffer(self._cleared, bool)

    @property
    def _merges(self) -> bool:
        """Whether operands are merged without a read. The store decides whether the base of a merge has expired at the expiry
        time of the operand less the ttl. By processing time that is the time of writing; by event time it is not, so values are
        read and put instead."""
        return not (self.state.ttl_ms and self.cursor.by_event_time)

    def rewritten(self) -> np.ndarray:
        """Per key, whether its row must be put: after a clear, or if operands are not merged."""
        if self._merges:
            return self.touched()
        mask = self.touched().copy()
        mask[list(self._added)] = True
        for numbers, _ in self._added_many:
            mask[numbers] = True
        return mask

    def columns(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        """The columns of this state in the rows to be put for these keys; merges are written after them."""
        before, name = self.cursor.aligned(), self.place.column or ""
        if self._merges:
            gone = pa.array(self.touched()[numbers])
            kept = pc.if_else(gone, pa.scalar(None, self.state.arrow), at_rows(before.column(name), numbers))
            ends = at_rows(before.column(EXPIRES_OF + name), numbers) if self.state.ttl_ms else None
        else:
            kept, ends = at_rows(self._spread(*self._folded(), None), numbers), _ends(self, self.cursor, name, numbers)
        return {name: kept} if ends is None else {name: kept, EXPIRES_OF + name: ends}

    def write_additions(self) -> None:
        for owners, operands in (*self._added_singly(), *self._added_many) if self._merges else ():
            self.cursor.write_at(owners, {self.place.column or "": operands}, "merge")

    def _added_singly(self) -> list[tuple[np.ndarray, pa.Array]]:
        numbers = list(self._added)
        sizes = [len(self._added[number]) for number in numbers]
        return [(np.repeat(numbers, sizes), self._operands(numbers))] if numbers else []

    def mark(self) -> Any:
        return list(self._added[self.i]) if self.i in self._added else None, self._cleared[self.i]

    def rollback(self, marked: Any) -> None:
        restore(self._added, self.i, marked[0])
        self._cleared[self.i] = marked[1]

    def check(self) -> None:
        if self.i in self._added:
            check_each(self._added[self.i], self.operand_type)
            self._operands([self.i])


def _cleared(marks: pa.ChunkedArray, where: np.ndarray) -> pa.Array | pa.ChunkedArray:
    """Null marks, cleared where this holds."""
    return marks if marks.null_count == len(marks) else pc.if_else(pa.array(where), pa.scalar(None, pa.bool_()), marks)


def restore(kept: dict[Any, Any], number: Any, value: Any) -> None:
    """Restores the entry of a key; None: there was none."""
    if value is None:
        kept.pop(number, None)
    else:
        kept[number] = value


def _valid(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.array(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else np.ones(len(column), bool)


OneEntry = ValueHandle | ReducingHandle


def _ends(handle: OneEntry, cursor: TableCursor, name: str, numbers: np.ndarray) -> pa.Array:
    """The expiry times of the values of these keys in this column."""
    before = one_array(at_rows(cursor.aligned().column(EXPIRES_OF + name), numbers))
    now = cursor.ends(numbers, handle.state.ttl_ms, before)
    return pc.if_else(pa.array(handle.rewritten()[numbers]), now, before)


def write_values(cursor: TableCursor, handles: list[OneEntry]) -> None:
    """Writes one row per key whose states were set or cleared; states that were only added to are merged without a read."""
    touched = np.zeros(len(cursor.space), bool)
    for handle in handles:
        touched |= handle.rewritten()
    numbers = np.flatnonzero(touched)
    if len(numbers):
        columns: dict[str, pa.Array] = {}
        for handle in handles:
            columns |= handle.columns(numbers)
        named = [name for handle in handles for name in (handle.place.column or "", handle.place.null_mark) if name is not None]
        marks = [columns[name] for name in named if columns[name].null_count < len(numbers)]
        full = any(not mark.null_count for mark in marks)
        kept = np.ones(len(numbers), bool) if full else np.zeros(len(numbers), bool)
        for mark in [] if full else marks:
            kept |= _valid(mark)
        if kept.all():
            cursor.write_at(numbers, columns, "put")
        else:
            if kept.any():
                cursor.write_at(numbers[kept], {name: values.filter(pa.array(kept)) for name, values in columns.items()}, "put")
            cursor.write_at(numbers[~kept], {}, "delete")
    for handle in handles:
        if isinstance(handle, ReducingHandle):
            handle.write_additions()
