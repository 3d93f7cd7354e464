"""The rows of one key as a user's function gets them, and which of them it was at when it failed."""

from collections import namedtuple
from collections.abc import Iterator
from typing import Any


class Rows(list[Any]):
    """A list that remembers how it was last walked through. The walk itself is a plain list's and costs nothing more."""

    __slots__ = ("walk",)

    def __iter__(self) -> Iterator[Any]:
        self.walk = walk = list.__iter__(self)
        return walk


def tuple_type(name: str, fields: list[str]) -> Any:
    """A named tuple for columns that are known only now."""
    return namedtuple(name, fields, rename=True)


def failed_at(rows: list[Any]) -> int | None:
    """The number of the row that was being looked at; None if that cannot be told. A single row needs no walk."""
    if len(rows) == 1:
        return 0
    walk: Any = getattr(rows, "walk", None)
    # A list's iterator tells its next index while it runs, and forgets the list once it has run out.
    reduced: Any = () if walk is None else walk.__reduce__()
    return reduced[2] - 1 if len(reduced) == 3 and reduced[2] > 0 else None
