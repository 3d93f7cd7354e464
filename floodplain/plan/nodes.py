"""The dataflow of a pipeline: its steps, where its output goes, and in which order they run. Knows nothing of Spark."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodplain.errors import BadInput
from floodplain.eventtime.watermarks import WatermarkRule
from floodplain.expressions.comparison import Comparison, comparison
from floodplain.operators.kernel.event_order import InOrder
from floodplain.operators.kernel.late_rows import LATE, WHOLE
from floodplain.operators.kernel.operator import OnError
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import OperatorTraits, traits_of
from floodplain.sinks.base import Sink

MAIN = "main"
"""What an operator's own output is called, beside its side outputs."""


@dataclass(frozen=True, eq=False)
class Input:
    """Rows of a batch. ``tag`` tells the pipeline's own input (empty) from the broadcast input of an operator (its name)."""

    tag: str = ""


@dataclass(frozen=True, eq=False)
class Transform:
    """A stateless step, in Spark."""

    parent: "Node"
    function: Callable[[Any], Any]
    changes: bool = False
    """Whether its rows are changes. Its output must have their weight, too."""


@dataclass(frozen=True)
class Rest:
    """In a ``Select``: all columns of the parent but these, as one struct. No column if there are none."""

    but: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Select:
    """Columns by name, made of those of its parent: expressions as Spark has them, as text or as a ``Column``, or ``Rest``.

    ``only``: a column and the value it must have.
    """

    parent: "Node"
    columns: tuple[tuple[str, Any], ...]
    only: tuple[str, str] | None = None
    chosen: bool = False
    """Whether the operator that reads it chose them. Its late rows have all columns of the parent: if read, these come along."""


@dataclass(frozen=True, eq=False)
class Extend:
    """All columns of its parent with some made new or anew, as in ``Select``; of rows for which ``where`` holds, if given."""

    parent: "Node"
    columns: tuple[tuple[str, Any], ...] = ()
    where: Any = None
    for_keys: bool = False
    """Whether these are keys that ``key_by`` was given as expressions."""


@dataclass(frozen=True, eq=False)
class Union:
    """The rows of several steps as one; a column that one of them lacks is null in its rows."""

    members: tuple["Node", ...]


@dataclass(frozen=True, eq=False)
class Keyed:
    """A stateful step."""

    parent: "Node"
    name: str
    keys: tuple[str, ...]
    process: Process
    on_error: OnError = "raise"
    broadcast: Input | None = None
    event_time: str | None = None
    """The column with the time of its rows, if that is not the pipeline's."""
    in_order: InOrder | None = None
    """Whether its rows come in the order of event time, and how far."""
    lateness_ms: int = 0
    """How far rows may be behind the watermark and are still taken."""

    @property
    def traits(self) -> OperatorTraits:
        return traits_of(self.process)


@dataclass(frozen=True, eq=False)
class Side:
    """A side output of a stateful step."""

    parent: Keyed
    output: str


Node = Input | Transform | Select | Extend | Union | Keyed | Side


