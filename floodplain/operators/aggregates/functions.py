"""The aggregates that users name. Each argument is a column, or an expression as Spark has it: as text or as a ``Column``.

``where`` is a condition: rows for which it does not hold do not count. ``since="now"`` lets an aggregate be added to a pipeline
that has run before: it sees the rows that come after that.

The values of several ``max_by`` and ``last`` with the same ``by`` and ``where`` in one ``agg`` are those of one row: of several
rows alike in ``by`` the one whose values are the greatest, compared in the order in which the aggregates stand; null is less
than any value. So it is with ``min_by`` and ``first``, and the least.
"""

from collections.abc import Sequence

from floodplain.operators.aggregates.base import TIME, Aggregate, Expression, Since
from floodplain.operators.aggregates.distinct import CountDistinct
from floodplain.operators.aggregates.list import Collect, TopK
from floodplain.operators.aggregates.scalar import Avg, Count, Extreme, ExtremeBy, Sum
from floodplain.operators.aggregates.sketches import ApproxCountDistinct, ApproxQuantile


def count(*columns: Expression, where: Expression = None, since: Since = None) -> Aggregate:
    """How many rows, or in how many none of these columns is null."""
    return Count(columns, where, since=since)


def sum(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:  # noqa: A001 — as Spark calls it
    """A long of integers, a double of floating numbers, a decimal of decimals."""
    return Sum((column,), where, since=since)


def avg(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:
    """A double; of decimals a decimal with four more digits, as Spark gives it."""
    return Avg((column,), where, since=since)


def min(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:  # noqa: A001 — as Spark calls it
    """The least value."""
    return Extreme((column,), where, since=since)


def max(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:  # noqa: A001 — as Spark calls it
    """The greatest value; NaN is greater than all numbers."""
    return Extreme((column,), where, greatest=True, since=since)


def min_by(column: Expression, by: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the row with the least ``by``; of several such rows the least value. Several give values of one row."""
    return ExtremeBy((column, by), where, since=since)


def max_by(column: Expression, by: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the row with the greatest ``by``; of several such rows the greatest value. Several give values of one row."""
    return ExtremeBy((column, by), where, greatest=True, since=since)


def first(column: Expression, *, by: Expression = TIME, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the earliest row, null if it is null there; of several rows of that time the least value."""
    return ExtremeBy((column, by), where, since=since)


def last(column: Expression, *, by: Expression = TIME, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the latest row, null if it is null there; of several rows of that time the greatest value."""
    return ExtremeBy((column, by), where, greatest=True, since=since)


def count_distinct(*columns: Expression, where: Expression = None, since: Since = None) -> Aggregate:
    """How many different values, exactly; of several columns, how many combinations without a null."""
    return CountDistinct(columns, where, since=since)


def approx_count_distinct(column: Expression, rsd: float = 0.05, *, where: Expression = None, since: Since = None) -> Aggregate:
    """About how many different values, by HyperLogLog: ``rsd`` is the standard deviation of the relative error."""
    return ApproxCountDistinct((column,), where, rsd=rsd, since=since)


def approx_quantile(
    column: Expression, q: float | Sequence[float], error: float = 0.01, *, where: Expression = None, since: Since = None
) -> Aggregate:
    """The value below which this share of the values lies (several: an array), off by no more than ``error`` of itself."""
    several = not isinstance(q, float | int)
    return ApproxQuantile(
        (column,), where, q=tuple(q) if isinstance(q, Sequence) else (q,), error=error, several=several, since=since
    )


def top_k(column: Expression, k: int, *, by: Expression = None, where: Expression = None, since: Since = None) -> Aggregate:
    """An array of the ``k`` greatest values, or of those in the ``k`` rows with the greatest ``by``; the greatest first."""
    return TopK((column,) if by is None else (column, by), where, k=k, since=since)


def collect(column: Expression, *, by: Expression = TIME, where: Expression = None, since: Since = None) -> Aggregate:
    """An array of all values that are not null, in the order of ``by``, by default of event time; equal ones by value."""
    return Collect((column, by), where, since=since)
