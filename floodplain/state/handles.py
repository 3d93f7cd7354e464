"""Handles on states with one entry per key: what a user's function reads and writes while it is called for one key.

A handle points at one key at a time (``i``). It sees the state as the epoch began plus what was written since, and all of it
becomes one delta at the end. What Python never looks at stays in Arrow.
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
from floodplain.state.value_check import as_it_is, check_each, fitting, surely_fits
from floodplain.store.rows import merge_functions
from floodplain.store.rows.delta import EXPIRES_OF
from floodplain.store.rows.layout import at_rows, one_array
from floodplain.store.rows.row_classes import starts_of


class _Absent:
    """Stands for a state that is not there, since null may be a value."""


ABSENT: Final = _Absent()


class ValueHandle:
    """One value per key: ``get``, ``set``, ``clear``, ``exists``."""

    def __init__(self, state: Value, place: StateColumn, cursor: TableCursor) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self._cursor = cursor
        self._default = state.default
        self._null = None if place.null_mark else ABSENT
        self._values: list[Any] | None = None
        self._replaced: pa.Array | None = None
        self._some: tuple[pa.Array, np.ndarray] | None = None
        """Values of some keys that are not in ``_replaced`` yet: who only writes needs no copy of all."""
        self._touched = bytearray(len(cursor.space))
        self._renewed = np.zeros(len(cursor.space), bool)
        self._fits = surely_fits(state.arrow)
        self._kind, self._fit = plain_kind(state.arrow), fitting(f"state {place.column}", state.arrow)

    def trust(self) -> None:
        """What is given is as the store has it: made by code of ours, which checks it."""
        self._fit = as_it_is

    def get(self) -> Any:
        """The value, or the default where there is none."""
        value = (self._values or self._load())[self.i]
        return self._default if value is ABSENT else value

    def exists(self) -> bool:
        return (self._values or self._load())[self.i] is not ABSENT

    def set(self, value: Any) -> None:
        if type(value) is not self._kind:
            value = self._null if value is None else self._fit(value)
        (self._values or self._load())[self.i] = value
        self._touched[self.i] = 1

    def clear(self) -> None:
        (self._values or self._load())[self.i] = ABSENT
        self._touched[self.i] = 1

    def _load(self) -> list[Any]:
        before = self._cursor.aligned()
        column = before.column(self.place.column)
        values = to_python(column)
        if column.null_count:
            marks = before.column(self.place.null_mark).to_pylist() if self.place.null_mark else [None] * len(values)
            values = [ABSENT if value is None and not mark else value for value, mark in zip(values, marks, strict=True)]
        self._values = values
        return values

    def column(self) -> pa.Array:
        """The values of all keys, with the default where there is none."""
        values = self._current()
        if self._default is None or not values.null_count:
            return values
        choice = np.where(self.present(), np.arange(len(values)), len(values))
        return pa.concat_arrays([values, pa.array([self._default], values.type)]).take(pa.array(choice))

    def present(self) -> np.ndarray:
        """Per key, whether there is a value; a null that was set is one."""
        there = _valid(self._current())
        if self.place.null_mark:
            there |= _valid(self._cursor.aligned().column(self.place.null_mark)) & ~self.touched()
        return there

    def replace(self, values: pa.Array, numbers: np.ndarray | None = None) -> None:
        """Set the values of all keys at once, or of these; null clears. Of a key given twice the last counts."""
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
        """What was set of these keys, if any was; as it was given, where it was given for just these."""
        if self._some is not None and np.array_equal(self._some[1], numbers):
            return self._some[0]
        self._current()
        return None if self._replaced is None else at_rows(self._replaced, numbers)

    def _current(self) -> pa.Array:
        if self._some is not None:
            some, self._some = self._some, None
            self._replaced = self._with(*some)
        return one_array(self._cursor.aligned().column(self.place.column)) if self._replaced is None else self._replaced

    def renew(self, numbers: np.ndarray) -> None:
        """The values of these keys live on, as if they had been set again."""
        self._renewed[numbers] = True

    def touched(self) -> np.ndarray:
        return np.frombuffer(self._touched, bool)

    def rewritten(self) -> np.ndarray:
        """Keys whose row must be put anew."""
        return self.touched() | self._renewed

    def columns(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        """This state's columns of the rows of these keys, as they shall be."""
        before = self._cursor.aligned()
        names = [name for name in (self.place.column, self.place.null_mark) if name]
        replaced = self._replaced_at(numbers)
        if replaced is not None:
            fresh = self.touched()[numbers]
            out = {names[0]: replaced}
            out |= {name: _cleared(at_rows(before.column(name), numbers), fresh) for name in names[1:]}
        elif self._values is None:
            out = {name: at_rows(before.column(name), numbers) for name in names}
        else:
            given = [self._values[number] for number in numbers.tolist()]
            out = {names[0]: pa.array([None if value is ABSENT else value for value in given], self.state.arrow)}
            if self.place.null_mark:
                out[self.place.null_mark] = pa.array([True if value is None else None for value in given], pa.bool_())
        if self.state.ttl_ms:
            out |= {EXPIRES_OF + name: _ends(self, self._cursor, name, numbers) for name in names}
        return out

    def mark(self) -> Any:
        """The state of this key as it is now, to be given to ``rollback``."""
        if not self._touched[self.i]:
            return None
        assert self._values is not None
        value = self._values[self.i]
        return (value if self._fits(value) else copy.deepcopy(value),)

    def rollback(self, marked: Any) -> None:
        """What was not yet touched is read again: a value may have been changed in place."""
        self._touched[self.i] = marked is not None
        if marked is not None:
            (self._values or self._load())[self.i] = marked[0]
        elif self._values is not None:
            self._values[self.i] = self._stored(self.i)

    def check(self) -> None:
        """Raises if what was set for this key does not fit the declared type."""
        if self._touched[self.i] and self._values is not None:
            value = self._values[self.i]
            if value is not ABSENT and not self._fits(value):
                check_each([value], self.state.arrow)

    def _stored(self, number: int) -> Any:
        before = self._cursor.aligned()
        value = before.column(self.place.column)[number].as_py()
        if value is None and not (self.place.null_mark and before.column(self.place.null_mark)[number].as_py()):
            return ABSENT
        return value


