"""What users write: a process function called once per key and epoch, on Python values or on whole Arrow tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from floodplain.state.descriptors import State, states_of


class Process:
    """What all process functions have in common."""

    output: ClassVar[str | pa.Schema]
    """The columns of what comes out, as Spark writes them: ``"user string, views long"``."""
    side_outputs: ClassVar[Mapping[str, str | pa.Schema]] = {}
    """Further outputs by name, with their columns: what ``ctx.emit(name, row)`` gives out. One called ``late`` gets the rows that
    come too late, with those columns of the input that it declares."""
    order_by: ClassVar[Sequence[str]] = ()
    """Columns that order the rows of a key; else they come as Spark brought them."""
    broadcast_order_by: ClassVar[Sequence[str]] = ()
    """Columns that order the rows of the broadcast input; else all of them do."""
    caller: ClassVar[Any] = None
    """What runs it for the keys of a task, where that is neither key by key nor all at once."""

    def states(self) -> dict[str, State]:
        """Its states by name, by default those declared in the body of the class."""
        return states_of(type(self))

    def on_broadcast(self, rows: Any, ctx: Any) -> None:
        """Called in every task, before any key, with the rows of the broadcast input of the epoch: a list of rows, or an Arrow
        table in a ``KeyedBatchProcess``. The only place where broadcast state is changed; it must do the same in all tasks."""
        raise NotImplementedError


class KeyedProcess(Process):
    """Subclass it, declare states in the body, say what comes out, and implement ``process``.

    In ``process`` and ``on_timer`` each declared state is a handle on the state of the key at hand.
    """

    def process(self, key: Any, rows: Sequence[Any], ctx: "Any") -> Iterable[Any] | None:
        """Called once per epoch for each key that has rows; yields output rows as tuples or dicts."""
        raise NotImplementedError

    def on_timer(self, key: Any, at: int, ctx: "Any") -> Iterable[Any] | None:
        """Called after all rows of the epoch for each timer that is due, in the order of time."""
        raise NotImplementedError


class KeyedBatchProcess(Process):
    """As ``KeyedProcess``, but called once per task and epoch with all keys at once, in Arrow."""

    def process(self, batch: "Any", ctx: "Any") -> pa.Table | None:
        """``batch.rows`` are sorted by key and ``batch.key_of_row`` numbers the key of each; ``batch.keys`` has one row per key;
        ``batch.state(name)`` is a column aligned with the keys, and ``batch.set(name, column)`` replaces it."""
        raise NotImplementedError