@dataclass(frozen=True)
class Outlet:
    """A sink and what flows into it. Its name is the operator's in the names of staged files."""

    name: str
    node: Node
    sink: Sink
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the sink was made with; None if it came as an object."""

    @property
    def staged_as(self) -> tuple[str, str]:
        """Operator and output that its staged files are named after."""
        return output_of(self.node) or (self.name, MAIN)


class Plan:
    """All steps that lead to the outlets, each after those it reads from."""

    def __init__(self, outlets: Sequence[Outlet], event_time: str | None = None, watermark: WatermarkRule | None = None) -> None:
        self.outlets = tuple(outlets)
        self.event_time = event_time
        self.watermark = watermark
        """How the watermark follows from the rows, if Spark does not say it."""
        self.nodes: list[Node] = []
        for outlet in self.outlets:
            self._visit(outlet.node)
        self.operators = [node for node in self.nodes if isinstance(node, Keyed)]
        self._check_names()

    def _visit(self, node: Node) -> None:
        if node in self.nodes:
            return
        for parent in parents(node):
            self._visit(parent)
        self.nodes.append(node)

    def _check_names(self) -> None:
        names = [operator.name for operator in self.operators]
        names += [outlet.name for outlet in self.outlets if not isinstance(outlet.node, Keyed | Side)]
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"two steps are called {name}: give one of them another name")
        for operator in self.operators:
            if MAIN in operator.process.side_outputs:
                raise BadInput(
                    f"operator {operator.name}: a side output cannot be called {MAIN}; that is what its own output is called"
                )

    def readers(self, operator: str, output: str) -> Iterator[Node | Outlet]:
        """Who reads this output of an operator."""
        for outlet in self.outlets:
            if outlet.staged_as == (operator, output):
                yield outlet
        for node in self.nodes:
            if not isinstance(node, Side) and any(output_of(parent) == (operator, output) for parent in parents(node)):
                yield node

    def split_by(self, operator: str, output: str) -> tuple[str, ...]:
        """The keys by which this output is staged: operators that have them read the rows of their slots without an exchange."""
        reader = self.split_for(operator, output)
        return () if reader is None else reader.keys

    def split_for(self, operator: str, output: str) -> Keyed | None:
        """The operator by whose keys and slots this output is staged."""
        return next((reader for reader in self.operators if some_of(reader.parent)[0] == (operator, output)), None)

    def read_together(self) -> list[list[str]]:
        """Operators that read one output by the same keys: without an exchange, as long as they have the same slots."""
        readers: dict[object, list[str]] = {}
        for reader in self.operators:
            named, _ = some_of(reader.parent)
            if named is not None:
                readers.setdefault((named, reader.keys), []).append(reader.name)
        return [names for names in readers.values() if len(names) > 1]

    def wants_late(self, operator: Keyed) -> bool:
        """Whether somebody reads the rows that come too late for it."""
        return any(isinstance(node, Side) and node.parent is operator and node.output == LATE for node in self.nodes)

    def columns(self, node: Select) -> tuple[tuple[str, Any], ...]:
        """What it makes here: also the whole row, where somebody reads the late rows of the operator that chose its columns."""
        whole = node.chosen and any(operator.parent is node and self.wants_late(operator) for operator in self.operators)
        return (*node.columns, (WHOLE, Rest(()))) if whole else node.columns

    def reads_input(self, operator: Keyed) -> bool:
        """Whether its rows come straight from the input, so that they can be late."""
        return _is_input(operator.parent)


def _is_input(node: Node) -> bool:
    match node:
        case Input():
            return True
        case Keyed() | Side():
            return False
        case _:
            return all(map(_is_input, parents(node)))


def output_of(node: Node) -> tuple[str, str] | None:
    """Operator and output, of what an operator gives out."""
    match node:
        case Keyed(name=name):
            return name, MAIN
        case Side(parent=parent, output=output):
            return parent.name, output
        case _:
            return None


def sources_of(node: Node) -> Iterator[Keyed]:
    """The operators that give changes from which the rows come, through steps without state."""
    match node:
        case Keyed(traits=traits) if traits.gives_changes:
            yield node
        case Keyed(parent=parent, traits=traits) if traits.passes_changes:
            yield from sources_of(parent)
        case Transform() | Select() | Extend() | Union():
            for parent in parents(node):
                yield from sources_of(parent)


def some_of(node: Node) -> tuple[tuple[str, str] | None, tuple[Comparison, ...]]:
    """The operator and output that a step filters, and its conditions, which tasks can check."""
    if isinstance(node, Extend) and not node.columns and (condition := comparison(node.where)) is not None:
        named, conditions = some_of(node.parent)
        return named, (*conditions, condition)
    return output_of(node), ()


def parents(node: Node) -> tuple[Node, ...]:
    match node:
        case Input():
            return ()
        case Keyed(parent=parent, broadcast=broadcast):
            return (parent,) if broadcast is None else (parent, broadcast)
        case Union(members=members):
            return members
        case _:
            return (node.parent,)
