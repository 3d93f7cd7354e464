"""Aggregates that combine: what is kept of rows, how what was kept of some and of others becomes one, and what it means.

Nulls are as in SQL: an aggregate does not see them, and one that saw nothing is null (a count is 0).
"""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.kernel.definition import Given, Written, canonical
from floodplain.operators.kernel.segments import Groups

Expression: TypeAlias = Any
"""A column, or an expression as Spark has it: as text (``"price * 0.9"``) or as a ``Column``."""
Columns: TypeAlias = Sequence[pa.Array]
Types: TypeAlias = Sequence[pa.DataType]
Owned: TypeAlias = tuple[np.ndarray, Columns]
"""The owner of each row, and partials."""

Since: TypeAlias = Literal["now"] | None
TIME: Final = "<event time>"
"""Stands among arguments for the column that has the event time."""


@dataclass(frozen=True)
class Aggregate:
    """Subclass it for an aggregate of your own; all methods work on whole columns.

    An ``__init__`` of its own hands its columns on, ``super().__init__((column,), where)``, and may set further attributes. What
    is kept of a group are *partials*: columns of the types that ``partial`` says. Rows come group by group:
    ``groups.starts`` has the first row of each, ``groups.of_row`` the group of each row. No group is empty. Where ``where``
    does not hold, all arguments are null.
    """

    arguments: tuple[Expression, ...] = ()
    where: Expression = None
    _: KW_ONLY
    since: Since = None
    """``"now"``: it may be added to a pipeline that has run before, and then sees the rows that come after that."""

    def __post_init__(self) -> None:
        given: Any = self.arguments
        if isinstance(given, str):
            object.__setattr__(self, "arguments", (given,))
        if self.since not in (None, "now"):
            raise BadInput(f"since={self.since!r} is not known: an aggregate sees all rows, or those that come from 'now' on")

    @property
    def function(self) -> str:
        """What it is called."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def described(self, name: str, written: Written) -> Given:
        """What it computes, as column ``name``: of which columns, where, and with which settings of its own."""
        arguments = [written(each) for each in self.arguments]
        where = None if self.where is None else written(self.where)
        own = {each: found for each, found in vars(self).items() if each not in ("arguments", "where", "since")}
        value = {
            "function": self.function,
            "arguments": [canonical(each) for each in arguments],
            "where": where and canonical(where),
            "since": self.since,
            **own,
        }
        shown = [f"{each}={own[each]}" for each in ("k", "q", "rsd") if each in own]
        condition = "" if where is None else f" where {where}"
        return Given(name, value, f"{name} = {self.function}({', '.join([*arguments, *shown])}){condition}")

    def output(self, types: Types) -> pa.DataType:
        """The type of the result, given those of the arguments. Raises ``SchemaMismatch`` for what it cannot aggregate."""
        raise NotImplementedError

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        """The types of the partials."""
        raise NotImplementedError

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        """The partials of rows, one value per group. ``columns`` are the arguments; without any, one that is null where
        ``where`` does not hold."""
        raise NotImplementedError

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        """One partial per group of several, the oldest first. Must not depend on how rows were split among them."""
        raise NotImplementedError

    def result(self, partials: Columns) -> pa.Array:
        """What the partials mean."""
        return partials[0]

    def sql(self, arguments: Sequence[str], where: str, types: Types) -> list[str] | None:  # noqa: ARG002
        """The partials as Spark computes them, given arguments and filter clause as SQL; None if it cannot.

        One expression each; or, of several partials, a single one: a struct that has them as ``p0``, ``p1`` and so on.
        """
        return None

    def with_arguments(self, arguments: Sequence[Expression], where: Expression) -> "Aggregate":
        """The same of other columns. It is not initialised anew: what ``__init__`` takes is the subclass's own."""
        found = copy(self)
        object.__setattr__(found, "arguments", tuple(arguments))
        object.__setattr__(found, "where", where)
        return found
