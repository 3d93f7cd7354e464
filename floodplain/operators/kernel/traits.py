"""Operator traits: what the engine needs to know of an operator. Process functions of users have the defaults."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import as_ms, as_us
from floodplain.operators.kernel.definition import PROCESS, OperatorSpec, ParameterSpec, Written, free, named
from floodplain.operators.kernel.process import Process

UPDATED, REMOVED, DUPLICATES = "updated", "removed", "duplicates"
"""Measures of built-in operators: keys whose state was written, those whose state has expired, and dropped duplicates."""
Partial: TypeAlias = Literal["auto"] | bool
"""Whether to pre-aggregate before the shuffle."""


class GroupedSql(NamedTuple):
    """Pre-aggregation by Spark, in its SQL."""

    by: list[str]
    computed: list[str]
    """Aggregate expressions."""
    columns: list[str]
    """Output columns, computed from the above."""


class Combiner:
    """Pre-aggregates rows of an input partition, before the shuffle.

    Its output has a column ``ROWS``. Requires: the result of the operator does not depend on how rows were combined.
    """

    keys: tuple[str, ...]
    when: Partial
    rows_per_group: float = 4
    """From how many rows per key combining pays."""
    count: int = 1
    """How many rows remain of a group, at most."""

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The output schema, given the input schema."""
        raise NotImplementedError

    def sql(self) -> GroupedSql | None:
        """The combiner in Spark SQL; None if it cannot be expressed."""
        return None

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Combines these rows."""
        raise NotImplementedError


class OperatorTraits:
    """What the engine needs to know of an operator. Built-in operators inherit it in addition to a process function."""

    caller: ClassVar[Callable[..., Any] | None] = None
    """Calls the process for the keys of a task, where that is neither per key nor per batch."""
    follows_watermark: bool = False
    """Whether each advance of the watermark needs an epoch, even without rows or due timers: it decides which rows are late."""
    combiner: Combiner | None = None
    """Pre-aggregates its input before the shuffle; None if that is not possible."""
    partial: Partial | None = None
    """Whether to pre-aggregate, as the user requested; None for an operator that needs every row."""
    combines_when_bound: bool = False
    """Whether it has a combiner once it is bound to a schema."""
    drops_late: bool = False
    """Whether rows of an upstream operator can be late, too; else only rows of the source can."""
    needs_end: bool = False
    """Whether it emits only at the end of its input, which an unbounded stream never reaches."""
    gives_changes: bool = False
    """Whether its output is a changelog: rows with a column ``weight``, where -1 retracts an earlier row."""
    passes_changes: bool = False
    """Whether its output is a changelog exactly if its input is."""
    needs_all_changes: bool = False
    """Whether its result is wrong unless its state has seen all changes of its input from the beginning."""

    @property
    def _itself(self) -> Process:
        """The process function with these traits."""
        assert isinstance(self, Process)
        return self

    def for_changes(self, name: str) -> Process:  # noqa: ARG002
        """The version of operator ``name`` that consumes a changelog. Raises ``BadInput`` if it does not support retractions."""
        return self._itself

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:  # noqa: ARG002
        """Binds the operator to the schema of its input, once and before anything runs. Outputs and states that depend on the
        input are known in the returned process."""
        return self._itself

    @property
    def depends_on_input(self) -> bool:
        """Whether its outputs are known only once it is bound."""
        return type(self).bind is not OperatorTraits.bind

    def for_epoch(self) -> Process:
        """The process for the next epoch. Called on the driver, to fix what all tasks must agree on."""
        return self._itself

    @property
    def fixed(self) -> bytes:
        """What ``for_epoch`` has fixed, for workers that have the process already."""
        return b""

    def with_fixed(self, fixed: bytes) -> Process:  # noqa: ARG002
        """The process with what ``for_epoch`` has fixed on the driver."""
        return self._itself

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        """Its definition: recorded in the log, compared at a restart, shown by ``explain``. Of a process function of a user: its
        class, which may change; its states are compared separately."""
        process = self._itself
        return OperatorSpec(PROCESS, (ParameterSpec("class", type(process).__name__, named(process), free),))

    def resumed(self, apart: Collection[str], before: Sequence[tuple[int, int]]) -> Process:  # noqa: ARG002
        """The process on existing state, called once it is bound. ``apart``: its states that have their own table.
        ``before``: shorter lateness of earlier versions of the job, as in ``late_cutoff_ms``."""
        return self._itself

    def states_by_aggregate(self) -> dict[str, list[str]]:
        """Aggregate → the states that it reads, once it is bound."""
        return {}

    def goes_by_time(self) -> bool:
        """Whether its state depends on which column is the event time."""
        return False

    def late_rows(self, rows: pa.Table) -> pa.Table:
        """Converts late rows, with their ``reason``, to the schema of the side output ``late``."""
        return rows

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Per row, whether it is not late."""
        return after_watermark(event_time, late_ms)


class _UserTraits(OperatorTraits):
    """The defaults, for a process function of a user."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def _itself(self) -> Process:
        return self._process


def traits_of(process: Process) -> OperatorTraits:
    """The traits of a process function."""
    return process if isinstance(process, OperatorTraits) else _UserTraits(process)


def after_watermark(event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
    """Per row, whether it is after the watermark. A row at the watermark is late, because timers of that time have fired; a row
    without a time is never late."""
    return pc.fill_null(pc.greater(as_ms(event_time), late_ms), True)


def after_watermark_as_spark(event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
    """As ``after_watermark``, to the microsecond. As in Spark there always is a watermark: at first it is 1970."""
    return pc.fill_null(pc.greater(as_us(event_time), max(late_ms, 0) * 1000), True)
