"""A ``StatefulProcessor`` for the test kit: bound to its columns without a Spark session, with its state at hand by key."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from floodplain.errors import BadInput
from floodplain.spark.transform_with_state.initial_state import INITIAL
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.state.types import parse_schema

Columns: TypeAlias = str | pa.Schema | StructType
"""Columns as Spark DDL, as an Arrow schema or as Spark has them."""

_TIME_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}
_serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]


class KitProcess(StatefulProcess):
    """As in Spark, each task has a copy of the processor of its own: only state outlives an epoch."""

    @property
    def processor(self) -> StatefulProcessor:
        return _serializer.loads(self._pickled)

    @processor.setter
    def processor(self, processor: StatefulProcessor) -> None:
        self._pickled = _serializer.dumps(processor)

    @property
    def rows(self) -> pa.Schema:
        return to_arrow_schema(self.shape.rows, timezone="UTC")

    @property
    def initial(self) -> pa.Schema | None:
        """The columns of the initial state, if there is one."""
        return None if self.shape.initial is None else to_arrow_schema(self.shape.initial, timezone="UTC")

    def with_initial_state(self, rows: pa.Table, states: pa.Table) -> pa.Table:
        """The rows of the first epoch: these, and those that carry the initial state."""
        whole = pa.StructArray.from_arrays([column.combine_chunks() for column in states.columns], fields=list(states.schema))
        columns = [
            states.column(field.name).cast(field.type) if field.name in self.shape.keys else pa.nulls(len(states), field.type)
            for field in rows.schema
        ]
        carrying = pa.Table.from_arrays([*columns, whole], schema=rows.schema.append(pa.field(INITIAL, whole.type)))
        return pa.concat_tables([rows.append_column(INITIAL, pa.nulls(len(rows), whole.type)), carrying])

    def reading(self, state: str) -> "Probe":
        kind = self._kind(state)
        return self._probe(state, lambda live, _: _READS[kind](live))

    def writing(self, state: str, value: Any) -> "Probe":
        kind = self._kind(state)
        return self._probe(state, lambda live, _: _WRITES[kind](live, value))

    def clearing(self, state: str) -> "Probe":
        self._kind(state)
        return self._probe(state, lambda live, _: live.clear())

    def listing_timers(self) -> "Probe":
        return self._probe(None, lambda _, handle: sorted(handle.listTimers()))

    def _kind(self, state: str) -> str:
        if state not in self.declared:
            raise BadInput(f"init declares no state {state!r}; there are: {', '.join(map(repr, self.declared)) or 'none'}")
        return self.declared[state].kind

    def _probe(self, state: str | None, call: Callable[[Any, Any], Any]) -> "Probe":
        # Without time no timer fires. What lists timers is not committed.
        return Probe(self, state, call, self.time_mode if state is None else "none")


class Probe(StatefulProcess):
    """Runs for one key and does one thing to a state of the processor, or to its timers."""

    def __init__(self, process: KitProcess, state: str | None, call: Callable[[Any, Any], Any], time_mode: str) -> None:
        self.calls = _Calls(state, None if state is None else process.declared[state], call)
        super().__init__(self.calls, process.shape, time_mode, process.declared, process.settings, pandas=False)

    @property
    def answer(self) -> Any:
        return self.calls.answer


class _Calls(StatefulProcessor):
    def __init__(self, state: str | None, declared: Any, call: Callable[[Any, Any], Any]) -> None:
        self._name = state
        self._declared = declared
        self._call = call
        self.answer: Any = None

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._state = None if self._name is None else _OPENS[self._declared.kind](handle)(self._name, *self._declared.schemas)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002
        self.answer = self._call(self._state, self._handle)
        return iter(())


def _put(live: Any, elements: Sequence[Any]) -> None:
    live.put(elements) if elements else live.clear()


def _put_all(live: Any, entries: dict[Any, Any]) -> None:
    live.clear()
    for key, value in entries.items():
        live.updateValue(key, value)


_OPENS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "value": lambda handle: handle.getValueState,
    "list": lambda handle: handle.getListState,
    "map": lambda handle: handle.getMapState,
}
_READS: dict[str, Callable[[Any], Any]] = {
    "value": lambda live: live.get(),
    "list": lambda live: list(live.get()),
    "map": lambda live: dict(live.iterator()),
}
_WRITES: dict[str, Callable[[Any, Any], None]] = {
    "value": lambda live, value: live.update(value),
    "list": _put,
    "map": _put_all,
}


def kit_process(
    processor: Any,
    rows: Columns,
    keys: Sequence[str],
    event_time: str | None,
    *,
    output: Columns | None,
    time_mode: str,
    pandas: bool,
    initial_state: Columns | None,
    output_time: str | None,
) -> KitProcess:
    """The process function that runs a user's ``StatefulProcessor``, as ``transformWithState`` would with these arguments."""
    if isinstance(processor, type):
        raise BadInput(f"{processor.__name__} is a class: give an object of it, {processor.__name__}()")
    if output is None:
        raise BadInput(f"what comes out of {type(processor).__name__} is not known: give output='user string, n long'")
    mode = _checked_mode(time_mode, event_time)
    initial = None if initial_state is None else _struct(initial_state)
    initial_columns = None if initial is None else set(initial.names)
    for name in keys:
        if initial_columns is not None and name not in initial_columns:
            raise BadInput(f"the initial state has no column {name}, by which rows are keyed: rename the one that has it")
    shape = Shape(_struct(rows), tuple(keys), _struct(output), initial, output_time or "")
    declared, _ = declared_by(processor, mode, _struct)
    return KitProcess(processor, shape, mode, declared, {}, pandas=pandas)


def _checked_mode(time_mode: str, event_time: str | None) -> str:
    if time_mode.lower() not in _TIME_MODES:
        raise BadInput(f"time_mode={time_mode!r} is not known: use {', '.join(map(repr, _TIME_MODES.values()))}")
    if time_mode.lower() == "eventtime" and event_time is None:
        raise BadInput("time_mode='EventTime' needs a watermark: name the column that rows have their time in, event_time='at'")
    return time_mode.lower()


def _struct(columns: Columns) -> StructType:
    """Read by our own parser where it is text: Spark's needs a JVM."""
    if isinstance(columns, StructType):
        return columns
    return from_arrow_schema(columns if isinstance(columns, pa.Schema) else parse_schema(columns))
