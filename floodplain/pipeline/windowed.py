"""Windowed and running aggregates on streams.

Arguments of aggregates are computed upstream of the operator, and only the columns that it needs are shuffled. If late rows
are read, all columns are.
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
    """A stream divided into windows; ``agg`` aggregates them."""

    stream: "Stream"
    windows: Windows
    rules: Rules
    on: str | None = None
    in_order: InOrder | None = None

    def __getattr__(self, name: str) -> Any:
        no_attribute(self, name, WINDOWED, STREAM)

    def agg(self, *unnamed: Any, name: str | None = None, partial: Partial = "auto", **aggregates: Aggregate) -> "Stream":
        """One row per key and window: the keys, ``window_start``, ``window_end`` and these aggregates by name. Aggregates without
        a name get a default one, as in ``Stream.agg``.

        ``name`` names the state. ``partial``: whether rows are pre-aggregated by key and pane before the shuffle: always, never,
        or if the last epoch has shown that it pays.
        """
        time = self.on or self.stream.time
        columns = InputColumns(self.stream.node, self.stream.keys, time)
        process = WindowAggregate(
            self.windows, columns.with_columns(all_named(unnamed, aggregates)), self.rules, partial, self._on_window_ends()
        )
        taken(process, name or "windows", self.stream.changes, self.in_order)
        step = Keyed(columns.node, name or "windows", columns.keys, process, event_time=time, in_order=self.in_order)
        return replace(self.stream, node=step, keys=(), changes=traits_of(process).gives_changes)

    def _on_window_ends(self) -> bool:
        """Whether the event times of rows are window ends of an operator upstream, with only stateless steps between."""
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
    """Aggregates over all rows of each key so far; see ``Stream.agg``."""
    columns = InputColumns(stream.node, stream.keys, stream.time, stream.changes)
    kind = RetractableAggregate if stream.changes else RunningAggregate
    process = taken(kind(columns.with_columns(aggregates), mode, partial), name, stream.changes, in_order)
    step = Keyed(columns.node, name, columns.keys, process, event_time=stream.time, in_order=in_order)
    return replace(stream, node=step, keys=(), changes=traits_of(process).gives_changes)


class InputColumns:
    """The columns that an operator needs of its input: keys, event time, and the arguments of aggregates."""

    def __init__(self, parent: Node, keys: tuple[str, ...], time: str | None, changes: bool = False) -> None:
        """``changes``: whether the input is a changelog, whose ``weight`` is needed, too."""
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

    def with_columns(self, aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
        """The aggregates with their expressions replaced by columns of ``node``."""
        bound = {}
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise BadInput(f"agg({name}={aggregate!r}): this is no aggregate: pass one, as in agg({name}=fp.count())")
            for expression in (*aggregate.arguments, aggregate.where) if self._changes else ():
                check_unweighted(f"aggregate {name}", expression)
            where = None if aggregate.where is None else self._column(aggregate.where)
            bound[name] = aggregate.with_arguments([self._column(each) for each in aggregate.arguments], where)
        return bound

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
