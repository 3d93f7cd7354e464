"""The Row flavour of ``transformWithState``: rows go in as an iterator of ``Row`` and come out as ``Row``."""

from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkAttributeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import Row, StructType

from floodplain.errors import short
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.spark.transform_with_state.chunks import most_rows
from floodplain.spark.transform_with_state.initial_state import INITIAL
from floodplain.state.pythonic import to_python
from floodplain.store.rows.layout import one_array

TIME_ZONE = "spark.sql.session.timeZone"


class RowFlavour:
    """The rows of a task as Spark's worker hands them out, and what the processor made of them."""

    def __init__(self, process: Any, grouped: Grouped) -> None:
        self._grouped = grouped
        self._schema: pa.Schema = process.output
        self._names: list[str] = self._schema.names
        self._nested = any(pa.types.is_nested(type_) for type_ in self._schema.types)
        self._shape = process.shape
        self._zone = process.settings.get(TIME_ZONE, "UTC")
        self._starts = grouped.starts.tolist()
        self._rows = _as_rows(in_zone(grouped.rows.select(self._shape.rows.names), self._shape.rows, self._zone))
        self._states = self._initial_states() if INITIAL in grouped.rows.column_names else None
        self._out: list[tuple[Any, ...]] = []
        self._most = most_rows(process.settings) if self._shape.initial is not None else None

    def groups(self) -> Iterator[tuple[tuple[Any, ...], Sequence[Iterator[Row]]]]:
        """Each key with the rows of each call for it, in the order of the groups' numbers. A key that has only an initial state
        has no calls. Spark cuts rows into several calls only where there is an initial state."""
        starts, rows, states = self._starts, self._rows, self._states
        getters = _getters(len(self._shape.rows))
        parts = [getters[self._shape.rows.names.index(name)].__get__ for name in self._shape.keys]
        for low, high in pairwise(starts):
            group = rows[low:high]
            key = tuple([part(group[0]) for part in parts])
            if states is not None:
                group = [row for row, state in zip(group, states[low:high], strict=True) if state is None]
            yield key, (iter(group),) if self._most is None or 0 < len(group) <= self._most else _cut(group, self._most)

    def initial(self) -> list[list[Row]] | None:
        """For each key the rows of its initial state; None if this is not the epoch for them."""
        states = self._states
        if states is None:
            return None
        return [[state for state in states[low:high] if state is not None] for low, high in pairwise(self._starts)]

    def first(self, number: int) -> tuple[Row, int]:
        """The first row of a key, and how many it has."""
        return self._rows[self._starts[number]], self._starts[number + 1] - self._starts[number]

    def take(self, made: Iterable[Any]) -> None:
        names, append = self._names, self._out.append
        for row in made:
            if not self._nested and getattr(row, "__fields__", None) == names:
                append(row)
            else:
                if not hasattr(row, "asDict"):
                    raise PySparkAttributeError(f"{short(row)} has no attribute asDict: give out rows as pyspark.sql.Row")
                values = row.asDict(True)
                append(tuple(map(values.get, names)))

    def output(self) -> pa.Table:
        if not self._out:
            return self._schema.empty_table()
        columns = zip(*self._out, strict=True)
        arrays = [pa.array(values, type_) for values, type_ in zip(columns, self._schema.types, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _initial_states(self) -> list[Row | None]:
        """For each row the row of the initial state that it carries; None for a row of the input."""
        whole = one_array(self._grouped.rows.column(INITIAL))
        table = pa.Table.from_arrays(whole.flatten(), schema=pa.schema(list(whole.type)))
        rows = _as_rows(in_zone(table, self._shape.initial, self._zone))
        return [row if there else None for row, there in zip(rows, whole.is_valid().to_pylist(), strict=True)]


def _cut(group: list[Row], most: int) -> list[Iterator[Row]]:
    return [iter(group[start : start + most]) for start in range(0, len(group), most)]


def in_zone(rows: pa.Table, schema: StructType, zone: str) -> pa.Table:
    """With times in the session's zone, as they come from the JVM."""
    return rows if zone == "UTC" else rows.cast(to_arrow_schema(schema, timezone=zone))


def _as_rows(table: pa.Table) -> list[Row]:
    make = partial(tuple.__new__, _row_type(tuple(table.column_names)))
    return list(map(make, zip(*map(to_python, table.columns), strict=True)))


def _row_type(names: tuple[str, ...]) -> Any:
    """A ``Row`` whose class has its fields: several times faster to make and read. It pickles as a plain ``Row``."""
    getters = _getters(len(names))
    members: dict[str, Any] = {name: getter for name, getter in zip(names, getters, strict=True) if not hasattr(Row, name)}
    return type("Row", (Row,), {**members, "__slots__": (), "__fields__": names, "__module__": Row.__module__})


def _getters(count: int) -> list[Any]:
    """Descriptors that read an item of a tuple by its position, without the Python code of ``Row``."""
    names = [f"at{position}" for position in range(count)]
    fields: Any = namedtuple("Fields", names)  # type: ignore[misc]
    return [vars(fields)[name] for name in names]
