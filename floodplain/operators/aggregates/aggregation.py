"""Several aggregates of the same rows, by name."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, FloodplainError, SchemaMismatch, UserError, short
from floodplain.operators.aggregates.base import TIME, Aggregate
from floodplain.operators.aggregates.distinct import MOST, CountDistinct, fuse_counts
from floodplain.operators.aggregates.scalar import ExtremeBy
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.segments import Groups, TooLarge, at, groups_are, groups_of

Partials: TypeAlias = list[pa.Array]
"""The partial columns of all aggregates; one row per group."""
T = TypeVar("T")


@dataclass(frozen=True)
class FusedAggregate:
    """Aggregates that share one computation; most are alone."""

    names: tuple[str, ...]
    aggregate: Aggregate
    types: tuple[pa.DataType, ...]
    """Of the arguments."""

    @property
    def partial(self) -> list[tuple[str, pa.DataType]]:
        types = self.aggregate.partial(self.types)
        if len(types) == 1:
            return [(self.names[0], types[0])]
        if isinstance(self.aggregate, CountDistinct):
            return list(zip(self._of_counts(self.aggregate), types, strict=True))
        further = range(1, len(types) - len(self.names) + 1)
        columns = [*(f"{name}_0" for name in self.names), *(f"{self.names[0]}_{i}" for i in further)]
        return list(zip(columns, types, strict=True))

    def _of_counts(self, counts: CountDistinct) -> list[str]:
        """Each count has a column of its own name, so that counts can be added and dropped: its marks, or the values if it has no
        condition."""
        marks = [name for name, conditional in zip(self.names, counts.conditional, strict=True) if conditional]
        return [*marks, next((name for name in self.names if name not in marks), f"{self.names[0]}_0")]

    def kept_of(self, columns: list[str]) -> Iterator[tuple[str, list[str]]]:
        """Each of its aggregates with the partial columns that it reads."""
        if isinstance(self.aggregate, CountDistinct):
            yield from ((name, columns) for name in self.names)
        else:
            common = columns[len(self.names) :]
            yield from ((name, [column, *common]) for name, column in zip(self.names, columns, strict=False))

    @contextmanager
    def attributed(self) -> Iterator[None]:
        """Errors raised within name this aggregate."""
        try:
            with groups_are(None, f"aggregate {self.names[0]}: "):
                yield
        except Exception as error:
            if isinstance(error, FloodplainError) or not is_users_fault(error):
                raise
            message = short(str(error), 1000, quoted=False)
            raise UserError(f"{type(error).__name__} in aggregate {self.names[0]}: {message}") from error

    def checked(self, partials: Partials, groups: Groups) -> Partials:
        """The result of ``of`` or ``combine``. Raises unless it has one value of each partial for each group."""
        lengths = [len(column) for column in partials]
        wanted = [len(groups)] * len(self.partial)
        if lengths != wanted:
            kind = type(self.aggregate).__name__
            raise BadInput(f"aggregate {self.names[0]}: {kind} gave columns of {lengths} partials, not of {wanted}")
        return partials

    def results(self, partials: Partials) -> list[pa.Array]:
        """One column for each of its aggregates."""
        if isinstance(self.aggregate, CountDistinct):
            return self.aggregate.results(partials)
        common = partials[len(self.names) :]
        return [self.aggregate.result([partials[i], *common]) for i in range(len(self.names))]


@dataclass(frozen=True)
class Aggregation:
    """Named aggregates over the same rows; their types are known once they are bound to a schema.

    Several ``max_by`` (or ``last``; ``min_by``, ``first``) with the same ``by``, ``where`` and ``since`` take their values from
    one row. Distinct counts of the same columns share one set of values.
    """

    named: Mapping[str, Aggregate]
    types: Mapping[str, tuple[pa.DataType, ...]] | None = None

    def bind(self, rows: pa.Schema, event_time: str | None) -> "Aggregation":
        """Binds the aggregates to a schema and an event-time column. Raises errors that name the aggregate."""
        if not self.named:
            raise BadInput("there are no aggregates: add one, as in agg(n=fp.count())")
        resolved, types = {}, {}
        for name, aggregate in self.named.items():
            resolved[name] = _timed(name, aggregate, event_time)
            types[name] = _types(name, resolved[name], rows)
            _check_kind(name, aggregate, types[name])
        return replace(self, named=resolved, types=types)

    @property
    def output(self) -> list[pa.Field]:
        """One column per aggregate."""
        return [pa.field(name, aggregate.output(self._types(name))) for name, aggregate in self.named.items()]

    @property
    def partial(self) -> list[pa.Field]:
        """The columns of the partials."""
        types: dict[str, pa.DataType] = {}
        for part in self.parts:
            for name, type_ in part.partial:
                while name in types:
                    name += "_2"
                types[name] = type_
        return [pa.field(name, type_) for name, type_ in types.items()]

    @property
    def kept(self) -> dict[str, list[str]]:
        """Aggregate → the partial columns that it reads."""
        split = self.split([field.name for field in self.partial])
        return {name: kept for part, columns in split for name, kept in part.kept_of(columns)}

    @cached_property
    def parts(self) -> list[FusedAggregate]:
        """The computations, in the order of their first names."""
        alike: dict[object, list[str]] = {}
        counts = self._counts()
        for name, aggregate in self.named.items():
            shared: object = name
            if type(aggregate) is ExtremeBy:
                shared = (aggregate.greatest, aggregate.arguments[-1], aggregate.where, aggregate.since)
            elif type(aggregate) is CountDistinct:
                shared = counts[name]
            alike.setdefault(shared, []).append(name)
        return [self._fuse(tuple(names)) for names in alike.values()]

    def _counts(self) -> dict[str, object]:
        """Distinct count → the group of counts that share its values. Two without a condition are never in one group, so that
        each has its own state."""
        shared: dict[str, object] = {}
        before, unconditional = Counter[object](), set[object]()
        for name, count in self.named.items():
            if type(count) is not CountDistinct:
                continue
            alike = (count.arguments, count.since)
            alone = count.where is None and alike in unconditional
            boolean = pa.types.is_boolean(self._types(name)[0])  # its values could be mistaken for marks
            shared[name] = name if alone or boolean else (*alike, before[alike] // MOST)
            before[alike] += 1
            unconditional |= {alike} if count.where is None else set()
        return shared

    def _fuse(self, names: tuple[str, ...]) -> FusedAggregate:
        """One computation for these aggregates."""
        aggregates, types = [self.named[name] for name in names], [self._types(name) for name in names]
        if len(names) == 1:
            return FusedAggregate(names, aggregates[0], types[0])
        if isinstance(aggregates[0], ExtremeBy):
            by, values = aggregates[0].arguments[-1], [value for each in aggregates for value in each.arguments[:-1]]
            one = aggregates[0].with_arguments([*values, by], aggregates[0].where)
            return FusedAggregate(names, one, (*(type_ for each in types for type_ in each[:-1]), types[0][-1]))
        counts = fuse_counts(aggregates)
        return FusedAggregate(names, counts, (*types[0], *[pa.bool_()] * counts.conditions))

    def of(self, column: Callable[[str], pa.Array], groups: Groups) -> Partials:
        """Partials of rows that are sorted by group."""
        columns: dict[str, pa.Array] = {}
        partials: Partials = []
        for part in self.parts:
            aggregate = part.aggregate
            for name in (*aggregate.arguments, *filter(None, [aggregate.where])):
                if name not in columns:
                    columns[name] = column(name)
            arguments = [columns[name] for name in aggregate.arguments]
            if aggregate.where is not None:
                holds = pc.fill_null(columns[aggregate.where], False)
                arguments = [pc.if_else(holds, each, pa.scalar(None, each.type)) for each in arguments or [holds]]
            with part.attributed():
                partials += part.checked(aggregate.of(arguments, groups), groups)
        return self._cast(partials)

    def combine(self, partials: Partials, groups: Groups) -> Partials:
        """One row of partials per group."""
        if len(groups) == groups.rows:
            return partials
        combined: Partials = []
        for part, some in self.split(partials):
            with part.attributed():
                combined += part.checked(part.aggregate.combine(some, groups), groups)
        return self._cast(combined)

    def merged(self, parts: Sequence[tuple[np.ndarray, Partials]], count: int) -> Partials:
        """One row of partials for each group ``0 .. count - 1``, merged in the order of the parts. Requires: none is empty."""
        owner = np.concatenate([of for of, _ in parts])
        order = pa.array(np.argsort(owner, kind="stable")) if (owner[1:] < owner[:-1]).any() else None
        groups = groups_of(owner if order is None else owner[order.to_numpy()])
        combined: Partials = []
        for part, columns in self.split(list(zip(*(partials for _, partials in parts), strict=True))):
            if type(part.aggregate) is CountDistinct and len(groups) < len(owner):
                # Its lists are long and may be in any order: sorting would copy them.
                owned = [(of, [column[i] for column in columns]) for i, (of, _) in enumerate(parts)]
                combined += part.aggregate.merged(owned, count)
                continue
            ordered = [pa.concat_arrays(column) if order is None else pa.concat_arrays(column).take(order) for column in columns]
            with part.attributed():
                alone = len(groups) == len(owner)
                combined += ordered if alone else part.checked(part.aggregate.combine(ordered, groups), groups)
        return self._cast(combined)

    def results(self, partials: Partials) -> dict[str, pa.Array]:
        columns: dict[str, pa.Array] = {}
        for part, some in self.split(partials):
            try:
                columns |= zip(part.names, part.results(some), strict=True)
            except TooLarge as error:
                raise BadInput(f"aggregate {part.names[0]}: {error}") from None
        return {field.name: _as_type(columns[field.name], field.type) for field in self.output}

    def _types(self, name: str) -> tuple[pa.DataType, ...]:
        assert self.types is not None
        return self.types[name]

    def split(self, partials: list[T]) -> list[tuple[FusedAggregate, list[T]]]:
        """The partial columns of each computation."""
        split, at = [], 0
        for part in self.parts:
            width = len(part.partial)
            split.append((part, partials[at : at + width]))
            at += width
        return split

    def _cast(self, partials: Partials) -> Partials:
        fields = self.partial
        return [part if part.type == field.type else part.cast(field.type) for part, field in zip(partials, fields, strict=True)]


def _as_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Casts decimals to the declared type: an average of partials does not know the precision of its rows."""
    return column.cast(type_) if pa.types.is_decimal(column.type) and column.type != type_ else column


