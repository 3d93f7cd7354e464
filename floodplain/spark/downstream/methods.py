"""What the drop-in does with each method of a DataFrame.

All that is in none of these is called on Spark's own plan. If that gives a DataFrame, it is translated; an action ends with
Spark's own error, as on every streaming DataFrame.
"""

from typing import Any

from pyspark.sql import DataFrame

ANSWERED = frozenset(
    (
        *("colRegex", "columns", "dtypes", "executionInfo", "explain", "inputFiles", "isLocal", "isStreaming", "metadataColumn"),
        *("printSchema", "sameSemantics", "schema", "semanticHash", "sparkSession", "storageLevel"),
    )
)
"""Spark's plan answers for the frame."""
GROUPING = frozenset(("cube", "groupBy", "groupby", "groupingSets", "rollup"))

_VIEW = "a view would run on Spark itself, with a state of its own: use the frame in its place"
_SUBQUERY = "a subquery would run on Spark itself: use join"
NOT_HERE: dict[str, str] = {
    "asTable": "a function of tables would run on Spark itself: use mapInPandas",
    "createGlobalTempView": _VIEW,
    "createOrReplaceGlobalTempView": _VIEW,
    "createOrReplaceTempView": _VIEW,
    "createTempView": _VIEW,
    "exists": _SUBQUERY,
    "pandas_api": "a stream does not end, so it cannot be collected: write the output",
    "plot": "a stream does not end, so it cannot be collected: write the output",
    "registerTempTable": _VIEW,
    "scalar": _SUBQUERY,
}
"""Method → why it is refused, and what to do."""
ACTION = "it does not give a DataFrame of the stream: write the output, and go on from there"

STATISTICS = ("approxQuantile", "corr", "cov", "crosstab", "freqItems", "sampleBy")


def is_property(name: str) -> bool:
    return isinstance(getattr(DataFrame, name, None), property)


class Nulls:
    """Spark's ``na`` of a frame."""

    def __init__(self, frame: Any) -> None:
        self.fill = frame.fillna
        self.drop = frame.dropna
        self.replace = frame.replace


class Statistics:
    """Spark's ``stat`` of a frame."""

    def __init__(self, frame: Any) -> None:
        for name in STATISTICS:
            setattr(self, name, getattr(frame, name))
