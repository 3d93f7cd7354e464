"""What cannot run downstream of a stateful step here: the kind of node that Spark's plan has for it, why, and what to do."""

from floodplain.errors import BadInput

_ON = "write the output, and go on from there in another query"
_SIDES = "two streams are joined in a pipeline of Floodplain: fp.stream(left=one, right=other) and join, or before this step"

WHY: dict[str, str] = {
    "CollectMetrics": f"its metrics would be those of single steps, in events of other queries: use query.lastProgress, or {_ON}",
    "DeduplicateBySession": _ON,
    "Distinct": "it is distinct() of SQL, which is an aggregation over all columns: call dropDuplicates()",
    "EventTimeWatermark": (
        "the watermark is that of the source: call withWatermark before the stateful step, and name the event time of its output "
        "by eventTimeColumnName"
    ),
    "FlatMapGroupsInPandas": f"a group would have the rows of one batch only: use transformWithStateInPandas, or {_ON}",
    "FlatMapGroupsInArrow": f"a group would have the rows of one batch only: use transformWithStateInPandas, or {_ON}",
    "FlatMapGroupsInPandasWithState": "use transformWithStateInPandas, which keeps state and timers per key as well",
    "FlatMapCoGroupsInPandas": f"a group would have the rows of one batch only: {_SIDES}",
    "FlatMapCoGroupsInArrow": f"a group would have the rows of one batch only: {_SIDES}",
    "GlobalLimit": f"it counts rows over the whole life of a query: {_ON}",
    "Join": _SIDES,
    "LocalLimit": f"it counts rows over the whole life of a query: {_ON}",
    "Sort": f"there is an order only of complete results: {_ON}",
    "Union": f"a query has one stateful step after the other, without branches: union the inputs before the first, or {_ON}",
}
"""Node of a plan → the reason and the way out."""


class Refused(BadInput):
    """A step that is valid in Spark and does not run here."""


def refused(what: str, why: str) -> Refused:
    return Refused(f"{what} is not available downstream of a stateful step: {why}")


def refused_kind(kind: str) -> Refused:
    return refused(f"Spark's step {kind}", WHY.get(kind, f"it is not known to be stateless: {_ON}"))
