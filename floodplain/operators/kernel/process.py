"""What users write: a process function called once per key and epoch, on Python values or on whole Arrow tables."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext, Context, EpochContext, OpenContext
from floodplain.operators.kernel.outputs import RowLike
from floodplain.operators.kernel.row_cursor import Row
from floodplain.state.descriptors import Broadcast, State, TaskValue, states_of
from floodplain.state.frames import FrameLike


class Process:
    """What all process functions have in common."""

    output: str | pa.Schema
    """The columns of what comes out, as Spark writes them: ``"user string, views long"``."""
    side_outputs: Mapping[str, str | pa.Schema] = MappingProxyType({})
    """Further outputs by name, with their columns: what ``ctx.emit(name, row)`` gives out. One called ``late`` gets the rows that
    come too late, with those columns of the input that it declares."""
    order_by: Sequence[str] = ()
    """Columns that order the rows of a key; else they come as Spark brought them."""
    broadcast_order_by: ClassVar[Sequence[str]] = ()
    """Columns that order the rows of the broadcast input; else all of them do."""
    output_time: str | None = None
    """The column of the output that is its event time, if there is one: windows downstream go by it."""

    _declared_states: ClassVar[tuple[str, ...]] = ()
    """The names of the states in the body of the class, as it was made."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._declared_states = tuple(states_of(cls))

    def __setattr__(self, name: str, value: Any) -> None:
        _check_is_no_state(self, name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _check_is_no_state(self, name)
        super().__delattr__(name)

    def states(self) -> dict[str, State]:
        """Its states by name, by default those declared in the body of the class."""
        return states_of(type(self))

    def open(self, ctx: OpenContext) -> Any:  # noqa: ARG002
        """Called once in each process that runs tasks of this operator, before its first one there: for connections, models and
        the like. What it returns is ``ctx.resource`` in all other methods, in every later epoch. ``ctx.operator`` is the
        operator's name. Nothing else stays: each task has a fresh copy of this object."""
        return None

    def close(self, resource: Any) -> None:  # noqa: ARG002
        """Called with what ``open`` returned when the query is started anew in the same process, or when the process ends in
        order. Not if it is killed, as Spark often does with its workers when it stops."""
        return

    def on_broadcast(self, rows: Any, ctx: EpochContext) -> None:
        """Called in every task, before any key, with the rows of the broadcast input of the epoch: a list of rows, or an Arrow
        table in a ``KeyedBatchProcess``. The only place where broadcast state is changed; it must do the same in all tasks."""
        raise NotImplementedError(
            f"{type(self).__name__} has no on_broadcast(self, rows, ctx), and broadcast rows have come: add it"
        )


def give_handle(process: Process, name: str, handle: Any) -> None:
    """Let ``self.<name>`` be this handle in the functions of the process."""
    object.__setattr__(process, name, handle)


def _check_is_no_state(process: Process, name: str) -> None:
    state = getattr(type(process), name, None)
    if not isinstance(state, State):
        return
    of = type(state).__name__
    verb = _WRITTEN_BY.get(of, "set")
    batched = isinstance(process, KeyedBatchProcess) and not isinstance(state, TaskValue | Broadcast)
    written = f'batch.{verb}("{name}", …)' if batched else f"self.{name}.{verb}(…)"
    raise BadInput(
        f"{type(process).__name__}.{name} is a {of}, which self.{name} = … or del self.{name} would replace by a plain attribute "
        f"that is not kept: write {written}"
    )


_WRITTEN_BY = {"Reducing": "add", "Aggregating": "add", "List": "append", "Map": "put", "Set": "add", "Broadcast": "put"}


class KeyedProcess(Process):
    """Subclass it, declare states in the body, say what comes out, and implement ``process``.

    In ``process`` and ``on_timer`` each declared state is a handle on the state of the key at hand.
    """

    def process(self, key: Row, rows: Sequence[Row], ctx: Context) -> Iterable[RowLike] | None:
        """Called once per epoch for each key that has rows; yields output rows as tuples or dicts."""
        raise NotImplementedError(f"{type(self).__name__} has no process(self, key, rows, ctx): add it")

    def on_timer(self, key: Row, at: int, ctx: Context) -> Iterable[RowLike] | None:
        """Called after all rows of the epoch for each timer that is due, in the order of time: event time, then processing time.

        A timer that it sets fires in this epoch too if it is due and later than ``at``; else in the next one at the earliest."""
        raise NotImplementedError(
            f"{type(self).__name__} has no on_timer(self, key, at, ctx), and a timer at {at} ms is due: add it"
        )


class KeyedBatchProcess(Process):
    """As ``KeyedProcess``, but called once per task and epoch with all keys at once, in Arrow.

    Both methods return an Arrow table, a Polars or a pandas frame with the columns of ``output`` (in any order, others are left
    out), or None. The state is reached through the batch, whose methods are called as those of the handles of a
    ``KeyedProcess``, with whole columns instead of values:

    * ``batch.rows`` are sorted by key; ``batch.keys`` has one row per key, and its row number is the number of the key.
      ``batch.key_of_row`` is that number for each row, ``batch.rows_per_key()`` how many each key has.
    * ``key_of``, of every method that takes values, numbers the key of each; without it there is one value per key.
    * ``Value``: ``state(name)``, ``set(name, values, key_of)``. ``Reducing``, ``Aggregating``: ``state(name)``,
      ``add(name, values, key_of)``. ``on_rows(name)`` is ``state(name)`` per row.
    * ``List``: ``entries(name)``, ``append(name, values, key_of)``. ``Set``: ``entries``, ``add``, ``remove``, ``contains``.
    * ``Map``: ``entries(name)`` of all keys; ``get`` and ``contains(name, keys, key_of)`` of some entries in one multi-get;
      ``put`` and ``merge(name, keys, values, key_of)``, ``remove(name, keys, key_of)``.
    * All: ``exists(name)``, ``clear(name, key_of)``. Timers: ``timer``, ``processing_timer``, ``delete_timer`` and
      ``delete_processing_timer(times, key_of)``, ``timers()``.
    * ``to_arrow``, ``to_polars``, ``to_pandas(*states)``: keys with their state; ``rows_arrow``, ``rows_polars`` and
      ``rows_pandas(*states)``: rows with that of their key. Polars and pandas are imported only then.

    Reading sees what was written before; what is only written is not read.
    """

    def process(self, batch: Batch, ctx: BatchContext) -> FrameLike | None:
        """Called once per task and epoch, with no rows too. ``ctx`` has ``epoch``, ``watermark`` and ``processing_time``."""
        raise NotImplementedError(f"{type(self).__name__} has no process(self, batch, ctx): add it")

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> FrameLike | None:
        """Called after ``process`` with all timers that are due: ``key_of``, ``time`` and ``clock`` (``event`` or
        ``processing``), event time first, each by time. They are gone by then. It is called again for those that it sets and
        that are due at once, if they are later than the first of their key in this call; others wait for the next epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no on_timers(self, batch, due, ctx), and timers are due: add it")


def names_of_states(process: Process) -> tuple[str, ...]:
    """The names of the states in the body of its class, as the class was made."""
    return process._declared_states