def _check_kind(name: str, aggregate: Aggregate, types: tuple[pa.DataType, ...]) -> None:
    """Raises unless it can aggregate arguments of these types, as far as that is known without rows."""
    kind = type(aggregate)
    for method in ("output", "partial", "of", "combine"):
        if getattr(kind, method) is getattr(Aggregate, method):
            raise BadInput(f"aggregate {name}: {kind.__name__} does not define {method}, as an fp.Aggregate must")
    try:
        aggregate.output(types)
        aggregate.partial(types)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"aggregate {name}: {error}") from error
    except Exception as error:
        arguments = ", ".join(map(str, types)) or "no arguments"
        raise BadInput(f"aggregate {name}: {kind.__name__} has no output type for {arguments}: {error!r}") from error


def _timed(name: str, aggregate: Aggregate, event_time: str | None) -> Aggregate:
    if TIME not in aggregate.arguments:
        return aggregate
    if event_time is None:
        raise BadInput(f"aggregate {name} needs event time, and the rows have none: set by= to the column that orders them")
    return aggregate.with_arguments([event_time if each == TIME else each for each in aggregate.arguments], aggregate.where)


def _types(name: str, aggregate: Aggregate, rows: pa.Schema) -> tuple[pa.DataType, ...]:
    wanted: Sequence[str] = [*aggregate.arguments, *filter(None, [aggregate.where])]
    for column in wanted:
        if not rows.get_all_field_indices(column):
            raise BadInput(f"aggregate {name}: there is no column {column}; there are: {', '.join(rows.names)}")
    if aggregate.where is not None and not pa.types.is_boolean(rows.field(aggregate.where).type):
        raise SchemaMismatch(f"aggregate {name}: where must be true or false, not {rows.field(aggregate.where).type}")
    return tuple(rows.field(column).type for column in aggregate.arguments)


def merged(aggregation: Aggregation, key_of: np.ndarray, parts: list[tuple[np.ndarray, Partials]]) -> Partials:
    """Partials of groups, merged in the order of the parts; null for a group without any.

    ``key_of``: the key of each group. ``parts``: the group of each row, and the partials.
    """
    count, parts = len(key_of), [part for part in parts if len(part[0])]
    if not parts:
        return [pa.nulls(count, field.type) for field in aggregation.partial]
    there = np.zeros(count, bool)
    for owner, _ in parts:
        there[owner] = True
    with groups_are(key_of[there]):
        if there.all():
            return aggregation.merged(parts, count)
        number, place = np.cumsum(there) - 1, np.where(there, np.cumsum(there) - 1, -1)
        numbered = [(number[owner], partials) for owner, partials in parts]
        return [at(column, place) for column in aggregation.merged(numbered, int(there.sum()))]
