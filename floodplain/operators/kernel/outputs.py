"""Converts rows that user code emits to Arrow tables of the declared schema; errors name column and value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain import lossless
from floodplain.errors import BadInput, UserError, short
from floodplain.lossless import UNFIT
from floodplain.operators.kernel.late_rows import LATE
from floodplain.state.value_check import array_of, first_unfit, quick_check

RowLike: TypeAlias = tuple[Any, ...] | list[Any] | Mapping[str, Any] | pa.Table
"""An emitted row, as values in the order of the columns or by name; or an Arrow table of rows."""
RowOrigin: TypeAlias = Callable[[int], str]
"""The number of an emitted row → text for an error message: its epoch and key."""


class OutputConverter:
    """Converts emitted rows to the schema of one output of an operator."""

    def __init__(self, operator: str, schema: pa.Schema, side: str | None = None) -> None:
        self.schema = schema
        self._names = set(schema.names)
        self._fits = [quick_check(field.type) for field in schema]
        self._where = f"operator {operator}, " + ("output" if side is None else f"side output {side}")

    def table(self, emitted: Sequence[Any], origin: RowOrigin | None = None) -> pa.Table:
        """Emitted rows (tuples or dicts) and tables, in their order, as one table.

        Raises ``UserError`` that names column, value and the origin of the row.
        """
        try:
            return self._table(emitted)
        except UserError as error:
            if origin is None:
                raise
            at = self._first_invalid(emitted)
            try:
                self._table(emitted[at : at + 1])
            except UserError as first:
                raise UserError(f"{first} ({origin(at)})") from error
            raise

    def _first_invalid(self, emitted: Sequence[Any]) -> int:
        """By binary search. Requires: one row does not match the schema."""
        low, high = 0, len(emitted)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._table(emitted[low:middle])
                low = middle
            except UserError:
                high = middle
        return low

    def _table(self, emitted: Sequence[Any]) -> pa.Table:
        parts: list[pa.Table] = []
        rows: list[Any] = []
        for item in emitted if _has_tables(emitted) else ():
            if isinstance(item, pa.Table | pa.RecordBatch):
                parts += [self._rows(rows), self.conform(item)]
                rows = []
            else:
                rows.append(item)
        parts.append(self._rows(rows if parts else emitted))
        return pa.concat_tables(parts) if len(parts) > 1 else parts[0]

    def check(self, rows: Sequence[Any]) -> None:
        """Raises as ``table`` does; cheap for a few valid rows."""
        fits, width = self._fits, len(self._fits)
        for row in rows:
            if not (isinstance(row, tuple) and len(row) == width and all(map(_apply, fits, row))):
                self.table(rows)
                return

    def conform(self, made: pa.Table | pa.RecordBatch) -> pa.Table:
        """The declared columns of a table, selected by name and cast. Raises ``UserError`` if a cast would be lossy."""
        if not isinstance(made, pa.Table | pa.RecordBatch):
            raise UserError(f"{self._where}: {short(made)} is not an Arrow table")
        present = frozenset(made.schema.names)
        missing = [name for name in self.schema.names if name not in present]
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
            raise UserError(f"{self._where}: {short(row)} is not a row: emit tuples or dicts")
        names = self.schema.names
        unknown = row.keys() - self._names
        if unknown:
            raise UserError(f"{self._where}: there is no column {min(map(str, unknown))}; the columns are {', '.join(names)}")
        missing = [name for name in names if name not in row]
        if missing:
            raise UserError(
                f"{self._where}: row {short(row)} has no {', '.join(missing)}; the columns are {', '.join(names)}: "
                "set all of them, to None where there is no value"
            )
        return tuple(row[name] for name in names)

    def _array(self, values: Any, field: pa.Field) -> pa.Array:
        try:
            return array_of(values, field.type)
        except UNFIT as error:
            if (unfit := first_unfit(values, field.type)) is not None:
                raise self._unfit(field, values[unfit[0]], unfit[1]) from unfit[1]
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
        """``row``: the row of the value, where no origin names the key."""
        line = str(reason).partition("\n")[0]
        message = f"{self._where}: {short(value)} does not fit column {field.name} of type {field.type}: {line}"
        return UserError(message if row is None else f"{message} (in row {short(row)})")


class SideOutputs:
    """The rows that one task emits to the side outputs of an operator."""

    def __init__(self, operator: str, schemas: Mapping[str, pa.Schema], *, check_each: bool = False) -> None:
        """``check_each``: each row is checked when it is emitted, not only when all are converted."""
        self._targets = {name: OutputConverter(operator, schema, name) for name, schema in schemas.items()}
        self._rows: dict[str, list[Any]] = {name: [] for name in schemas if name != LATE}
        self._numbers: dict[str, list[int]] = {name: [] for name in self._rows}
        """The key number of each row."""
        self._check_each = check_each

    def emit(self, side: str, rows: Any, number: int = 0) -> None:
        """``number``: that of the current key."""
        emitted = self._rows.get(side)
        if emitted is None:
            declared = ", ".join(self._rows) or "none"
            raise BadInput(f"there is no side output {side!r} to emit to; declared in side_outputs: {declared}")
        if self._check_each:
            self._targets[side].check([rows])
        emitted.append(rows)
        self._numbers[side].append(number)

    def mark(self) -> list[int]:
        """A savepoint for ``rollback``: how many rows were emitted so far."""
        return [len(rows) for rows in self._rows.values()]

    def rollback(self, marked: Sequence[int]) -> None:
        for rows, numbers, length in zip(self._rows.values(), self._numbers.values(), marked, strict=True):
            del rows[length:], numbers[length:]

    def sort(self) -> None:
        """Puts the rows emitted so far in the order of their keys; those of a key keep their order."""
        for name, numbers in self._numbers.items():
            order = sorted(range(len(numbers)), key=numbers.__getitem__)
            self._rows[name] = [self._rows[name][at] for at in order]
            self._numbers[name] = [numbers[at] for at in order]

    def tables(self, late: pa.Table, origin_of_key: RowOrigin | None = None) -> dict[str, pa.Table]:
        """All declared side outputs. ``late``: the late rows. ``origin_of_key``: as a ``RowOrigin``, by key number."""
        return {
            name: target.conform(late) if name == LATE else self._emitted(name, target, origin_of_key)
            for name, target in self._targets.items()
        }

    def _emitted(self, name: str, target: OutputConverter, origin_of_key: RowOrigin | None) -> pa.Table:
        numbers = self._numbers[name]
        return target.table(self._rows[name], None if origin_of_key is None else lambda at: origin_of_key(numbers[at]))


def _apply(fits: Callable[[Any], bool], value: Any) -> bool:
    return fits(value)


def _has_tables(emitted: Sequence[Any]) -> bool:
    return any(issubclass(kind, pa.Table | pa.RecordBatch) for kind in set(map(type, emitted)))
