"""Task-level state: values per slot, which rescaling merges and splits, and broadcast maps, which are equal in all tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import UserError
from floodplain.eventtime.times import EpochTimes
from floodplain.lossless import UNFIT
from floodplain.operators.kernel.context import EpochContext
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.process import KeyedBatchProcess, give_handle
from floodplain.operators.kernel.row_cursor import Rows, failed_at, tuple_type
from floodplain.state.descriptors import Broadcast, TaskValue
from floodplain.state.python_values import user_rows, user_values
from floodplain.state.tables import SLOT, SLOTS
from floodplain.state.unkeyed import BroadcastHandle, TaskValueHandle
from floodplain.state.value_check import converter_for
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.epoch import Epoch
from floodplain.store.write.task_writer import TaskWriter


@dataclass(frozen=True, slots=True)
class TaskValues:
    """The task values of an operator at the start of an epoch. Read by the driver, once for all slots."""

    slots: int
    values: Mapping[str, pa.Array]
    """State → one value per slot, null if it is not set."""
    stored: Mapping[str, int]
    """State → the number of slots when it was written; 0 if it was not."""

    def of(self, slot: int) -> bytes:
        """The values of one slot, encoded for its task."""
        return _encoded({name: values.slice(slot, 1) for name, values in self.values.items()})


def task_values_at(snapshot: Snapshot, operator: KeyedOperator, slots: int) -> TaskValues:
    """The stored task values; after rescaling, merged and split by the functions of the user."""
    values: dict[str, pa.Array] = {}
    stored: dict[str, int] = {}
    for name, state in _task_values(operator).items():
        place = operator.tables.places[name]
        rows = user_rows(snapshot.stored(place.table).to_arrow())
        stored[name] = rows[0][SLOTS] if rows else 0
        by_slot: list[Any] = [None] * max(stored[name], slots)
        for row in rows:
            by_slot[row[SLOT]] = row[place.column or ""]
        if stored[name] not in (0, slots):
            by_slot = _rescaled(operator.name, name, state, by_slot, slots)
        values[name] = pa.array(by_slot, state.arrow)
    return TaskValues(slots, values, stored)


def put_task_values(epoch: Epoch, operator: KeyedOperator, before: TaskValues, reports: Mapping[int, bytes]) -> None:
    """Writes the changed task values; all of them after rescaling. ``reports``: slot → ``Outcome.task_values``."""
    changed = {slot: _decoded(data) for slot, data in reports.items()}
    for name, values in before.values.items():
        place = operator.tables.places[name]
        rescaled = before.stored[name] not in (0, before.slots)
        numbers = [slot for slot in range(before.slots) if rescaled or name in changed.get(slot, {})]
        if numbers:
            now = [changed.get(slot, {}).get(name, values.slice(slot, 1)) for slot in numbers]
            columns = {
                SLOT: pa.array(numbers, pa.int32()),
                SLOTS: pa.array([before.slots] * len(numbers), pa.int32()),
                place.column or "": pa.concat_arrays(now),
            }
            epoch.put(place.table, pa.table(columns))
        gone = list(range(before.slots, before.stored[name]))
        if gone:
            epoch.delete(place.table, pa.table({SLOT: pa.array(gone, pa.int32())}))


class TaskLevel:
    """The task-level state of one slot in one epoch. All ``KeyedTask`` of the slot share it."""

    def __init__(
        self,
        operator: KeyedOperator,
        snapshot: Snapshot,
        *,
        slot: int = 0,
        values: bytes = b"",
        broadcast: pa.Table | None = None,
        resource: Any = None,
    ) -> None:
        """``values``: ``TaskValues.of`` this slot. ``broadcast``: the rows of the broadcast input. ``resource``: what ``open``
        of the process function returned in this worker process."""
        self.resource = resource
        self._operator = operator
        self._slot = slot
        self._broadcast = broadcast
        stored = _decoded(values)
        self._task_values = {
            name: TaskValueHandle(name, state, stored[name][0].as_py() if name in stored else None)
            for name, state in _task_values(operator).items()
        }
        self._broadcasts = {
            name: BroadcastHandle(name, state, operator.tables.places[name], snapshot)
            for name, state in operator.process.states().items()
            if isinstance(state, Broadcast)
        }
        self.handles: dict[str, Any] = {**self._task_values, **self._broadcasts}

    def begin(self, epoch: int, times: EpochTimes) -> None:
        """Sets the handles of the process function, and calls ``on_broadcast`` with the broadcast rows, once."""
        process: Any = self._operator.process
        for name, handle in self.handles.items():
            give_handle(process, name, handle)
        if self._broadcast is not None and len(self._broadcast):
            rows, self._broadcast = self._in_order(self._broadcast), None
            self._open(True)
            try:
                self._on_broadcast(process, rows, EpochContext(epoch, times, self.resource))
            finally:
                self._open(False)

    def write(self, writer: TaskWriter) -> None:
        """Writes the changes of broadcast state. All tasks make the same changes, so only slot 0 writes them."""
        if self._slot == 0:
            for name, handle in self._broadcasts.items():
                try:
                    handle.write(writer)
                except UNFIT as error:
                    raise UserError.of(self._operator.name, writer.epoch, None, None, error, state=name) from error

    def changed(self) -> bytes:
        """The changed task values, encoded for the report."""
        return _encoded({name: handle.array() for name, handle in self._task_values.items() if handle.changed})

    def _open(self, writable: bool) -> None:
        for handle in self._broadcasts.values():
            handle.writable = writable

    def _on_broadcast(self, process: Any, table: pa.Table, context: EpochContext) -> None:
        rows: Any = table
        if not isinstance(process, KeyedBatchProcess):
            make = tuple_type("Row", table.column_names)._make
            rows = Rows(map(make, zip(*map(user_values, table.columns), strict=True)))
        try:
            process.on_broadcast(rows, context)
        except Exception as error:
            if not is_users_fault(error):
                raise
            at = failed_at(rows) if isinstance(rows, Rows) else None
            row = None if at is None else rows[at]
            raise UserError.of(f"{self._operator.name} (on_broadcast)", context.epoch, None, row, error) from error

    def _in_order(self, rows: pa.Table) -> pa.Table:
        """Sorts rows so that all tasks and attempts see one order: by the declared columns, else by all that can be compared."""
        names = self._operator.process.broadcast_order_by or [
            field.name for field in rows.schema if not pa.types.is_nested(field.type)
        ]
        if not names:
            return rows
        return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))


def _task_values(operator: KeyedOperator) -> dict[str, TaskValue]:
    return {name: state for name, state in operator.process.states().items() if isinstance(state, TaskValue)}


def _rescaled(operator: str, name: str, state: TaskValue, values: list[Any], slots: int) -> list[Any]:
    present = [value for value in values if value is not None]
    if not present:
        return [None] * slots
    try:
        fit = converter_for(state.arrow)
        parts = list(map(fit, state.split(fit(state.merge(present)), slots)))
        pa.array(parts, state.arrow)
    except Exception as error:
        raise UserError(f"operator {operator}, task value {name}: {type(error).__name__} in split or merge: {error}") from error
    if len(parts) != slots:
        raise UserError(f"operator {operator}, task value {name}: split returned {len(parts)} values for {slots} slots")
    return parts


def _encoded(values: Mapping[str, pa.Array]) -> bytes:
    """As Arrow IPC, because reports do not support all value types."""
    if not values:
        return b""
    sink = pa.BufferOutputStream()
    rows = pa.table(dict(values))
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


def _decoded(data: bytes) -> dict[str, pa.Array]:
    if not data:
        return {}
    rows = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    return {name: rows.column(name).combine_chunks() for name in rows.column_names}
