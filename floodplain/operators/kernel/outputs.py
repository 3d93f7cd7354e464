"""What users give out, as tables of the columns they declared; what does not fit is named."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain import lossless
from floodplain.errors import BadInput, UserError, short
from floodplain.lossless import UNFIT
from floodplain.operators.kernel.late_rows import LATE
from floodplain.state.value_check import array_of, first_unfit, surely_fits

RowLike: TypeAlias = tuple[Any, ...] | list[Any] | Mapping[str, Any] | pa.Table
"""A row as a user gives it out, as values in the order of the columns or by name; or an Arrow table of rows."""
Whose: TypeAlias = Callable[[int], str]
"""For the number of a row that was given out, in words: in which epoch, for which key."""


class Target:
    """One output of an operator: where rows are to fit."""

    def __init__(self, operator: str, schema: pa.Schema, side: str | None = None) -> None:
        self.schema = schema
        self._names = set(schema.names)
        self._fits = [surely_fits(field.type) for field in schema]
        self._where = f"operator {operator}, " + ("output" if side is None else f"side output {side}")

    def table(self, given: Sequence[Any], whose: Whose | None = None) -> pa.Table:
        """Rows (tuples or dicts) and tables in the order they were given.

        Raises ``UserError`` that names column and value, and what ``whose`` says of the row with this number.
        """
        try:
            return self._table(given)
        except UserError as error:
            if whose is None:
                raise
            at = self._first_unfit(given)
            try:
                self._table(given[at : at + 1])
            except UserError as first:
                raise UserError(f"{first} ({whose(at)})") from error
            raise

    def _first_unfit(self, given: Sequence[Any]) -> int:
        """Requires: one of them does not fit."""
        low, high = 0, len(given)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._table(given[low:middle])
                low = middle
            except UserError:
                high = middle
        return low

    def _table(self, given: Sequence[Any]) -> pa.Table:
        parts: list[pa.Table] = []
        rows: list[Any] = []
        for item in given if _has_tables(given) else ():
            if isinstance(item, pa.Table | pa.RecordBatch):
                parts += [self._rows(rows), self.fit(item)]
                rows = []
            else:
                rows.append(item)
        parts.append(self._rows(rows if parts else given))
        return pa.concat_tables(parts) if len(parts) > 1 else parts[0]

    def check(self, rows: Sequence[Any]) -> None:
        """Raises as ``table`` would; cheap for few rows that fit."""
        fits, width = self._fits, len(self._fits)
        for row in rows:
            if not (isinstance(row, tuple) and len(row) == width and all(map(_apply, fits, row))):
                self.table(rows)
                return

    def fit(self, made: pa.Table | pa.RecordBatch) -> pa.Table:
        """A table's columns by name, cast; what would not survive that is refused."""
        if not isinstance(made, pa.Table | pa.RecordBatch):
            raise UserError(f"{self._where}: {short(made)} is not an Arrow table")
        given = frozenset(made.schema.names)
        missing = [name for name in self.schema.names if name not in given]
        if missing:
            raise UserError(f"{self._where}: column {missing[0]} is missing; there are: {', '.join(made.schema.names)}")
        return pa.Table.from_arrays([self._cast(made, field) for field in self.schema], schema=self.schema)

    def _rows(self, rows: Sequence[Any]) -> pa.Table:
        if not rows:
            return self.schema.empty_table()
        if not all(issubclass(kind, tuple | list) for kind in set(map(type, rows))):
            rows = [row if isinstance(row, tuple | list) else self._from_dict(row) for row in rows]
        columns = self._columns(rows)
        return pa.Table.from_arrays(
            [self._array(values, field) for values, field in zip(columns, self.schema, strict=True)], schema=self.schema
        )

    def _columns(self, rows: Sequence[Any]) -> list[Any]:
        names = self.schema.names
        if set(map(len, rows)) != {len(names)}:
            odd = next(row for row in rows if len(row) != len(names))
            raise UserError(f"{self._where}: row {short(odd)} has {len(odd)} values for the columns {', '.join(names)}")
        return list(zip(*rows, strict=True))

    def _from_dict(self, row: Any) -> tuple[Any, ...]:
        if not isinstance(row, Mapping):
            raise UserError(f"{self._where}: {short(row)} is not a row: give rows as tuples or dicts")
        names = self.schema.names
        unknown = row.keys() - self._names
        if unknown:
            raise UserError(f"{self._where}: there is no column {min(map(str, unknown))}; the columns are {', '.join(names)}")
        missing = [name for name in names if name not in row]
        if missing:
            raise UserError(
                f"{self._where}: row {short(row)} has no {', '.join(missing)}; the columns are {', '.join(names)}: "
                "give all of them, None where there is nothing"
            )
        return tuple(row[name] for name in names)

    def _array(self, values: Any, field: pa.Field) -> pa.Array:
        try:
            return array_of(values, field.type)
        except UNFIT as error:
            found = first_unfit(values, field.type)
            if found is not None:
                raise self._unfit(field, values[found[0]], found[1]) from found[1]
            raise self._unfit(field, values, error) from error

    def _cast(self, made: pa.Table | pa.RecordBatch, field: pa.Field) -> pa.Array | pa.ChunkedArray:
        column = made.column(field.name)
        try:
            return lossless.cast(column, field.type)
        except UNFIT as error:
            if not len(column):
                raise self._unfit(field, column.type, error) from error
            at = lossless.first_unfit(column, field.type)
            row = made.slice(at, 1).to_pylist()[0]
            raise self._unfit(field, row[field.name], error, row) from error

    def _unfit(self, field: pa.Field, value: Any, reason: Exception, row: Any = None) -> UserError:
        """``row``: the one that it stands in, where nothing else tells the key."""
        line = str(reason).partition("\n")[0]
        told = f"{self._where}: {short(value)} does not fit column {field.name} of type {field.type}: {line}"
        return UserError(told if row is None else f"{told} (in row {short(row)})")


