"""What users write: a process function called once per key and epoch, on Python values or on whole Arrow tables."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.eventtime.times import as_ms
from floodplain.operators.kernel.definition import PROCESS, Described, Given, Written, free, named
from floodplain.state.descriptors import Broadcast, State, TaskValue, states_of


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
    follows_watermark: bool = False
    """Whether each step of the watermark is an epoch, though no data comes and nothing is due: later rows are judged by it."""
    caller: ClassVar[Any] = None
    """What runs it for the keys of a task, where that is neither key by key nor all at once."""

    combiner: Any = None
    """How rows may be put together before they are exchanged, if they may: a ``Combiner``."""
    drops_late: bool = False
    """Whether ``on_time`` judges rows that another operator made too; else only those of the input can be late."""

    needs_end: bool = False
    """Whether nothing comes out before all input has come. That of a stream never has."""

    output_time: str | None = None
    """The column of what comes out that is its event time, if it has any."""

    gives_changes: bool = False
    """Whether what comes out are changes: rows with a column ``weight``, by which -1 takes back a row that came before."""
    needs_all_changes: bool = False
    """Whether it takes changes and is wrong if some came before its state began."""

    declared_states: ClassVar[tuple[str, ...]] = ()
    """The names of the states in the body of the class, as it was made."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.declared_states = tuple(states_of(cls))

    def __setattr__(self, name: str, value: Any) -> None:
        _check_is_no_state(self, name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _check_is_no_state(self, name)
        super().__delattr__(name)

    def for_changes(self, name: str) -> "Process":  # noqa: ARG002
        """What is to run as operator ``name`` if its rows are changes. Raises ``BadInput`` if it would take a row that is taken
        back for one more. A user's own gets all rows as they are."""
        return self

    def fitted(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "Process":  # noqa: ARG002
        """What runs on an input with these columns, called once before anything does. A process whose outputs or states depend
        on its input returns one that has them; others are what runs."""
        return self

    def begun(self) -> "Process":
        """What runs in the epoch that begins, called on the driver before its tasks: what all of them are to see alike is fixed
        here."""
        return self

    @property
    def depends_on_input(self) -> bool:
        """Whether its outputs are known only once it is fitted."""
        return type(self).fitted is not Process.fitted

    def states(self) -> dict[str, State]:
        """Its states by name, by default those declared in the body of the class."""
        return states_of(type(self))

    def described(self, written: Written) -> Described:  # noqa: ARG002
        """What it is told to do, with which state of it can go on and with which it cannot. Of a user's own function: its class,
        which may change; its states are compared by themselves."""
        return Described(PROCESS, (Given("class", type(self).__name__, named(self), free),))

    def continued(self, apart: Collection[str], before: Sequence[tuple[int, int]]) -> "Process":  # noqa: ARG002
        """What runs on state that is there already, called once it is fitted. ``apart``: its states that have a table of their
        own. ``before``: shorter lateness that it had, as in ``gone_ms``."""
        return self

    def kept_by(self) -> dict[str, list[str]]:
        """Aggregate → the states that it is made of, once it is fitted."""
        return {}

    def goes_by_time(self) -> bool:
        """Whether what it keeps depends on which column has the event time."""
        return False

    def open(self, ctx: Any) -> Any:  # noqa: ARG002
        """Called once in each process that runs tasks of this operator, before its first one there: for connections, models and
        the like. What it returns is ``ctx.resource`` in all other methods, in every later epoch. ``ctx.operator`` is the
        operator's name. Nothing else stays: each task has a fresh copy of this object."""
        return None

    def close(self, resource: Any) -> None:  # noqa: ARG002
        """Called with what ``open`` returned when the query is started anew in the same process, or when the process ends in
        order. Not if it is killed, as Spark often does with its workers when it stops."""
        return

    def on_broadcast(self, rows: Any, ctx: Any) -> None:
        """Called in every task, before any key, with the rows of the broadcast input of the epoch: a list of rows, or an Arrow
        table in a ``KeyedBatchProcess``. The only place where broadcast state is changed; it must do the same in all tasks."""
        raise NotImplementedError(
            f"{type(self).__name__} has no on_broadcast(self, rows, ctx), and broadcast rows have come: add it"
        )

    def late_rows(self, rows: pa.Table) -> pa.Table:
        """Rows that came too late, with their ``reason``, as the side output ``late`` declares them."""
        return rows

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """For each row whether it is to be processed, given its event time. One exactly at the watermark is late, since timers of
        that time have fired; no time is never late."""
        return pc.fill_null(pc.greater(as_ms(event_time), late_ms), True)


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

    def process(self, key: Any, rows: Sequence[Any], ctx: "Any") -> Iterable[Any] | None:
        """Called once per epoch for each key that has rows; yields output rows as tuples or dicts."""
        raise NotImplementedError(f"{type(self).__name__} has no process(self, key, rows, ctx): add it")

    def on_timer(self, key: Any, at: int, ctx: "Any") -> Iterable[Any] | None:
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

    def process(self, batch: "Any", ctx: "Any") -> "pa.Table | Any | None":
        """Called once per task and epoch, with no rows too. ``ctx`` has ``epoch``, ``watermark`` and ``processing_time``."""
        raise NotImplementedError(f"{type(self).__name__} has no process(self, batch, ctx): add it")

    def on_timers(self, batch: "Any", due: pa.Table, ctx: "Any") -> "pa.Table | Any | None":
        """Called after ``process`` with all timers that are due: ``key_of``, ``time`` and ``clock`` (``event`` or
        ``processing``), event time first, each by time. They are gone by then. It is called again for those that it sets and
        that are due at once, if they are later than the first of their key in this call; others wait for the next epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no on_timers(self, batch, due, ctx), and timers are due: add it")
