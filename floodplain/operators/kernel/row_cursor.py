"""The rows of one key as a process function gets them, and which of them it was reading when it failed."""

from collections import namedtuple
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar


class Rows(list["Row"]):
    """A list that remembers its last iterator. Iteration costs no more than that of a plain list."""

    __slots__ = ("iterator",)

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iterator = list.__iter__(self)
        return iterator


class Row(tuple[Any, ...]):
    """A row, or a key: a named tuple with the methods of a PySpark row: ``row["v"]``, ``"v" in row``, ``row.asDict()``."""

    __slots__ = ()
    _columns: ClassVar[dict[str, int]]
    """Column name → position, also of names that are not Python identifiers."""

    def __getitem__(self, item: Any) -> Any:
        if not isinstance(item, str):
            return _at(self, item)
        position = self._columns.get(item)
        if position is None:
            raise KeyError(f"there is no column {item!r}; there are: {', '.join(self._columns)}")
        return _at(self, position)

    def __contains__(self, item: object) -> bool:
        return item in self._columns

    def __getattr__(self, name: str) -> Any:
        columns = type(self)._columns
        if name in columns:
            return _at(self, columns[name])
        raise AttributeError(f"there is no column {name!r}; there are: {', '.join(columns)}")

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: ARG002, N802 — as PySpark calls it
        """The values by column name. Structs are dicts already."""
        return {name: _at(self, position) for name, position in self._columns.items()}


_at: Any = tuple.__getitem__


def tuple_type(name: str, fields: list[str]) -> Any:
    """The class of rows with these columns."""
    return _tuple_type(name, tuple(fields))


@cache
def _tuple_type(name: str, fields: tuple[str, ...]) -> Any:
    plain: Any = namedtuple(name, fields, rename=True)  # type: ignore[misc]
    return type(name, (Row, plain), {"__slots__": (), "_columns": {field: i for i, field in enumerate(fields)}})


def failed_at(rows: list[Any]) -> int | None:
    """The position of the row that was being read; None if it is not known."""
    if len(rows) == 1:
        return 0
    iterator: Any = getattr(rows, "iterator", None)
    # A list iterator has its next index until it is exhausted; then it drops the list.
    reduced: Any = () if iterator is None else iterator.__reduce__()
    return reduced[2] - 1 if len(reduced) == 3 and reduced[2] > 0 else None
