"""What a keyed operator is made of, before any epoch runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

import msgspec
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
NO_WATERMARK = "without a watermark event time does not go on: call watermark"
_HOOKS = ("open", "close")
"""Methods that a process function may have; a state of such a name is as good: the price at which a market opened, say."""
_TIMERS: dict[str, State] = {EVENT_TIMERS: Timers("event"), PROCESSING_TIMERS: Timers("processing")}


def declared_states(process: Process) -> dict[str, State]:
    """The states of an operator, its timers included."""
    states = process.states()
    for name in (*_TIMERS, DEAD_LETTERS):
        if name in states:
            raise BadName(f"state name {name!r} of {type(process).__name__} is taken by the operator itself: use another")
    return {**states, **_TIMERS}


def operator_tables(name: str, keys: Mapping[str, pa.DataType], process: Process, on_error: OnError = "raise") -> OperatorTables:
    tables = tables_for(name, keys, declared_states(process))
    if on_error == "raise":
        return tables
    stored = {tables.key_columns[key]: type_ for key, type_ in keys.items()}
    return replace(tables, schemas=(*tables.schemas, letters_table(name, stored)))


def check_on_error(on_error: str, process: Process) -> None:
    """Raises unless a process function of this kind can go on after an error in this way."""
    if on_error not in get_args(OnError):
        raise BadInput(f"on_error={on_error!r} is not known: use {' or '.join(map(repr, get_args(OnError)))}")
    if on_error != "raise" and (traits_of(process).caller is not None or not isinstance(process, KeyedProcess)):
        raise BadInput(
            f"on_error={on_error!r} needs a KeyedProcess, which is called key by key; {type(process).__name__} is not one"
        )


def check_process(operator: str, process: object) -> None:
    """Raises unless this can run, as far as that is known before its input is. What it takes for that is in the message."""
    if not isinstance(process, Process):
        if isinstance(process, type) and issubclass(process, Process):
            raise BadInput(f"operator {operator}: {process.__name__} is a class: give an object of it, {process.__name__}()")
        raise BadInput(f"operator {operator}: {process!r} is no process function: subclass KeyedProcess or KeyedBatchProcess")
    kind, states = type(process).__name__, states_of(type(process))
    for name in states:
        if name not in _HOOKS and (hasattr(KeyedProcess, name) or hasattr(KeyedBatchProcess, name)):
            raise BadName(f"operator {operator}: state name {name!r} of {kind} is taken by process functions: use another")
    if not traits_of(process).depends_on_input and getattr(process, "output", None) is None:
        raise BadInput(f"operator {operator}: {kind} does not say what comes out: declare it, output = 'user string, n long'")
    for name in names_of_states(process):
        if name not in states:
            raise BadInput(
                f"operator {operator}: state {name} of {kind} was replaced by {short(getattr(process, name, None))} after the "
                f"class was made: declare states in the body of the class, and write with self.{name}.set(…)"
            )
    for option in ("order_by", "broadcast_order_by"):
        if isinstance(getattr(process, option), str):
            raise BadInput(f"operator {operator}: {option} of {kind} is a text: name columns in a list, {option} = ['at']")


def check_ends(operator: str, process: Process) -> None:
    """Raises ``BadInput`` if state ends by event time, for a pipeline without a watermark: it could never end. (What judges rows
    by time ends with a static input, too.)"""
    for state, declared in process.states().items():
        timed = isinstance(declared, Descriptor) and declared.ttl_ms and declared.watermark == EVENT_TIME
        if timed and not traits_of(process).drops_late:
            raise BadInput(
                f"operator {operator}, state {state}: it ends by event time, and {NO_WATERMARK}, or leave ttl_clock out"
            )


def fitted_process(
    operator: str, process: Process, rows: pa.Schema, keys: Sequence[str], event_time: str | None = None
) -> Process:
    """What runs on rows with these columns. Raises what names the operator if the process cannot."""
    check_process(operator, process)
    there = ", ".join(rows.names)
    for name in keys:
        if not rows.get_all_field_indices(name):
            raise BadInput(f"operator {operator}: there is no column {name} to key by; there are: {there}")
    fitted = traits_of(process).fitted(rows, tuple(keys), event_time)
    for name in fitted.order_by:
        if not rows.get_all_field_indices(name):
            raise BadInput(f"operator {operator}: there is no column {name} to order by; there are: {there}")
        if not has_order(rows.field(name).type):
            raise BadInput(
                f"operator {operator}: order_by cannot use column {name}: {rows.field(name).type} has no order: name another"
            )
    return fitted


@dataclass(frozen=True, slots=True)
class KeyedOperator:
    """A process function with all that a task must know to run it."""

    name: str
    process: Process
    keys: Mapping[str, pa.DataType]
    """Key columns as they stand in the rows."""
    event_time: str | None = None
    """The column that rows have their time in, if they have any."""
    drops_late: bool = True
    """Whether rows not newer than the watermark are left out, as those of the input are; those that another operator made are
    only if the process says so."""
    on_error: OnError = "raise"
    """``"dead_letter"``: a row that the function fails on goes to the table ``<name>__dead_letters``, and the epoch goes on."""
    late: pa.Schema | None = None
    """The columns of late rows, where somebody reads them and the process does not declare them itself."""
    in_order: InOrder | None = None
    """How rows are put in the order of event time before they are processed, if they are."""
    lateness_ms: int = 0
    """How far rows may be behind the watermark and are still taken: event time is that much behind for all that it does."""
    lateness_before: tuple[tuple[int, int], ...] = ()
    """Shorter lateness that it had, as in ``late_cutoff_ms``."""
    has_watermark: bool = True
    """Whether there is a watermark, or will be: else event time goes on only as far as it is told to."""

    def __post_init__(self) -> None:
        check_on_error(self.on_error, self.process)
        for name, asked in (("in_order", self.in_order is not None), ("lateness", self.lateness_ms > 0)):
            if asked and self.event_time is None:
                raise BadInput(f"operator {self.name}: {name} needs event time: call watermark, with a column that its rows have")
        if self.lateness_ms and not self.judges_rows:
            raise BadInput(
                f"operator {self.name}: lateness has no meaning here, because no row that another operator made is late for it: "
                "leave it out"
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
        """The columns of each side output."""
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
    """Rows that an operator did not process as usual, counted by reason. Adds up over buckets, tasks and epochs."""

    late: int = 0
    """Came after the watermark had passed them."""
    dead: int = 0
    """Became dead letters; timers, too."""
    early: int = 0
    """Were released before the watermark passed them, because no more could wait. These are processed."""
    ignored: int = 0
    """Said nothing to the process."""

    def __add__(self, other: "DroppedRows") -> "DroppedRows":
        return DroppedRows(*(mine + more for mine, more in zip(self._counts(), other._counts(), strict=True)))

    def _counts(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self)


def total_dropped(counts: Iterable[DroppedRows]) -> DroppedRows:
    return sum(counts, DroppedRows())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task gives back besides its delta."""

    output: pa.Table
    rows: int
    keys: int
    max_event_ms: int | None
    dropped: DroppedRows
    received: int = 0
    """What rows came as: fewer, if some were put together before."""
    sides: dict[str, pa.Table] = field(default_factory=dict)
    """The rows of each side output, all that are declared."""
    task_values: bytes = b""
    """The task values that were set, for ``put_task_values``."""
    warnings: tuple[str, ...] = ()


def combined(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome of several, in order; ``task_values`` are those of the last.

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
    )
