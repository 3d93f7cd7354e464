"""Control operations: what users write to look at running state at an epoch boundary, and to decide what follows from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.runtime.compatibility.migration import StartChanges
from floodplain.runtime.progress import EpochProgress
from floodplain.state.tables import SEPARATOR
from floodplain.store.read.snapshot import Snapshot, TableView
from floodplain.versions.records.edit import GroupRanges


class SlotState:
    """The state of one operator as of the last committed epoch, in the key groups of one slot. Read-only."""

    def __init__(self, snapshot: Snapshot, operator: str, groups: GroupRanges) -> None:
        self._snapshot, self._operator, self._groups = snapshot, operator, groups

    @property
    def tables(self) -> tuple[str, ...]:
        """Its tables: that of its values has the operator's name, that of a list, map or set the state's."""
        prefix = self._operator + SEPARATOR
        return tuple(
            name.removeprefix(prefix) for name in self._snapshot.tables if name == self._operator or name.startswith(prefix)
        )

    def scan(self, table: str | None = None, *, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of a table in bounded pieces; of the operator's values if none is named."""
        return self._view(table).scan(groups=self._groups, columns=columns)

    def to_arrow(self, table: str | None = None, *, columns: Sequence[str] | None = None) -> pa.Table:
        """All of these rows in memory."""
        return pa.concat_tables([self._view(table).empty(columns), *self.scan(table, columns=columns)])

    def _view(self, table: str | None) -> TableView:
        name = table or self._operator
        if name not in self.tables:
            raise BadInput(f"operator {self._operator} has no table {name!r}; it has: {', '.join(self.tables)}")
        return self._snapshot.table(name if name == self._operator else f"{self._operator}{SEPARATOR}{name}")


@dataclass(frozen=True)
class SlotContext:
    """The argument ``ctx`` of ``on_slot``. Times are milliseconds since 1970."""

    slot: int
    slots: int
    epoch: int
    """The last committed one: the state is as of it."""
    processing_time: int
    watermark: int | None
    """None before the first."""


@dataclass(frozen=True)
class ControlContext:
    """The argument ``control`` of ``decide``."""

    epoch: int
    """The last committed one."""
    slots: int
    operators: tuple[str, ...]
    tags: Mapping[str, int]
    progress: EpochProgress | None
    """Of the last epoch that this driver ran; None before the first."""


@dataclass(frozen=True)
class Rescale:
    """A decision: use this many slots from the next epoch on, for all operators or for some by name."""

    slots: int | Mapping[str, int]


@dataclass(frozen=True)
class Tag:
    """A decision: keep the last committed epoch under this name."""

    name: str


@dataclass(frozen=True)
class Update:
    """A decision: this pipeline takes over, as by ``Query.update`` with these arguments."""

    pipeline: Any
    """None where the decision is read from the log, which has no code, and in tasks, which have no use for it."""
    tag: str | None = None
    drop: Sequence[str] = ()
    reset: Sequence[str] = ()
    rename: Mapping[str, str] | None = None
    evolve: Mapping[str, Callable[[Any], Any] | None] | None = None

    def __reduce__(self) -> tuple[type["Update"], tuple[None]]:
        """An operation may hold it: what Spark ships to tasks lacks the pipeline, which only the driver has."""
        return Update, (None,)

    @property
    def changes(self) -> StartChanges:
        """What is to be done with the state."""
        return StartChanges.of(self.drop, self.reset, self.rename, self.evolve)


class ControlOperation(ABC):
    """Looks at the state of one operator, slot by slot, at an epoch boundary, and decides once for all. See ``Query.control``.

    What ``on_slot`` returns is plain data: None, booleans, numbers, text, lists, and dictionaries with text keys. Times and
    decimals become text. Tasks get a copy of the object, so what ``on_slot`` sets on it is lost.
    """

    operator: str
    """The operator whose state it reads. Declare it in the class, or set it in ``__init__``."""

    @property
    def name(self) -> str:
        """What the log calls it: ``[a-z0-9_]{1,64}``."""
        kind = type(self).__name__
        return "".join("_" + letter.lower() if letter.isupper() else letter for letter in kind).lstrip("_")

    @abstractmethod
    def on_slot(self, state: SlotState, ctx: SlotContext) -> Any:
        """What one slot contributes. Called in a task, for each slot once; again if the task is lost."""

    @abstractmethod
    def merge(self, a: Any, b: Any) -> Any:
        """Two contributions as one. Slots are merged in their order, in the driver."""

    def decide(self, result: Any, control: ControlContext) -> Any:  # noqa: ARG002
        """What follows: None, ``Rescale``, ``Tag``, ``Update``, or plain data, which ``Query.control`` returns. By default the
        merged result. Called in the driver, at the same boundary."""
        return result
