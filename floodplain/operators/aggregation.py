"""Several aggregates of the same rows, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.operators.aggregate import TIME, Aggregate
from floodplain.operators.groups import Groups
from floodplain.operators.reducing import ExtremeBy

Partials: TypeAlias = list[pa.Array]
"""The partials of all aggregates, side by side; one row per group."""
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Aggregates that are computed as one; mostly it is one. The i-th has its result in the partials from the i-th on."""

    names: tuple[str, ...]
    aggregate: Aggregate
    types: tuple[pa.DataType, ...]
    """Of the arguments."""

    @property
    def partial(self) -> list[tuple[str, pa.DataType]]:
        types = self.aggregate.partial(self.types)
        if len(types) == 1:
            return [(self.names[0], types[0])]
        further = range(1, len(types) - len(self.names) + 1)
        columns = [*(f"{name}_0" for name in self.names), *(f"{self.names[0]}_{i}" for i in further)]
        return list(zip(columns, types, strict=True))


@dataclass(frozen=True)
class Aggregation:
    """Aggregates whose arguments name columns; what they give is known once they are fitted to rows.

    The values that several ``max_by`` (or ``last``; ``min_by``, ``first``) give are those of one row, if they have ``by`` and
    ``where`` in common.
    """

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
        found: dict[str, pa.DataType] = {}
        for part in self.parts:
            for name, type_ in part.partial:
                while name in found:
                    name += "_2"
                found[name] = type_
        return [pa.field(name, type_) for name, type_ in found.items()]

    @cached_property
    def parts(self) -> list[Part]:
        """What is computed, each at the place of the first of its names."""
        found: dict[object, Part] = {}
        for name, aggregate in self.named.items():
            part = Part((name,), aggregate, self._types(name))
            row = (aggregate.greatest, aggregate.arguments[-1], aggregate.where) if type(aggregate) is ExtremeBy else name
            found[row] = _of_one_row(found[row], part) if row in found else part
        return list(found.values())

    def of(self, column: Callable[[str], pa.Array], groups: Groups) -> Partials:
        """Partials of rows that stand group by group."""
        columns: dict[str, pa.Array] = {}
        partials: Partials = []
        for aggregate in (part.aggregate for part in self.parts):
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
        for part, some in self.split(partials):
            found += part.aggregate.combine(some, groups)
        return self._cast(found)

    def results(self, partials: Partials) -> dict[str, pa.Array]:
        found = {
            name: part.aggregate.result(some[i:]) for part, some in self.split(partials) for i, name in enumerate(part.names)
        }
        return {name: found[name] for name in self.named}

    def _types(self, name: str) -> tuple[pa.DataType, ...]:
        assert self.types is not None
        return self.types[name]

    def split(self, partials: list[T]) -> list[tuple[Part, list[T]]]:
        """What there is of each partial, part by part."""
        found, at = [], 0
        for part in self.parts:
            width = len(part.partial)
            found.append((part, partials[at : at + width]))
            at += width
        return found

    def _cast(self, partials: Partials) -> Partials:
        fields = self.partial
        return [part if part.type == field.type else part.cast(field.type) for part, field in zip(partials, fields, strict=True)]


def _of_one_row(part: Part, other: Part) -> Part:
    *values, by = part.aggregate.arguments
    value, _ = other.aggregate.arguments
    aggregate = part.aggregate.with_arguments([*values, value, by], part.aggregate.where)
    return Part(part.names + other.names, aggregate, (*part.types[:-1], other.types[0], part.types[-1]))


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
