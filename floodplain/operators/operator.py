"""What a keyed operator is made of, before any epoch runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from floodplain.operators.process import Process
from floodplain.state.descriptors import State, Timers
from floodplain.state.tables import OperatorTables, tables_for
from floodplain.state.types import as_fields
from floodplain.tiers.paths import checked_name

EVENT_TIMERS = "event_timers"
PROCESSING_TIMERS = "processing_timers"
_TIMERS: dict[str, State] = {EVENT_TIMERS: Timers("event"), PROCESSING_TIMERS: Timers("processing")}


def declared_states(process: Process) -> dict[str, State]:
    """The states of an operator, its timers included."""
    return {**process.states(), **_TIMERS}


def operator_tables(name: str, keys: Mapping[str, pa.DataType], process: Process) -> OperatorTables:
    return tables_for(name, keys, declared_states(process))


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
    """Whether rows older than the watermark are left out: those of the input are, those that another operator made never."""

    @property
    def output(self) -> pa.Schema:
        return pa.schema(as_fields(self.process.output).items())

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The columns of each side output."""
        return {
            checked_name("side output", name): pa.schema(as_fields(columns).items())
            for name, columns in self.process.side_outputs.items()
        }

    @property
    def tables(self) -> OperatorTables:
        return operator_tables(self.name, self.keys, self.process)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task gives back besides its delta."""

    output: pa.Table
    late: int
    rows: int
    keys: int
    max_event_ms: int | None
    sides: dict[str, pa.Table] = field(default_factory=dict)
    """The rows of each side output, all that are declared."""