class ReducingHandle:
    """A value that is added to without being read: ``add``, ``get``, ``clear``, ``exists``. Serves ``Aggregating`` too."""

    def __init__(self, state: Reducing | Aggregating, place: StateColumn, cursor: TableCursor) -> None:
        self.i = 0
        self.state = state
        self.place = place
        self._cursor = cursor
        self._fold = merge_functions.required(state.merge_name, cursor.name)
        self._added: dict[int, list[Any]] = {}
        self._added_many: list[tuple[np.ndarray, pa.Array]] = []
        self._cleared = bytearray(len(cursor.space))
        self._kind, self._fit = plain_kind(self.operand_type), fitting(f"state {place.column}", self.operand_type)

    def trust(self) -> None:
        """What is given is as the store has it: made by code of ours, which checks it."""
        self._fit = as_it_is

    def add(self, operand: Any) -> None:
        if type(operand) is not self._kind:
            operand = self._fit(operand)
        added = self._added.get(self.i)
        if added is None:
            self._added[self.i] = [operand]
        else:
            added.append(operand)

    def get(self) -> Any:
        """What was there folded with what was added; the default if there is neither."""
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
        return self._cursor.aligned().column(self.place.column).chunk(0).slice(self.i, 1).drop_null()

    def _operands(self, numbers: list[int]) -> pa.Array:
        return self._lifted(
            pa.array([operand for number in numbers for operand in self._added.get(number, ())], self.operand_type)
        )

    @property
    def operand_type(self) -> pa.DataType:
        return self.state.arrow_input if isinstance(self.state, Aggregating) else self.state.arrow

    def _lifted(self, given: pa.Array) -> pa.Array:
        return cast(one_array(self.state.lift(given)), self.state.arrow) if isinstance(self.state, Aggregating) else given

    def add_many(self, operands: pa.Array, numbers: np.ndarray) -> None:
        """Fold operand i into the value of key ``numbers[i]``, without reading it."""
        self._added_many.append((numbers, self._lifted(operands)))

    def clear_many(self, numbers: np.ndarray) -> None:
        np.frombuffer(self._cleared, np.uint8)[numbers] = 1
        gone = np.zeros(len(self._cleared), bool)
        gone[numbers] = True
        self._added_many = [(of[~gone[of]], given.filter(pa.array(~gone[of]))) for of, given in self._added_many]

    def column(self) -> pa.Array:
        """The value of all keys: what was there folded with what was added; the default if there is neither."""
        numbers, folded = self._folded()
        finished = one_array(self.state.finish(folded)) if isinstance(self.state, Aggregating) else folded
        return self._spread(numbers, finished, self.state.default)

    def present(self) -> np.ndarray:
        """Per key, whether there is a value."""
        mask = np.zeros(len(self._cleared), bool)
        mask[self._parts()[0]] = True
        return mask

    def _folded(self) -> tuple[np.ndarray, pa.Array]:
        """The keys that have a value, and what was there folded with what was added."""
        numbers, operands = self._parts()
        starts = starts_of(numbers)
        return numbers[starts], self._fold(operands, np.flatnonzero(starts)) if len(numbers) else operands

    def _spread(self, numbers: np.ndarray, values: pa.Array, otherwise: Any) -> pa.Array:
        """One value per key of the task."""
        choice = np.full(len(self._cleared), len(values))
        choice[numbers] = np.arange(len(values))
        return pa.concat_arrays([values, pa.array([otherwise], values.type)]).take(pa.array(choice))

    def _parts(self) -> tuple[np.ndarray, pa.Array]:
        """What is to be folded, by key, oldest first, and the key of each."""
        base = one_array(self._cursor.aligned().column(self.place.column))
        kept = np.flatnonzero(_valid(base) & ~self.touched())
        parts = [(kept, base.take(pa.array(kept))), *self._added_singly(), *self._added_many]
        numbers, operands = np.concatenate([of for of, _ in parts]), pa.concat_arrays([given for _, given in parts])
        if operands.null_count:
            numbers, operands = numbers[_valid(operands)], operands.drop_null()
        order = np.argsort(numbers, kind="stable")
        return numbers[order], operands.take(pa.array(order))

    def touched(self) -> np.ndarray:
        return np.frombuffer(self._cleared, bool)

    @property
    def _merges(self) -> bool:
        """Whether additions are merged blindly. The base of a merge is judged by the merge's end less its time to live, which is
        the time of writing by one clock only: what counts from the rows is read and put instead."""
        return not (self.state.ttl_ms and self._cursor.by_event_time)

    def rewritten(self) -> np.ndarray:
        """Keys whose row must be put anew, because something was taken away; what was only added needs no put if it merges."""
        if self._merges:
            return self.touched()
        mask = self.touched().copy()
        mask[list(self._added)] = True
        for numbers, _ in self._added_many:
            mask[numbers] = True
        return mask

    def columns(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        """What a put of these rows carries along of this state; additions come on top where they merge."""
        before, name = self._cursor.aligned(), self.place.column or ""
        if self._merges:
            gone = pa.array(self.touched()[numbers])
            kept = pc.if_else(gone, pa.scalar(None, self.state.arrow), at_rows(before.column(name), numbers))
            ends = at_rows(before.column(EXPIRES_OF + name), numbers) if self.state.ttl_ms else None
        else:
            kept, ends = at_rows(self._spread(*self._folded(), None), numbers), _ends(self, self._cursor, name, numbers)
        return {name: kept} if ends is None else {name: kept, EXPIRES_OF + name: ends}

    def write_additions(self) -> None:
        for owners, operands in (*self._added_singly(), *self._added_many) if self._merges else ():
            self._cursor.write_at(owners, {self.place.column or "": operands}, "merge")

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
    """Marks with null where this holds."""
    return marks if marks.null_count == len(marks) else pc.if_else(pa.array(where), pa.scalar(None, pa.bool_()), marks)


def restore(kept: dict[Any, Any], number: Any, value: Any) -> None:
    """Put back what was kept for a key; None: nothing was."""
    if value is None:
        kept.pop(number, None)
    else:
        kept[number] = value


def _valid(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.array(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else np.ones(len(column), bool)


OneEntry = ValueHandle | ReducingHandle


def _ends(handle: OneEntry, cursor: TableCursor, name: str, numbers: np.ndarray) -> pa.Array:
    """When the values of these keys in the column called so end."""
    before = one_array(at_rows(cursor.aligned().column(EXPIRES_OF + name), numbers))
    now = cursor.ends(numbers, handle.state.ttl_ms, before)
    return pc.if_else(pa.array(handle.rewritten()[numbers]), now, before)


def write_values(cursor: TableCursor, handles: list[OneEntry]) -> None:
    """One row per key whose states were set or cleared; states that were only added to are merged blindly."""
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
        held = np.ones(len(numbers), bool) if full else np.zeros(len(numbers), bool)
        for mark in [] if full else marks:
            held |= _valid(mark)
        if held.all():
            cursor.write_at(numbers, columns, "put")
        else:
            kept = pa.array(held)
            if held.any():
                cursor.write_at(numbers[held], {name: values.filter(kept) for name, values in columns.items()}, "put")
            cursor.write_at(numbers[~held], {}, "delete")
    for handle in handles:
        if isinstance(handle, ReducingHandle):
            handle.write_additions()
