"""The argument of a batch process function: rows and state of all keys of a task, as Arrow columns."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput, SchemaMismatch, short
from floodplain.eventtime.points import point_ms
from floodplain.eventtime.times import as_ms
from floodplain.lossless import UNFIT
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.state.columns import EntryColumns, ListColumns, TimerColumns
from floodplain.state.frames import as_column, as_table, is_frame, pandas_frame, polars_frame
from floodplain.state.handles import ReducingHandle, ValueHandle
from floodplain.state.lists import ListHandle
from floodplain.state.maps import MapHandle, SetHandle
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS, TimersHandle
from floodplain.store.rows.layout import append_columns

KEY_OF = "key_of"
"""The column with the number of a key: its row in ``Batch.keys``."""

ColumnLike: TypeAlias = Any
"""An Arrow array, a NumPy array, a Polars or pandas series, a list. Methods that change one state also take a table or frame with
a column of the state's name and, optionally, ``key_of``."""

_COLUMNS = {ListHandle: ["", "value"], MapHandle: ["key", "value"], SetHandle: ["element"]}
_KINDS = {ValueHandle: "Value", ReducingHandle: "Reducing", ListHandle: "List", MapHandle: "Map", SetHandle: "Set"}


class Batch:
    """All keys of a task at once, numbered from 0. ``key_of`` has the key number of each value; without it, there is one value
    per key. Reads see earlier writes."""

    def __init__(self, operator: str, grouped: Grouped, handles: Mapping[str, Any], *, naive: bool = False) -> None:
        """``naive``: event times have no zone."""
        self._grouped = grouped
        self.keys = grouped.space.keys
        """One row per key: first the keys that have rows, then those that only have a due timer."""
        self.starts = grouped.starts
        """Key i has the rows ``starts[i] : starts[i + 1]``."""
        self._operator = operator
        self._handles = {name: handle for name, handle in handles.items() if not isinstance(handle, TimersHandle)}
        self._entries: dict[str, EntryColumns] = {}
        self._refusals = {name: handle.refusal for name, handle in handles.items() if isinstance(handle, TimersHandle)}
        self._naive = naive
        self._timers = {
            name: TimerColumns(handle.place, handle.cursor, handle.due, handle.until_ms)
            for name, handle in handles.items()
            if isinstance(handle, TimersHandle)
        }

    @property
    def rows(self) -> pa.Table:
        """The rows of the epoch, sorted by key number."""
        return self._grouped.rows

    def column(self, name: str, at: np.ndarray | None = None) -> pa.Array:
        """One column of ``rows``, or of the rows numbered ``at``. Cheaper than ``rows``, which sorts all columns."""
        self._check_columns([name])
        return self._grouped.column(name, at)

    def take(self, places: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these positions of ``rows``, or only some columns of them."""
        self._check_columns(columns or ())
        return self._grouped.take(places, columns)

    def has(self, name: str) -> bool:
        """Whether rows have this column."""
        return bool(self._grouped.input.schema.get_all_field_indices(name))

    def _check_columns(self, names: Sequence[str]) -> None:
        schema = self._grouped.input.schema
        for name in names:
            if not schema.get_all_field_indices(name):
                raise BadInput(f"operator {self._operator}: rows have no column {name!r}; they have: {', '.join(schema.names)}")

    @cached_property
    def key_of_row(self) -> np.ndarray:
        """The key number of each row."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def rows_per_key(self) -> np.ndarray:
        """How many rows each key has in this epoch; 0 for keys that only have a due timer."""
        return np.append(np.diff(self.starts), np.zeros(len(self.keys) - len(self.starts) + 1, np.int64))

    # --- States with one value per key

    def state(self, name: str) -> pa.Array:
        """The values of a ``Value``, ``Reducing`` or ``Aggregating``, one per key; the default where a key has none."""
        return self._handle(name, ValueHandle, ReducingHandle).column()

    def on_rows(self, name: str) -> pa.Array:
        """As ``state``, one value per row: that of the row's key."""
        return self.state(name).take(pa.array(self.key_of_row))

    def exists(self, name: str) -> pa.Array:
        """Per key, whether it has a value, or any entry."""
        handle = self._handle(name, *_KINDS)
        if isinstance(handle, ValueHandle | ReducingHandle):
            return pa.array(handle.present())
        mask = np.zeros(len(self.keys), bool)
        mask[self._columns(name).all()[0]] = True
        return pa.array(mask)

    def set(self, name: str, values: ColumnLike, key_of: ColumnLike = None) -> None:
        """Set the values of a ``Value``; null clears. If a key occurs twice, the last value counts."""
        handle = self._handle(name, ValueHandle)
        column, numbers = self._values_and_keys(name, values, handle.state.arrow, key_of)
        handle.replace(column, numbers)

    def add(self, name: str, values: ColumnLike, key_of: ColumnLike = None) -> None:
        """Fold values into a ``Reducing`` or ``Aggregating`` state, or add elements to a ``Set``. Reads nothing."""
        handle = self._handle(name, ReducingHandle, SetHandle)
        column, numbers = self._values_and_keys(name, values, handle.operand_type, key_of)
        if isinstance(handle, ReducingHandle):
            handle.add_many(column, self._all_if_none(numbers))
        else:
            entries = self._columns(name)
            entries.change("put", self._all_if_none(numbers), {entries.subkey: column})

    def clear(self, name: str, key_of: ColumnLike = None) -> None:
        """Clear a state of any kind for these keys, by default for all."""
        handle = self._handle(name, *_KINDS)
        numbers = self._all_if_none(None if key_of is None else self._numbers(name, key_of))
        match handle:
            case ValueHandle():
                handle.replace(pa.nulls(len(numbers), handle.state.arrow), numbers)
            case ReducingHandle():
                handle.clear_many(numbers)
            case _:
                self._columns(name).change("clear", numbers, {})

    # --- Lists, maps and sets

    def entries(self, name: str) -> pa.Table:
        """All entries of all keys: ``key_of``, and ``value`` of a list (oldest first), ``key`` and ``value`` of a map, or
        ``element`` of a set."""
        handle = self._handle(name, ListHandle, MapHandle, SetHandle)
        numbers, rows = self._columns(name).all()
        names = next(names for kind, names in _COLUMNS.items() if isinstance(handle, kind))
        columns = {name: column for name, column in zip(names, rows.columns, strict=True) if name}
        return pa.table({KEY_OF: pa.array(numbers), **columns})

    def append(self, name: str, values: ColumnLike, key_of: ColumnLike = None) -> None:
        """Append to a ``List``, in the order of ``values``. Reads nothing."""
        handle = self._handle(name, ListHandle)
        column, numbers = self._values_and_keys(name, values, handle.state.arrow, key_of)
        self.elements(name).append(self._all_if_none(numbers), column)

    def get(self, name: str, keys: ColumnLike, key_of: ColumnLike = None) -> pa.Array:
        """The values of these entries of a ``Map``, in one multi-get; null where an entry does not exist."""
        handle = self._handle(name, MapHandle)
        row, rows = self._some(name, keys, key_of)
        values = pa.concat_tables([rows.select([handle.place.column])]).column(0).combine_chunks()
        return pa.concat_arrays([values, pa.nulls(1, values.type)]).take(pa.array(np.where(row < 0, len(values), row)))

    def contains(self, name: str, keys: ColumnLike, key_of: ColumnLike = None) -> pa.Array:
        """Whether these entries of a ``Map`` or ``Set`` exist, in one multi-get."""
        self._handle(name, MapHandle, SetHandle)
        return pa.array(self._some(name, keys, key_of)[0] >= 0)

    def put(self, name: str, keys: ColumnLike, values: ColumnLike, key_of: ColumnLike = None) -> None:
        """Set entries of a ``Map``. Reads nothing."""
        self._change_map("put", name, keys, values, key_of)

    def merge(self, name: str, keys: ColumnLike, operands: ColumnLike, key_of: ColumnLike = None) -> None:
        """Fold operands into entries of a ``Map``. Reads nothing."""
        if not self._handle(name, MapHandle).state.merge_name:
            raise BadInput(f"{self._where(name)}: its values have no merge function: declare one")
        self._change_map("merge", name, keys, operands, key_of)

    def remove(self, name: str, keys: ColumnLike, key_of: ColumnLike = None) -> None:
        """Remove entries of a ``Map`` or elements of a ``Set``. Reads nothing."""
        columns, numbers = self._entry_keys(name, keys, key_of)
        entries = self._columns(name)
        entries.change("delete", numbers, {entries.subkey: columns})

    # --- Timers

    def timer(self, times: ColumnLike, key_of: ColumnLike = None) -> None:
        """Set timers: due once the watermark reaches their time, in milliseconds or as timestamps."""
        self._change_timers(EVENT_TIMERS, times, key_of, True)

    def processing_timer(self, times: ColumnLike, key_of: ColumnLike = None) -> None:
        """Set timers: due once processing time reaches their time, even without input."""
        self._change_timers(PROCESSING_TIMERS, times, key_of, True)

    def delete_timer(self, times: ColumnLike, key_of: ColumnLike = None) -> None:
        """Delete event-time timers; one that is not registered is ignored. Arguments: as of ``timer``."""
        self._change_timers(EVENT_TIMERS, times, key_of, False)

    def delete_processing_timer(self, times: ColumnLike, key_of: ColumnLike = None) -> None:
        """Delete processing-time timers; one that is not registered is ignored. Arguments: as of ``processing_timer``."""
        self._change_timers(PROCESSING_TIMERS, times, key_of, False)

    def timers(self) -> pa.Table:
        """The registered event-time timers: ``key_of`` and ``time``, sorted by both."""
        return pa.table(dict(zip((KEY_OF, "time"), self._timers[EVENT_TIMERS].all(), strict=True)))

    # --- Rows and keys with their state

    def to_arrow(self, *names: str) -> pa.Table:
        """One row per key: ``key_of``, the key, and these states (by default all with one value per key)."""
        return self._joined(pa.table({KEY_OF: np.arange(len(self.keys))}), self.keys, names, self.state)

    def to_polars(self, *names: str) -> Any:
        """``to_arrow`` as a Polars frame."""
        return polars_frame(self.to_arrow(*names))

    def to_pandas(self, *names: str) -> Any:
        """``to_arrow`` as a pandas frame."""
        return pandas_frame(self.to_arrow(*names))

    def rows_arrow(self, *names: str) -> pa.Table:
        """The rows with ``key_of`` and these states of their key (by default all with one value per key)."""
        return self._joined(pa.table({KEY_OF: self.key_of_row}), self.rows, names, self.on_rows)

    def rows_polars(self, *names: str) -> Any:
        """``rows_arrow`` as a Polars frame."""
        return polars_frame(self.rows_arrow(*names))

    def rows_pandas(self, *names: str) -> Any:
        """``rows_arrow`` as a pandas frame."""
        return pandas_frame(self.rows_arrow(*names))

    def _joined(self, table: pa.Table, more: pa.Table, names: tuple[str, ...], read: Any) -> pa.Table:
        known = [name for name, handle in self._handles.items() if isinstance(handle, ValueHandle | ReducingHandle)]
        table = append_columns(table, dict(zip(more.column_names, more.columns, strict=True)))
        taken, states = set(table.column_names), dict[str, pa.Array]()
        for name in names or known:
            if name in taken:
                raise BadInput(
                    f"{self._where(name)}: there is a column of this name: omit the state here, and read it with batch.state"
                )
            taken.add(name)
            states[name] = read(name)
        return append_columns(table, states)

    # --- For built-in operators

    def elements(self, name: str) -> ListColumns:
        """A list as it is stored: elements with their positions and expiry times."""
        self._handle(name, ListHandle)
        columns = self._columns(name)
        assert isinstance(columns, ListColumns)
        return columns

    def renew(self, name: str, key_of: np.ndarray) -> None:
        """Restart the ttl of the ``Value`` of these keys, as setting it again would."""
        self._handle(name, ValueHandle).renew(key_of)

    def keys_due(self) -> np.ndarray:
        """The numbers of the keys that have a due event-time timer from an earlier epoch."""
        return self._timers[EVENT_TIMERS].keys_due()

    # --- For the task

    def take_due(self, *, fire: bool = False) -> pa.Table:
        """Removes and returns the due timers: ``key_of``, ``time`` and ``clock``, event time first, each sorted by time.

        ``fire``: a callback follows. Of the timers that it sets, only later ones can fire in this epoch.
        """
        parts = [(clock, *self._timers[name].take_due(fire=fire)) for clock, name in _CLOCKS.items()]
        return pa.table(
            {
                KEY_OF: np.concatenate([numbers for _, numbers, _ in parts]),
                "time": np.concatenate([times for _, _, times in parts]),
                "clock": pa.array(
                    np.repeat([clock for clock, _, _ in parts], [len(times) for _, _, times in parts]), pa.string()
                ),
            }
        )

    def write(self) -> None:
        """Writes the changes of lists, maps, sets and timers."""
        for entries in self._entries.values():
            entries.write()
        for timers in self._timers.values():
            timers.write()

    # --- Checks of arguments

    def _where(self, name: str) -> str:
        return f"operator {self._operator}, state {name}"

    def _handle(self, name: str, *kinds: type) -> Any:
        handle = self._handles.get(name)
        if handle is None:
            known = ", ".join(self._handles) or "none"
            raise BadInput(f"operator {self._operator} has no state {name!r}; it has: {known}")
        if not isinstance(handle, kinds):
            wanted = " or ".join(_KINDS[kind] for kind in kinds)
            raise BadInput(f"{self._where(name)} is a {type(handle.state).__name__}: this is for a {wanted}")
        return handle

    def _columns(self, name: str) -> EntryColumns:
        if name not in self._entries:
            handle = self._handles[name]
            at, listed = (handle.place, handle.cursor), isinstance(handle, ListHandle)
            self._entries[name] = ListColumns(*at, handle.epoch) if listed else EntryColumns(*at)
        return self._entries[name]

    def _column(self, name: str, values: ColumnLike, type_: pa.DataType, key_of: ColumnLike = None) -> pa.Array:
        try:
            return as_column(values, type_)
        except UNFIT as error:
            reason = str(error).partition("\n")[0]
            value = self._first_unfit(values, type_, key_of)
            raise SchemaMismatch(f"{self._where(name)}: {value} does not fit {type_}: {reason}") from error

    def _first_unfit(self, values: ColumnLike, type_: pa.DataType, key_of: ColumnLike) -> str:
        """The first value that does not fit the type, and its key if known, for an error message."""
        plain: Any = list(values) if isinstance(values, list | tuple) else values
        for at in range(len(plain)):
            try:
                as_column(plain[at : at + 1], type_)
            except UNFIT:
                one = plain[at : at + 1].tolist()[0] if hasattr(plain, "tolist") else plain[at]
                return f"{short(one.as_py() if isinstance(one, pa.Scalar) else one)}{self._of_key(at, key_of)}"
        return "the argument"

    def _of_key(self, at: int, key_of: ColumnLike) -> str:
        try:
            number = at if key_of is None else int(as_column(key_of, pa.int64())[at].as_py())
            return f" of key {short(self.keys.slice(number, 1).to_pylist()[0])}"
        except (*UNFIT, IndexError):
            return ""

    def _numbers(self, name: str, key_of: ColumnLike) -> np.ndarray:
        column = self._column(name, key_of, pa.int64())
        numbers = column.to_numpy(zero_copy_only=False)
        if column.null_count or (len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self.keys))):
            raise BadInput(f"{self._where(name)}: key_of must have key numbers, from 0 to {len(self.keys) - 1}")
        return numbers

    def _values_and_keys(
        self, name: str, values: ColumnLike, type_: pa.DataType, key_of: ColumnLike
    ) -> tuple[pa.Array, np.ndarray | None]:
        """The values and the key number of each; None if there is one value per key."""
        if is_frame(values):
            frame = as_table(values)
            if name not in frame.column_names:
                raise BadInput(f"{self._where(name)}: the frame has no column {name!r}; it has {', '.join(frame.column_names)}")
            key_of = frame.column(KEY_OF) if key_of is None and KEY_OF in frame.column_names else key_of
            values = frame.column(name)
        column = self._column(name, values, type_, key_of)
        return column, self._checked(name, len(column), key_of)

    def _checked(self, name: str, length: int, key_of: ColumnLike) -> np.ndarray | None:
        numbers = None if key_of is None else self._numbers(name, key_of)
        expected = len(self.keys) if numbers is None else len(numbers)
        if length != expected:
            keys = f"there are {expected} keys: pass the key number of each value as key_of"
            reason = keys if numbers is None else f"key_of has {expected}"
            raise BadInput(f"{self._where(name)}: there are {length} values, and {reason}")
        return numbers

    def _all_if_none(self, numbers: np.ndarray | None) -> np.ndarray:
        return np.arange(len(self.keys)) if numbers is None else numbers

    def _entry_keys(self, name: str, keys: ColumnLike, key_of: ColumnLike) -> tuple[pa.Array, np.ndarray]:
        column = self._column(name, keys, self._handle(name, MapHandle, SetHandle).key_type, key_of)
        return column, self._all_if_none(self._checked(name, len(column), key_of))

    def _some(self, name: str, keys: ColumnLike, key_of: ColumnLike) -> tuple[np.ndarray, pa.Table]:
        column, numbers = self._entry_keys(name, keys, key_of)
        return self._columns(name).some(numbers, column)

    def _change_map(self, op: str, name: str, keys: ColumnLike, values: ColumnLike, key_of: ColumnLike) -> None:
        handle = self._handle(name, MapHandle)
        column, numbers = self._entry_keys(name, keys, key_of)
        entry_values = self._column(name, values, handle.state.arrow_value, key_of)
        if len(entry_values) != len(column):
            raise BadInput(f"{self._where(name)}: there are {len(column)} entry keys and {len(entry_values)} values")
        entries = self._columns(name)
        entries.change(op, numbers, {entries.subkey: column, handle.place.column: entry_values})

    def _points(self, name: str, times: ColumnLike) -> Any:
        """Timestamps as milliseconds; integers are milliseconds already."""
        naive = self._naive and name == EVENT_TIMERS
        plain = times.to_arrow() if hasattr(times, "to_arrow") else times
        if isinstance(plain, list | tuple):
            return [at if at is None else point_ms(at, naive=naive) for at in plain]
        if not isinstance(plain, pa.Array | pa.ChunkedArray):
            plain = pa.array(plain)
        if not pa.types.is_timestamp(plain.type):
            return plain
        if plain.type.tz is None and not naive and plain.null_count < len(plain):
            raise BadInput(f"{self._where(name)}: a timestamp without a time zone is not a point in time: add one, or use ms")
        return as_ms(pa.chunked_array([plain]) if isinstance(plain, pa.Array) else plain)

    def _change_timers(self, name: str, times: ColumnLike, key_of: ColumnLike, is_set: bool) -> None:
        column = self._column(name, self._points(name, times), pa.int64())
        if is_set and len(column) and self._refusals[name] is not None:
            raise BadInput(f"{self._where(name)}: a timer is set for {column[0]} ms, and {self._refusals[name]}")
        if column.null_count:
            raise BadInput(f"{self._where(name)}: a timer needs a time, and one is null")
        numbers = self._all_if_none(self._checked(name, len(column), key_of))
        self._timers[name].change(numbers, column.to_numpy(), is_set)


_CLOCKS = {"event": EVENT_TIMERS, "processing": PROCESSING_TIMERS}