class Sides:
    """What is emitted to the side outputs of an operator by one task."""

    def __init__(self, operator: str, schemas: Mapping[str, pa.Schema], *, closely: bool = False) -> None:
        """``closely``: each row is looked at when it is emitted, not only when all are made a table."""
        self._targets = {name: Target(operator, schema, name) for name, schema in schemas.items()}
        self._rows: dict[str, list[Any]] = {name: [] for name in schemas if name != LATE}
        self._numbers: dict[str, list[int]] = {name: [] for name in self._rows}
        """Of each row, the number of the key at hand."""
        self._closely = closely

    def emit(self, side: str, rows: Any, number: int = 0) -> None:
        """``number``: that of the key at hand."""
        found = self._rows.get(side)
        if found is None:
            declared = ", ".join(self._rows) or "none"
            raise BadInput(f"there is no side output {side!r} to emit to; declared in side_outputs: {declared}")
        if self._closely:
            self._targets[side].check([rows])
        found.append(rows)
        self._numbers[side].append(number)

    def mark(self) -> list[int]:
        """How much was emitted so far, to be given to ``rollback``."""
        return [len(rows) for rows in self._rows.values()]

    def rollback(self, marked: Sequence[int]) -> None:
        for rows, numbers, length in zip(self._rows.values(), self._numbers.values(), marked, strict=True):
            del rows[length:], numbers[length:]

    def tables(self, late: pa.Table, whose: Whose | None = None) -> dict[str, pa.Table]:
        """All side outputs that are declared; ``late`` are the rows that came too late. ``whose``: of the key with a number."""
        return {
            name: target.fit(late) if name == LATE else self._emitted(name, target, whose)
            for name, target in self._targets.items()
        }

    def _emitted(self, name: str, target: Target, whose: Whose | None) -> pa.Table:
        numbers = self._numbers[name]
        return target.table(self._rows[name], None if whose is None else lambda at: whose(numbers[at]))


def _apply(fits: Callable[[Any], bool], value: Any) -> bool:
    return fits(value)


def _has_tables(given: Sequence[Any]) -> bool:
    return any(issubclass(kind, pa.Table | pa.RecordBatch) for kind in set(map(type, given)))
