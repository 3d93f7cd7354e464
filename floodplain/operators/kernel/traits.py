"""Operator traits: what the engine asks of an operator besides calling it. Users' process functions have the defaults."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import as_ms
from floodplain.operators.kernel.definition import PROCESS, Described, Given, Written, free, named
from floodplain.operators.kernel.process import Process

Partial: TypeAlias = Literal["auto"] | bool
"""Whether to pre-aggregate before the shuffle."""


class GroupedSql(NamedTuple):
    """Pre-aggregation by Spark, in its SQL."""

    by: list[str]
    computed: list[str]
    """Of each group."""
    columns: list[str]
    """Made of all these."""


class Combiner:
    """Pre-aggregates rows where they are read, before the shuffle.

    Its output has a column ``ROWS``. The operator gives the same result as on the rows themselves, whatever the pieces.
    """

    keys: tuple[str, ...]
    when: Partial
    rows_per_group: float = 4
    """How many rows a key must have so that it pays."""
    count: int = 1
    """How many rows a group is combined to."""

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The columns of what comes out, given those of what goes in."""
        raise NotImplementedError

    def sql(self) -> GroupedSql | None:
        """The same by Spark; None if it cannot."""
        return None

    def __call__(self, rows: pa.Table) -> pa.Table:
        """What comes out of these rows."""
        raise NotImplementedError


class OperatorTraits:
    """What the engine asks of an operator. Operators of ours inherit it beside the process function that they are."""

    caller: ClassVar[Callable[..., Any] | None] = None
    """Runs the process for the keys of a task, where that is neither per key nor per batch."""
    follows_watermark: bool = False
    """Whether each advance of the watermark is an epoch, even without data or due timers: later rows are judged by it."""
    combiner: Combiner | None = None
    """Pre-aggregates its rows before the shuffle, if that is possible."""
    partial: Partial | None = None
    """Whether to pre-aggregate, as the user asked; None for an operator that needs every row."""
    combines_when_bound: bool = False
    """Whether it has a combiner once it is bound to the columns of its input."""
    drops_late: bool = False
    """Whether ``on_time`` also judges rows that another operator made; else only those of the input can be late."""
    needs_end: bool = False
    """Whether it has no output before the end of its input, which a stream never has."""
    gives_changes: bool = False
    """Whether its output is a changelog: rows with a column ``weight``, where -1 retracts an earlier row."""
    passes_changes: bool = False
    """Whether its output is a changelog exactly if its input is."""
    needs_all_changes: bool = False
    """Whether it reads a changelog and is wrong if changes came before its state began."""

    @property
    def _itself(self) -> Process:
        """The process function that these traits are of."""
        assert isinstance(self, Process)
        return self

    def for_changes(self, name: str) -> Process:  # noqa: ARG002
        """What runs as operator ``name`` if its input is a changelog. Raises ``BadInput`` if it would take a retraction for one
        more row."""
        return self._itself

    def fitted(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:  # noqa: ARG002
        """Binds the operator to the columns of its input, once and before anything runs. Where outputs or states depend on the
        input, what is returned has them."""
        return self._itself

    @property
    def depends_on_input(self) -> bool:
        """Whether its outputs are known only once it is bound."""
        return type(self).fitted is not OperatorTraits.fitted

    def begun(self) -> Process:
        """What runs in the epoch that begins. Called on the driver: fixes what all tasks must see alike."""
        return self._itself

    def described(self, written: Written) -> Described:  # noqa: ARG002
        """Its definition: recorded in the log, compared at a restart, shown by ``explain``. Of a user's process function: its
        class, which may change; its states are compared by themselves."""
        process = self._itself
        return Described(PROCESS, (Given("class", type(process).__name__, named(process), free),))

    def continued(self, apart: Collection[str], before: Sequence[tuple[int, int]]) -> Process:  # noqa: ARG002
        """What runs on existing state, called once it is bound. ``apart``: its states that have a table of their own.
        ``before``: shorter lateness that it had, as in ``late_cutoff_ms``."""
        return self._itself

    def kept_by(self) -> dict[str, list[str]]:
        """Aggregate → the states that it is made of, once it is bound."""
        return {}

    def goes_by_time(self) -> bool:
        """Whether its state depends on which column has the event time."""
        return False

    def late_rows(self, rows: pa.Table) -> pa.Table:
        """Late rows, with their ``reason``, as the side output ``late`` declares them."""
        return rows

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Per row whether it is on time."""
        return after_watermark(event_time, late_ms)


class _UserTraits(OperatorTraits):
    """The defaults, for a process function that a user wrote."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def _itself(self) -> Process:
        return self._process


def traits_of(process: Process) -> OperatorTraits:
    """What the engine may ask of this process function."""
    return process if isinstance(process, OperatorTraits) else _UserTraits(process)


def after_watermark(event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
    """Per row whether it is after the watermark. A row exactly at it is late, since timers of that time have fired; a row
    without a time is never late."""
    return pc.fill_null(pc.greater(as_ms(event_time), late_ms), True)
