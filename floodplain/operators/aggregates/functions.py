"""Aggregate functions. Each argument is a column or a Spark expression, as text or as a ``Column``.

``where`` is a filter: only rows for which it holds are aggregated. ``since="now"`` lets an aggregate be added to an existing
pipeline: it aggregates the rows from then on.

Several ``max_by`` and ``last`` with the same ``by`` and ``where`` in one ``agg`` take their values from one row. Of rows with
equal ``by`` it is the one with the greatest values, compared in the order of the aggregates; null is less than any value. The
same holds for ``min_by`` and ``first`` with the least values.
"""

from collections.abc import Sequence

from floodplain.operators.aggregates.base import TIME, Aggregate, Expression, Since
from floodplain.operators.aggregates.distinct import CountDistinct
from floodplain.operators.aggregates.list import Collect, TopK
from floodplain.operators.aggregates.scalar import Avg, Count, Extreme, ExtremeBy, Sum
from floodplain.operators.aggregates.sketches import ApproxCountDistinct, ApproxQuantile


def count(*columns: Expression, where: Expression = None, since: Since = None) -> Aggregate:
    """The number of rows, or of rows in which none of these columns is null."""
    return Count(columns, where, since=since)


def sum(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:  # noqa: A001 — as Spark calls it
    """The sum: a long for integers, a double for floating-point numbers, a decimal for decimals."""
    return Sum((column,), where, since=since)


def avg(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:
    """The average: a double; for decimals, a decimal with four more digits, as in Spark."""
    return Avg((column,), where, since=since)


def min(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:  # noqa: A001 — as Spark calls it
    """The least value."""
    return Extreme((column,), where, since=since)


def max(column: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:  # noqa: A001 — as Spark calls it
    """The greatest value; NaN is greater than all numbers."""
    return Extreme((column,), where, greatest=True, since=since)


def min_by(column: Expression, by: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the row with the least ``by``; of several such rows the least value."""
    return ExtremeBy((column, by), where, since=since)


def max_by(column: Expression, by: Expression, *, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the row with the greatest ``by``; of several such rows the greatest value."""
    return ExtremeBy((column, by), where, greatest=True, since=since)


def first(column: Expression, *, by: Expression = TIME, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the earliest row, null if it is null there; of several rows of that time the least value."""
    return ExtremeBy((column, by), where, since=since)


def last(column: Expression, *, by: Expression = TIME, where: Expression = None, since: Since = None) -> Aggregate:
    """``column`` of the latest row, null if it is null there; of several rows of that time the greatest value."""
    return ExtremeBy((column, by), where, greatest=True, since=since)


def count_distinct(*columns: Expression, where: Expression = None, since: Since = None) -> Aggregate:
    """The exact number of distinct values; of several columns, of distinct combinations without a null."""
    return CountDistinct(columns, where, since=since)


def approx_count_distinct(column: Expression, rsd: float = 0.05, *, where: Expression = None, since: Since = None) -> Aggregate:
    """The approximate number of distinct values, by HyperLogLog. ``rsd``: the standard deviation of the relative error."""
    return ApproxCountDistinct((column,), where, rsd=rsd, since=since)


def approx_quantile(
    column: Expression, q: float | Sequence[float], error: float = 0.01, *, where: Expression = None, since: Since = None
) -> Aggregate:
    """The approximate quantile ``q``, or an array for several, with a relative error of at most ``error``."""
    several = not isinstance(q, float | int)
    return ApproxQuantile(
        (column,), where, q=tuple(q) if isinstance(q, Sequence) else (q,), error=error, several=several, since=since
    )


def top_k(column: Expression, k: int, *, by: Expression = None, where: Expression = None, since: Since = None) -> Aggregate:
    """An array of the ``k`` greatest values, or of the values of the ``k`` rows with the greatest ``by``; descending."""
    return TopK((column,) if by is None else (column, by), where, k=k, since=since)


def collect(column: Expression, *, by: Expression = TIME, where: Expression = None, since: Since = None) -> Aggregate:
    """An array of all values that are not null, sorted by ``by`` (event time by default), then by value."""
    return Collect((column, by), where, since=since)
