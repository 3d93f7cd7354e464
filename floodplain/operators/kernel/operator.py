"""Keyed operators: a process function bound to a schema, its tables, and the outcome of a task."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput, BadName, short
from floodplain.operators.kernel.dead_letters import DEAD_LETTERS, letters_table
from floodplain.operators.kernel.event_order import InOrder, with_waiting
from floodplain.operators.kernel.key_grouping import has_order
from floodplain.operators.kernel.late_rows import LATE
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess, Process, names_of_states
from floodplain.operators.kernel.traits import OperatorTraits, traits_of
from floodplain.state.descriptors import EVENT_TIME, Descriptor, State, Timers, states_of
from floodplain.state.tables import OperatorTables, tables_for
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.state.types import as_fields
from floodplain.tiers.paths import checked_name

OnError: TypeAlias = Literal["raise", "dead_letter"]
NO_WATERMARK = "without a watermark event time does not advance: call watermark"
_HOOKS = ("open", "close")
"""Optional methods of a process function. A state may have such a name, too: the price at which a market opened, say."""
_TIMERS: dict[str, State] = {EVENT_TIMERS: Timers("event"), PROCESSING_TIMERS: Timers("processing")}


def declared_states(process: Process) -> dict[str, State]:
    """The states of an operator, its timers included."""
    states = process.states()
    for name in (*_TIMERS, DEAD_LETTERS):
        if name in states:
            raise BadName(f"state name {name!r} of {type(process).__name__} is reserved: use another")
    return {**states, **_TIMERS}


def operator_tables(name: str, keys: Mapping[str, pa.DataType], process: Process, on_error: OnError = "raise") -> OperatorTables:
    tables = tables_for(name, keys, declared_states(process))
    if on_error == "raise":
        return tables
    stored = {tables.key_columns[key]: type_ for key, type_ in keys.items()}
    return replace(tables, schemas=(*tables.schemas, letters_table(name, stored)))


def check_on_error(on_error: str, process: Process) -> None:
    """Raises unless a process function of this kind supports this ``on_error``."""
    if on_error not in get_args(OnError):
        raise BadInput(f"on_error={on_error!r} is not known: use {' or '.join(map(repr, get_args(OnError)))}")
    if on_error != "raise" and (traits_of(process).caller is not None or not isinstance(process, KeyedProcess)):
        raise BadInput(
            f"on_error={on_error!r} needs a KeyedProcess, which is called key by key; {type(process).__name__} is not one"
        )


def check_process(operator: str, process: object) -> None:
    """Raises unless this is a valid process function, as far as that can be checked without the input schema."""
    if not isinstance(process, Process):
        if isinstance(process, type) and issubclass(process, Process):
            raise BadInput(f"operator {operator}: {process.__name__} is a class: pass an instance, {process.__name__}()")
        raise BadInput(f"operator {operator}: {process!r} is not a process function: subclass KeyedProcess or KeyedBatchProcess")
    kind, states = type(process).__name__, states_of(type(process))
    for name in states:
        if name not in _HOOKS and (hasattr(KeyedProcess, name) or hasattr(KeyedBatchProcess, name)):
            raise BadName(f"operator {operator}: state name {name!r} of {kind} is a method of process functions: use another")
    if not traits_of(process).depends_on_input and getattr(process, "output", None) is None:
        raise BadInput(f"operator {operator}: {kind} does not declare its output columns: add output = 'user string, n long'")
    for name in names_of_states(process):
        if name not in states:
            raise BadInput(
                f"operator {operator}: state {name} of {kind} was replaced by {short(getattr(process, name, None))} after the "
                f"class was made: declare states in the body of the class, and write with self.{name}.set(…)"
            )
    for option in ("order_by", "broadcast_order_by"):
        if isinstance(getattr(process, option), str):
            raise BadInput(f"operator {operator}: {option} of {kind} is a string: use a list of columns, {option} = ['at']")


def check_ends(operator: str, process: Process) -> None:
    """Raises ``BadInput`` if a state has an event-time ttl, for a pipeline without a watermark: it would never expire. (Operators
    that drop late rows expire theirs at the end of a static input, too.)"""
    for state, declared in process.states().items():
        timed = isinstance(declared, Descriptor) and declared.ttl_ms and declared.watermark == EVENT_TIME
        if timed and not traits_of(process).drops_late:
            raise BadInput(f"operator {operator}, state {state}: it has an event-time ttl, and {NO_WATERMARK}, or omit ttl_clock")


def bind_process(operator: str, process: Process, rows: pa.Schema, keys: Sequence[str], event_time: str | None = None) -> Process:
    """Binds a process function to a schema. Raises errors that name the operator."""
    check_process(operator, process)
    columns = ", ".join(rows.names)
    for name in keys:
        if not rows.get_all_field_indices(name):
            raise BadInput(f"operator {operator}: there is no column {name} to key by; there are: {columns}")
    bound = traits_of(process).bind(rows, tuple(keys), event_time)
    for name in bound.order_by:
        if not rows.get_all_field_indices(name):
            raise BadInput(f"operator {operator}: there is no column {name} to order by; there are: {columns}")
        if not has_order(rows.field(name).type):
            raise BadInput(
                f"operator {operator}: order_by cannot use column {name}: {rows.field(name).type} has no order: name another"
            )
    return bound


@dataclass(frozen=True, slots=True)
class KeyedOperator:
    """A process function bound to a schema, with all settings that a task needs."""

    name: str
    process: Process
    keys: Mapping[str, pa.DataType]
    """The key columns, by their names in the input."""
    event_time: str | None = None
    """The event-time column, if there is one."""
    drops_late: bool = True
    """Whether late rows are dropped, as those of the source are. Of an upstream operator they are only if the process says so."""
    on_error: OnError = "raise"
    """``"dead_letter"``: a row on which the function fails goes to table ``<name>__dead_letters``, and the epoch continues."""
    late: pa.Schema | None = None
    """The schema of late rows, if they are read and the process does not declare them itself."""
    in_order: InOrder | None = None
    """The bounds of the buffer that puts rows in event-time order; None without one."""
    lateness_ms: int = 0
    """Allowed lateness: the operator sees a watermark that is this much behind."""
    lateness_before: tuple[tuple[int, int], ...] = ()
    """Shorter lateness of earlier versions of the job, as in ``late_cutoff_ms``."""
    has_watermark: bool = True
    """Whether the pipeline has a watermark: else event time does not advance."""
    since: int = 0
    """The epoch whose update brought this code; 0 if it came with the start."""

    def __post_init__(self) -> None:
        check_on_error(self.on_error, self.process)
        for name, is_set in (("in_order", self.in_order is not None), ("lateness", self.lateness_ms > 0)):
            if is_set and self.event_time is None:
                raise BadInput(f"operator {self.name}: {name} needs event time: call watermark, with a column that its rows have")
        if self.lateness_ms and not self.judges_rows:
            raise BadInput(
                f"operator {self.name}: lateness has no effect, because rows of an upstream operator are never late for it: "
                "omit it"
            )

    @property
    def traits(self) -> OperatorTraits:
        return traits_of(self.process)

    @property
    def judges_rows(self) -> bool:
        """Whether rows can be late for it."""
        return self.drops_late or self.traits.drops_late

    @property
    def output(self) -> pa.Schema:
        return pa.schema(as_fields(self.process.output).items())

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output."""
        declared = {
            checked_name("side output", name): pa.schema(as_fields(columns).items())
            for name, columns in self.process.side_outputs.items()
        }
        return declared if self.late is None else {LATE: self.late, **declared}

    @property
    def tables(self) -> OperatorTables:
        tables = operator_tables(self.name, self.keys, self.process, self.on_error)
        if self.in_order is None:
            return tables
        return with_waiting(tables, {tables.key_columns[key]: type_ for key, type_ in self.keys.items()}, self.in_order)


class DroppedRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of rows by drop reason. Additive over buckets, tasks and epochs."""

    late: int = 0
    """Arrived after the watermark had passed them."""
    dead: int = 0
    """Became dead letters; timers, too."""
    early: int = 0
    """Not dropped: processed before the watermark passed them, because the buffer was full."""
    ignored: int = 0
    """Ignored by the process: ``ctx.ignore``."""

    def __add__(self, other: "DroppedRows") -> "DroppedRows":
        return DroppedRows(*(mine + more for mine, more in zip(self._counts(), other._counts(), strict=True)))

    def _counts(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self)


def total_dropped(counts: Iterable[DroppedRows]) -> DroppedRows:
    return sum(counts, DroppedRows())


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a task, besides its delta."""

    output: pa.Table
    rows: int
    keys: int
    max_event_ms: int | None
    dropped: DroppedRows
    received: int = 0
    """How many rows arrived: fewer than ``rows`` if they were pre-aggregated."""
    sides: dict[str, pa.Table] = field(default_factory=dict)
    """The rows of each declared side output."""
    task_values: bytes = b""
    """The task values that were set, for ``put_task_values``."""
    warnings: tuple[str, ...] = ()
    measures: Mapping[str, int] = field(default_factory=dict)
    """What a caller of its own has counted, by name."""
    rows_of_group: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """How many rows each key group had, by number."""


def added_up(measures: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts of the same name of several buckets or tasks."""
    total: Counter[str] = Counter()
    for counted in measures:
        total.update(counted)
    return dict(total)


def combined(outcomes: Sequence[Outcome]) -> Outcome:
    """Concatenates outcomes in order; ``task_values`` are those of the last.

    Requires: at least one.
    """
    newest = [outcome.max_event_ms for outcome in outcomes if outcome.max_event_ms is not None]
    return Outcome(
        output=pa.concat_tables([outcome.output for outcome in outcomes]),
        rows=sum(outcome.rows for outcome in outcomes),
        keys=sum(outcome.keys for outcome in outcomes),
        max_event_ms=max(newest, default=None),
        received=sum(outcome.received for outcome in outcomes),
        sides={name: pa.concat_tables([outcome.sides[name] for outcome in outcomes]) for name in outcomes[0].sides},
        dropped=total_dropped(outcome.dropped for outcome in outcomes),
        task_values=outcomes[-1].task_values,
        warnings=tuple(warning for outcome in outcomes for warning in outcome.warnings),
        measures=added_up(outcome.measures for outcome in outcomes),
        rows_of_group=np.sum([outcome.rows_of_group for outcome in outcomes], axis=0),
    )
