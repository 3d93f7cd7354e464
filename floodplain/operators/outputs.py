"""What users give out, as tables of the columns they declared; what does not fit is named."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodplain.errors import UserError, short

LATE = "late"
"""The side output that late rows come out of, if it is declared."""
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Target:
    """One output of an operator: where rows are to fit."""

    def __init__(self, operator: str, schema: pa.Schema, side: str | None = None) -> None:
        self.schema = schema
        self._where = f"operator {operator}, " + ("output" if side is None else f"side output {side}")

    def table(self, given: Sequence[Any]) -> pa.Table:
        """Rows (tuples or dicts) and tables in the order they were given. Raises ``UserError`` that names column and value."""
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

    def fit(self, made: pa.Table | pa.RecordBatch) -> pa.Table:
        """A table's columns by name, cast."""
        if not isinstance(made, pa.Table | pa.RecordBatch):
            raise UserError(f"{self._where}: {short(made)} is not an Arrow table")
        missing = [name for name in self.schema.names if name not in made.schema.names]
        if missing:
            raise UserError(f"{self._where}: column {missing[0]} is missing; there are: {', '.join(made.schema.names)}")
        return pa.Table.from_arrays([self._cast(made.column(field.name), field) for field in self.schema], schema=self.schema)

    def _rows(self, rows: Sequence[Any]) -> pa.Table:
        if not rows:
            return self.schema.empty_table()
        kinds = set(map(type, rows))
        if all(issubclass(kind, tuple | list) for kind in kinds):
            columns: Iterable[Any] = self._columns(rows)
        elif all(issubclass(kind, Mapping) for kind in kinds):
            self._check_names(rows)
            columns = ([row.get(name) for row in rows] for name in self.schema.names)
        else:
            odd = next(row for row in rows if not isinstance(row, tuple | list | Mapping) or type(row) is not type(rows[0]))
            raise UserError(f"{self._where}: {short(odd)} is not a row: give all rows as tuples, or all as dicts")
        return pa.Table.from_arrays(
            [self._array(values, field) for values, field in zip(columns, self.schema, strict=True)], schema=self.schema
        )

    def _columns(self, rows: Sequence[Any]) -> list[Any]:
        names = self.schema.names
        if set(map(len, rows)) != {len(names)}:
            odd = next(row for row in rows if len(row) != len(names))
            raise UserError(f"{self._where}: row {short(odd)} has {len(odd)} values for the columns {', '.join(names)}")
        return list(zip(*rows, strict=True))

    def _check_names(self, rows: Sequence[Any]) -> None:
        known = set(self.schema.names)
        for row in rows:
            unknown = row.keys() - known
            if unknown:
                raise UserError(
                    f"{self._where}: there is no column {min(map(str, unknown))}; the columns are {', '.join(self.schema.names)}"
                )

    def _array(self, values: Any, field: pa.Field) -> pa.Array:
        try:
            return pa.array(list(values), field.type)
        except UNFIT as error:
            for value in values:
                try:
                    pa.array([value], field.type)
                except UNFIT as reason:
                    raise self._unfit(field, value, reason) from reason
            raise self._unfit(field, values, error) from error

    def _cast(self, column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
        try:
            return column.cast(field.type)
        except UNFIT as error:
            for value in column:
                try:
                    value.cast(field.type)
                except UNFIT as reason:
                    raise self._unfit(field, value.as_py(), reason) from reason
            raise self._unfit(field, column.type, error) from error

    def _unfit(self, field: pa.Field, value: Any, reason: Exception) -> UserError:
        line = str(reason).partition("\n")[0]
        return UserError(f"{self._where}: {short(value)} does not fit column {field.name} of type {field.type}: {line}")


def _has_tables(given: Sequence[Any]) -> bool:
    return any(issubclass(kind, pa.Table | pa.RecordBatch) for kind in set(map(type, given)))
