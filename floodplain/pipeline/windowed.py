"""Windows and aggregates on streams: expressions become columns before the operator, and nothing else is exchanged.

But for late rows: where they are read, rows travel whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from floodplain.errors import BadInput
from floodplain.eventtime.windows import Windows
from floodplain.expressions.identifiers import plain_name, quoted
from floodplain.operators.aggregates.base import TIME, Aggregate
from floodplain.operators.aggregates.running import RunningAggregate
from floodplain.operators.aggregates.running_retractable import RetractableAggregate
from floodplain.operators.changelog.changelog import WEIGHT, Mode
from floodplain.operators.kernel.event_order import InOrder
from floodplain.operators.kernel.reserved_columns import ALL, PREFIX
from floodplain.operators.kernel.traits import Partial, traits_of
from floodplain.operators.windows.aggregate import WindowAggregate
from floodplain.operators.windows.triggers import END, Rules
from floodplain.pipeline.aggregate_arguments import all_named
from floodplain.pipeline.pyspark_methods import GroupedNames, no_attribute
from floodplain.pipeline.pyspark_renames import STREAM, WINDOWED
from floodplain.plan.changelog_checks import check_unweighted, taken
from floodplain.plan.nodes import Extend, Keyed, Node, Select, Transform

if TYPE_CHECKING:
    from floodplain.pipeline.stream import Stream


@dataclass(frozen=True)
class WindowedStream(GroupedNames):
    """A stream with windows, to be aggregated."""

    stream: "Stream"
    windows: Windows
    rules: Rules
    on: str | None = None
    in_order: InOrder | None = None

    def __getattr__(self, name: str) -> Any:
        no_attribute(self, name, WINDOWED, STREAM)

    def agg(self, *unnamed: Any, name: str | None = None, partial: Partial = "auto", **aggregates: Aggregate) -> "Stream":
        """One row per key and window: the keys, ``window_start``, ``window_end`` and these aggregates by name. Those without a
        name are called after what they are, as in ``Stream.agg``.

        ``name`` names the state. ``partial``: Spark puts the rows of a key and pane together before the exchange: always, never,
        or where the epoch before has shown that it pays.
        """
        time = self.on or self.stream.time
        columns = Chosen(self.stream.node, self.stream.keys, time)
        process = WindowAggregate(
            self.windows, columns.named(all_named(unnamed, aggregates)), self.rules, partial, self._of_windows()
        )
        taken(process, name or "windows", self.stream.changes, self.in_order)
        step = Keyed(columns.node, name or "windows", columns.keys, process, event_time=time, in_order=self.in_order)
        return replace(self.stream, node=step, keys=(), changes=traits_of(process).gives_changes)

    def _of_windows(self) -> bool:
        """Whether the times of rows are ends of windows, whatever chose rows and columns since."""
        node, column = self.stream.node, self.on or END
        while isinstance(node, Select | Extend | Transform):
            made = {} if isinstance(node, Transform) else dict(node.columns)
            if column in made or isinstance(node, Select):
                column = plain_name(made.get(column)) or ""
            node = node.parent
        return isinstance(node, Keyed) and node.process.output_time == END == column


def running(
    stream: "Stream",
    name: str,
    mode: Mode,
    partial: Partial,
    in_order: InOrder | None,
    aggregates: Mapping[str, Aggregate],
) -> "Stream":
    columns = Chosen(stream.node, stream.keys, stream.time, stream.changes)
    kind = RetractableAggregate if stream.changes else RunningAggregate
    process = taken(kind(columns.named(aggregates), mode, partial), name, stream.changes, in_order)
    step = Keyed(columns.node, name, columns.keys, process, event_time=stream.time, in_order=in_order)
    return replace(stream, node=step, keys=(), changes=traits_of(process).gives_changes)


class Chosen:
    """The columns that an operator needs of its input: keys, time, and what aggregates are made of."""

    def __init__(self, parent: Node, keys: tuple[str, ...], time: str | None, changes: bool = False) -> None:
        """``changes``: whether the rows are changes, which need their weight."""
        self._parent, self._changes = parent, changes
        self._made: dict[str, Any] = {key: quoted(key) for key in keys} or {ALL: "0"}
        self.keys = keys or (ALL,)
        if time is not None:
            self._made[time] = quoted(time)
        if changes:
            self._made[WEIGHT] = quoted(WEIGHT)
        self._time = time

    @property
    def node(self) -> Select:
        return Select(self._parent, tuple(self._made.items()), chosen=True)

    def named(self, aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
        """The aggregates with columns for their expressions."""
        found = {}
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise BadInput(f"agg({name}={aggregate!r}): give an aggregate, as in agg({name}=fp.count())")
            for expression in (*aggregate.arguments, aggregate.where) if self._changes else ():
                check_unweighted(f"aggregate {name}", expression)
            where = None if aggregate.where is None else self._column(aggregate.where)
            found[name] = aggregate.with_arguments([self._column(each) for each in aggregate.arguments], where)
        return found

    def _column(self, expression: Any) -> str:
        if isinstance(expression, str):
            if expression == TIME:
                return TIME if self._time is None else self._time
            if (column := plain_name(expression)) is not None:
                self._made.setdefault(column, quoted(column))
                return column
        for name, made in self._made.items():
            if made is expression or (isinstance(made, str) and isinstance(expression, str) and made == expression):
                return name
        name = f"{PREFIX}{len(self._made)}"
        self._made[name] = expression
        return name
