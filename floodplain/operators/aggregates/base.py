"""Aggregates as init, merge, finalize over columns: ``of``, ``combine``, ``result``.

Nulls are as in SQL: an aggregate ignores them, and the aggregate of no values is null (a count is 0).
"""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.kernel.definition import ParameterSpec, Written, canonical
from floodplain.operators.kernel.segments import Groups

Expression: TypeAlias = Any
"""A column, or an expression as Spark has it: as text (``"price * 0.9"``) or as a ``Column``."""
Columns: TypeAlias = Sequence[pa.Array]
Types: TypeAlias = Sequence[pa.DataType]
Owned: TypeAlias = tuple[np.ndarray, Columns]
"""The group of each row, and partials."""

Since: TypeAlias = Literal["now"] | None
TIME: Final = "<event time>"
"""A placeholder among the arguments: the event-time column."""


@dataclass(frozen=True)
class Aggregate:
    """Subclass it for an aggregate of your own; all methods work on whole columns.

    An ``__init__`` of its own passes its columns on, ``super().__init__((column,), where)``, and may set further attributes. The
    accumulator of a group is its *partials*: columns of the types that ``partial`` returns. Rows come group by group:
    ``groups.starts`` has the first row of each, ``groups.of_row`` the group of each row. No group is empty. Where ``where``
    does not hold, all arguments are null.
    """

    arguments: tuple[Expression, ...] = ()
    where: Expression = None
    _: KW_ONLY
    since: Since = None
    """``"now"``: it may be added to a running pipeline, and then aggregates the rows that come after that."""

    def __post_init__(self) -> None:
        column: Any = self.arguments
        if isinstance(column, str):
            object.__setattr__(self, "arguments", (column,))
        if self.since not in (None, "now"):
            raise BadInput(f"since={self.since!r} is not known: an aggregate sees all rows, or those that come from 'now' on")

    @property
    def function(self) -> str:
        """The name of the function, as ``explain`` shows it and states record it."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def described(self, name: str, written: Written) -> ParameterSpec:
        """Its definition as column ``name``: function, arguments, filter and settings."""
        arguments = [written(each) for each in self.arguments]
        where = None if self.where is None else written(self.where)
        own = {each: setting for each, setting in vars(self).items() if each not in ("arguments", "where", "since")}
        value = {
            "function": self.function,
            "arguments": [canonical(each) for each in arguments],
            "where": where and canonical(where),
            "since": self.since,
            **own,
        }
        shown = [f"{each}={own[each]}" for each in ("k", "q", "rsd") if each in own]
        condition = "" if where is None else f" where {where}"
        return ParameterSpec(name, value, f"{name} = {self.function}({', '.join([*arguments, *shown])}){condition}")

    def output(self, types: Types) -> pa.DataType:
        """The type of the result, given those of the arguments. Raises ``SchemaMismatch`` for types it cannot aggregate."""
        raise NotImplementedError

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:
        """The types of the partials."""
        raise NotImplementedError

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        """Init: the partials of rows, one value per group. ``columns`` are the arguments; without any, one that is null where
        ``where`` does not hold."""
        raise NotImplementedError

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        """Merge: one partial per group from several, oldest first. Must not depend on how rows were split among them."""
        raise NotImplementedError

    def result(self, partials: Columns) -> pa.Array:
        """Finalize: the result of each group."""
        return partials[0]

    def sql(self, arguments: Sequence[str], where: str, types: Types) -> list[str] | None:  # noqa: ARG002
        """The partials in Spark SQL, given arguments and filter clause as SQL; None if Spark cannot compute them.

        One expression each; or, of several partials, a single one: a struct that has them as ``p0``, ``p1`` and so on.
        """
        return None

    def with_arguments(self, arguments: Sequence[Expression], where: Expression) -> "Aggregate":
        """A copy for other columns. ``__init__`` is not called: its arguments are the subclass's own."""
        other = copy(self)
        object.__setattr__(other, "arguments", tuple(arguments))
        object.__setattr__(other, "where", where)
        return other
