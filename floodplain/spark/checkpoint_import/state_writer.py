"""Writes rows of another store's state into the tables of an operator, in its tasks: each with the end that it has there."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.operators.kernel.context import Context
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.operators.kernel.operator import KeyedOperator, declared_states
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.state.descriptors import List, Map, State, Timers, Value
from floodplain.state.positions import pack
from floodplain.store.rows.delta import EXPIRES_OF
from floodplain.store.rows.layout import EXPIRES
from floodplain.structs import field_at

KEY, VALUE, ENDS, TIME = "key", "value", "ends", "time"
"""Fields of the columns that hold state: of a map, the key of an entry; its value; when it ends; of a timer, its time."""


class StateWriter:
    """Writes the state of the keys of a task. Requires: the operator has none yet."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        process: Any = operator.process
        self._columns: Mapping[str, str] = process.columns
        self._operator, self._grouped, self._handles, self._context = operator, grouped, handles, context
        sizes = np.diff(grouped.starts)
        self._key_of_row = np.repeat(np.arange(len(sizes)), sizes)

    def run(self) -> pa.Table:
        states = declared_states(self._operator.process)
        self._write_values({name: state for name, state in states.items() if isinstance(state, Value)})
        for name, state in states.items():
            if name in self._columns and not isinstance(state, Value):
                self._context.measures[name] = self._write_entries(name, state)
        return self._operator.output.empty_table()

    def _rows(self, name: str) -> tuple[np.ndarray, pa.Array]:
        """The key number of each row that has this state, and what it has of it."""
        column = self._grouped.column(self._columns[name])
        there = pc.is_valid(column)
        return self._key_of_row[there.to_numpy(zero_copy_only=False)], column.filter(there)

    def _write_values(self, states: Mapping[str, Value]) -> None:
        """Values of a key are one row, whichever of them it has."""
        parts = {name: self._rows(name) for name in states}
        numbers = np.unique(np.concatenate([np.empty(0, np.int64), *(of for of, _ in parts.values())]))
        columns: dict[str, pa.Array] = {}
        for name, (of, packed) in parts.items():
            columns |= dict(self._value_columns(name, states[name], _Fields(packed), np.searchsorted(numbers, of), len(numbers)))
            self._context.measures[name] = len(of)
        if len(numbers):
            self._handles[next(iter(states))].cursor.write_at(numbers, columns, "put")

    def _value_columns(
        self, name: str, state: Value, fields: "_Fields", rows: np.ndarray, count: int
    ) -> Iterator[tuple[str, pa.Array]]:
        """The columns of one state in as many rows; ``rows``: where its values belong."""
        place = self._handles[name].place
        choice = np.full(count, -1)
        choice[rows] = np.arange(len(rows))
        spread = pa.array(choice, mask=choice < 0)
        values = fields[VALUE]
        yield place.column, values.take(spread)
        names = [place.column]
        if place.null_mark:
            names.append(place.null_mark)
            is_null = pc.if_else(values.is_null(), pa.scalar(True), pa.scalar(None, pa.bool_()))
            yield place.null_mark, is_null.take(spread)
        if state.ttl_ms:
            ends = fields[ENDS].take(spread)
            yield from ((EXPIRES_OF + each, ends) for each in names)

    def _write_entries(self, name: str, state: State) -> int:
        handle, (numbers, packed) = self._handles[name], self._rows(name)
        place = handle.place
        if isinstance(state, List):
            sizes = pc.list_value_length(packed).to_numpy(zero_copy_only=False).astype(np.int64)
            ordinals = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            numbers, packed = np.repeat(numbers, sizes), packed.flatten()
            subkeys = pa.array(pack(self._context.epoch, ordinals))
        fields = _Fields(packed)
        if not isinstance(state, List):
            subkeys = fields[TIME if isinstance(state, Timers) else KEY]
        columns = {place.subkey: subkeys}
        if isinstance(state, List | Map):
            columns[place.column] = fields[VALUE]
            columns |= {EXPIRES: fields[ENDS]} if state.ttl_ms else {}
        if len(numbers):
            handle.cursor.write_at(numbers, columns, "put")
        return len(numbers)


class _Fields:
    """The fields of structs, by name."""

    def __init__(self, structs: pa.StructArray) -> None:
        self._structs = structs

    def __getitem__(self, name: str) -> pa.Array:
        return field_at(self._structs, self._structs.type.get_field_index(name))


class ImportedState(Process, OperatorTraits):
    """An operator that does nothing but to take state over. ``columns``: state → the column of the rows that has it."""

    caller = StateWriter
    output = "nothing long"

    def __init__(self, states: Mapping[str, State], columns: Mapping[str, str]) -> None:
        self._states = dict(states)
        self.columns = dict(columns)

    def states(self) -> dict[str, State]:
        return dict(self._states)
