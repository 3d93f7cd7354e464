"""The rows of one key as a user's function gets them, and which of them it was at when it failed."""

from collections import namedtuple
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar


class Rows(list["Row"]):
    """A list that remembers how it was last walked through. The walk itself is a plain list's and costs nothing more."""

    __slots__ = ("walk",)

    def __iter__(self) -> Iterator[Any]:
        self.walk = walk = list.__iter__(self)
        return walk


class Row(tuple[Any, ...]):
    """A row, or a key: a named tuple, with what a row of PySpark does by the names of its columns: ``row["v"]``, ``"v" in row``,
    ``row.asDict()``."""

    __slots__ = ()
    _columns: ClassVar[dict[str, int]]
    """Name → place; a name that is no attribute in Python is among them, too."""

    def __getitem__(self, item: Any) -> Any:
        if not isinstance(item, str):
            return _at(self, item)
        place = self._columns.get(item)
        if place is None:
            raise KeyError(f"there is no column {item!r}; there are: {', '.join(self._columns)}")
        return _at(self, place)

    def __contains__(self, item: object) -> bool:
        return item in self._columns

    def __getattr__(self, name: str) -> Any:
        columns = type(self)._columns
        if name in columns:
            return _at(self, columns[name])
        raise AttributeError(f"there is no column {name!r}; there are: {', '.join(columns)}")

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: ARG002, N802 — as PySpark calls it
        """Its values by name. Structs in them are dicts anyhow."""
        return {name: _at(self, place) for name, place in self._columns.items()}


_at: Any = tuple.__getitem__


def tuple_type(name: str, fields: list[str]) -> Any:
    """A named tuple for columns that are known only now, whose values can be had by name as those of a PySpark row."""
    return _tuple_type(name, tuple(fields))


@cache
def _tuple_type(name: str, fields: tuple[str, ...]) -> Any:
    plain: Any = namedtuple(name, fields, rename=True)  # type: ignore[misc]
    return type(name, (Row, plain), {"__slots__": (), "_columns": {field: i for i, field in enumerate(fields)}})


def failed_at(rows: list[Any]) -> int | None:
    """The number of the row that was being looked at; None if that cannot be told. A single row needs no walk."""
    if len(rows) == 1:
        return 0
    walk: Any = getattr(rows, "walk", None)
    # A list's iterator tells its next index while it runs, and forgets the list once it has run out.
    reduced: Any = () if walk is None else walk.__reduce__()
    return reduced[2] - 1 if len(reduced) == 3 and reduced[2] > 0 else None
