"""Several aggregates of the same rows, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.operators.aggregate import TIME, Aggregate
from floodplain.operators.groups import Groups

Partials: TypeAlias = list[pa.Array]
"""The partials of all aggregates, side by side; one row per group."""


@dataclass(frozen=True)
class Aggregation:
    """Aggregates whose arguments name columns; what they give is known once they are fitted to rows."""

    named: Mapping[str, Aggregate]
    types: Mapping[str, tuple[pa.DataType, ...]] | None = None

    def fitted(self, rows: pa.Schema, event_time: str | None) -> "Aggregation":
        """With the types of the columns, and the event time's own name. Raises errors that name the aggregate."""
        if not self.named:
            raise BadInput("nothing is aggregated: say what, as in agg(n=fp.count())")
        resolved, types = {}, {}
        for name, aggregate in self.named.items():
            resolved[name] = _timed(name, aggregate, event_time)
            types[name] = _types(name, resolved[name], rows)
            try:
                resolved[name].output(types[name])
            except SchemaMismatch as error:
                raise SchemaMismatch(f"aggregate {name}: {error}") from error
        return replace(self, named=resolved, types=types)

    @property
    def output(self) -> list[pa.Field]:
        """One column per aggregate."""
        return [pa.field(name, aggregate.output(self._types(name))) for name, aggregate in self.named.items()]

    @property
    def partial(self) -> list[pa.Field]:
        """The columns of the partials."""
        found = []
        for name, aggregate in self.named.items():
            types = aggregate.partial(self._types(name))
            found += [pa.field(name if len(types) == 1 else f"{name}_{i}", type_) for i, type_ in enumerate(types)]
        return found

    def of(self, column: Callable[[str], pa.Array], groups: Groups) -> Partials:
        """Partials of rows that stand group by group."""
        columns: dict[str, pa.Array] = {}
        partials: Partials = []
        for aggregate in self.named.values():
            for name in (*aggregate.arguments, *filter(None, [aggregate.where])):
                if name not in columns:
                    columns[name] = column(name)
            given = [columns[name] for name in aggregate.arguments]
            if aggregate.where is not None:
                holds = pc.fill_null(columns[aggregate.where], False)
                given = [pc.if_else(holds, each, pa.scalar(None, each.type)) for each in given or [holds]]
            partials += aggregate.of(given, groups)
        return self._cast(partials)

    def combine(self, partials: Partials, groups: Groups) -> Partials:
        """One row of partials per group."""
        if len(groups) == groups.rows:
            return partials
        found: Partials = []
        for aggregate, parts in self._split(partials):
            found += aggregate.combine(parts, groups)
        return self._cast(found)

    def results(self, partials: Partials) -> dict[str, pa.Array]:
        return {name: aggregate.result(parts) for name, (aggregate, parts) in zip(self.named, self._split(partials), strict=True)}

    def _types(self, name: str) -> tuple[pa.DataType, ...]:
        assert self.types is not None
        return self.types[name]

    def _split(self, partials: Partials) -> list[tuple[Aggregate, Partials]]:
        found, at = [], 0
        for name, aggregate in self.named.items():
            width = len(aggregate.partial(self._types(name)))
            found.append((aggregate, partials[at : at + width]))
            at += width
        return found

    def _cast(self, partials: Partials) -> Partials:
        fields = self.partial
        return [part if part.type == field.type else part.cast(field.type) for part, field in zip(partials, fields, strict=True)]


def _timed(name: str, aggregate: Aggregate, event_time: str | None) -> Aggregate:
    if TIME not in aggregate.arguments:
        return aggregate
    if event_time is None:
        raise BadInput(f"aggregate {name} goes by event time, and the rows have none: say with by= what orders them")
    return aggregate.with_arguments([event_time if each == TIME else each for each in aggregate.arguments], aggregate.where)


def _types(name: str, aggregate: Aggregate, rows: pa.Schema) -> tuple[pa.DataType, ...]:
    wanted: Sequence[str] = [*aggregate.arguments, *filter(None, [aggregate.where])]
    for column in wanted:
        if column not in rows.names:
            raise BadInput(f"aggregate {name}: there is no column {column}; there are: {', '.join(rows.names)}")
    if aggregate.where is not None and not pa.types.is_boolean(rows.field(aggregate.where).type):
        raise SchemaMismatch(f"aggregate {name}: where must be true or false, not {rows.field(aggregate.where).type}")
    return tuple(rows.field(column).type for column in aggregate.arguments)
