"""Default names of aggregates: ``count``, ``sum_v``, ``last_price``."""

import re
from collections.abc import Callable

from floodplain.operators.aggregates.base import TIME, Aggregate
from floodplain.operators.aggregates.distinct import CountDistinct
from floodplain.operators.aggregates.list import Collect, TopK
from floodplain.operators.aggregates.scalar import Avg, Count, Extreme, ExtremeBy, Sum
from floodplain.operators.aggregates.sketches import ApproxCountDistinct, ApproxQuantile

_LONGEST = 50
_KINDS: dict[type[Aggregate], str] = {
    Count: "count",
    Sum: "sum",
    Avg: "avg",
    CountDistinct: "count_distinct",
    ApproxCountDistinct: "approx_count_distinct",
    ApproxQuantile: "approx_quantile",
    TopK: "top_k",
    Collect: "collect",
}


def default_name(aggregate: Aggregate, text_of: Callable[[object], str]) -> str | None:
    """The name from function and columns; None if it would be too long. ``text_of``: an argument as text."""
    kind = _kind(aggregate)
    columns = [text_of(each) for each in aggregate.arguments if each != TIME]
    where = [] if aggregate.where is None else ["where", text_of(aggregate.where)]
    name = "_".join(re.sub(r"\W+", "_", part).strip("_") for part in (kind, *columns, *where))
    return name if len(name) <= _LONGEST else None


def _kind(aggregate: Aggregate) -> str:
    greatest = isinstance(aggregate, Extreme | ExtremeBy) and aggregate.greatest
    if isinstance(aggregate, Extreme):
        return "max" if greatest else "min"
    if isinstance(aggregate, ExtremeBy):
        by_time = aggregate.arguments[-1] == TIME
        return ("last" if greatest else "first") if by_time else ("max_by" if greatest else "min_by")
    own = re.sub(r"(?<!^)(?=[A-Z])", "_", type(aggregate).__name__).lower()
    return _KINDS.get(type(aggregate), own)
