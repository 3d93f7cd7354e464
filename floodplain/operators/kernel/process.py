"""Process functions, which users subclass: called per key with Python values, or per task with Arrow columns."""

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
    """The base of all process functions."""

    output: str | pa.Schema
    """The output columns, as a Spark DDL string: ``"user string, views long"``."""
    side_outputs: Mapping[str, str | pa.Schema] = MappingProxyType({})
    """Side outputs by name, with their columns; ``ctx.emit(name, row)`` writes to them. One called ``late`` gets the late rows,
    with those columns of the input that it declares."""
    order_by: Sequence[str] = ()
    """Columns by which the rows of a key are sorted; else they come in the order in which Spark delivers them."""
    broadcast_order_by: ClassVar[Sequence[str]] = ()
    """Columns by which the rows of the broadcast input are sorted; by default all."""
    output_time: str | None = None
    """The event-time column of the output, if there is one; windows downstream use it."""

    _declared_states: ClassVar[tuple[str, ...]] = ()
    """The names of the states declared in the class body."""

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
        """The states by name, by default those declared in the class body."""
        return states_of(type(self))

    def open(self, ctx: OpenContext) -> Any:  # noqa: ARG002
        """Called once in each worker process, before the first task of this operator: for connections, models and the like. What
        it returns is ``ctx.resource`` in all other methods, in every later epoch. ``ctx.operator`` is the operator's name.
        Attributes do not survive: each task has a fresh copy of this object."""
        return None

    def close(self, resource: Any) -> None:  # noqa: ARG002
        """Called with what ``open`` returned when the query is restarted in the same worker process, or when that process exits.
        Not if it is killed, as Spark often does with its workers when it stops."""
        return

    def on_broadcast(self, rows: Any, ctx: EpochContext) -> None:
        """Called in every task, before any key, with the rows of the broadcast input of the epoch: a list of rows, or an Arrow
        table in a ``KeyedBatchProcess``. Only here can broadcast state be changed; it must be deterministic, because all tasks
        must make the same changes."""
        raise NotImplementedError(
            f"{type(self).__name__} has no on_broadcast(self, rows, ctx), and there are broadcast rows: add it"
        )


def give_handle(process: Process, name: str, handle: Any) -> None:
    """Sets ``self.<name>`` to this handle, for the methods of the process."""
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
        f"that is not stored: write {written}"
    )


_WRITTEN_BY = {"Reducing": "add", "Aggregating": "add", "List": "append", "Map": "put", "Set": "add", "Broadcast": "put"}


class KeyedProcess(Process):
    """Subclass it, declare states and ``output`` in the class body, and implement ``process``.

    In ``process`` and ``on_timer`` each declared state is a handle on the state of the current key.
    """

    def process(self, key: Row, rows: Sequence[Row], ctx: Context) -> Iterable[RowLike] | None:
        """Called once per epoch for each key that has rows; yields output rows as tuples or dicts."""
        raise NotImplementedError(f"{type(self).__name__} has no process(self, key, rows, ctx): add it")

    def on_timer(self, key: Row, at: int, ctx: Context) -> Iterable[RowLike] | None:
        """Called after all rows of the epoch for each due timer, sorted by time: event-time timers, then processing-time timers.

        A timer set here fires in this epoch too if it is due and later than ``at``; else in the next epoch at the earliest."""
        raise NotImplementedError(
            f"{type(self).__name__} has no on_timer(self, key, at, ctx), and a timer at {at} ms is due: add it"
        )


class KeyedBatchProcess(Process):
    """As ``KeyedProcess``, but called once per task and epoch with all keys at once, in Arrow.

    Both methods return an Arrow table, a Polars or a pandas frame with the columns of ``output`` (in any order; others are
    dropped), or None. The batch reads and writes state. Its methods are named as those of the handles of a ``KeyedProcess``,
    and take whole columns instead of values:

    * ``batch.rows`` are sorted by key; ``batch.keys`` has one row per key, and its row number is the key number.
      ``batch.key_of_row`` is the key number of each row, ``batch.rows_per_key()`` the number of rows of each key.
    * ``key_of``, an argument of all methods that take values: the key number of each value; by default one value per key.
    * ``Value``: ``state(name)``, ``set(name, values, key_of)``. ``Reducing``, ``Aggregating``: ``state(name)``,
      ``add(name, values, key_of)``. ``on_rows(name)`` is ``state(name)`` per row.
    * ``List``: ``entries(name)``, ``append(name, values, key_of)``. ``Set``: ``entries``, ``add``, ``remove``, ``contains``.
    * ``Map``: ``entries(name)`` of all keys; ``get`` and ``contains(name, keys, key_of)`` of some entries in one multi-get;
      ``put`` and ``merge(name, keys, values, key_of)``, ``remove(name, keys, key_of)``.
    * All: ``exists(name)``, ``clear(name, key_of)``. Timers: ``timer``, ``processing_timer``, ``delete_timer`` and
      ``delete_processing_timer(times, key_of)``, ``timers()``.
    * ``to_arrow``, ``to_polars``, ``to_pandas(*states)``: keys with their state; ``rows_arrow``, ``rows_polars`` and
      ``rows_pandas(*states)``: rows with the state of their key. Polars and pandas are imported only then.

    Reads see earlier writes; a state that is only written is not read.
    """

    def process(self, batch: Batch, ctx: BatchContext) -> FrameLike | None:
        """Called once per task and epoch, even without rows. ``ctx`` has ``epoch``, ``watermark`` and ``processing_time``."""
        raise NotImplementedError(f"{type(self).__name__} has no process(self, batch, ctx): add it")

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> FrameLike | None:
        """Called after ``process`` with all due timers: ``key_of``, ``time`` and ``clock`` (``event`` or ``processing``), event
        time first, each sorted by time. They are deleted before the call. It is called again for timers set here that are due,
        if they are later than the first of their key in this call; others fire in the next epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no on_timers(self, batch, due, ctx), and timers are due: add it")


def names_of_states(process: Process) -> tuple[str, ...]:
    """The names of the states declared in its class body."""
    return process._declared_states
