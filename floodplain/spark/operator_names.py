"""The names of the drop-in's operators: of their states, and in Spark. Each has its kind and its number in the dataflow."""

from collections.abc import Iterable

PROCESSOR = "transform_with_state"
"""The first of a query has no number. Spark does not know an operator by its class either, so a processor may be renamed."""
AGGREGATE = "aggregate"
DEDUPLICATE = "deduplicate"
DEDUPLICATE_WITHIN = "deduplicate_within_watermark"

_IN_SPARK = {AGGREGATE: "stateStoreSave", DEDUPLICATE: "dedupe", DEDUPLICATE_WITHIN: "dedupeWithinWatermark"}


def numbered(kind: str, number: int) -> str:
    """The name of the operator that is this one in the dataflow, from 1."""
    return kind if number == 1 else f"{kind}_{number}"


def in_spark(name: str) -> str:
    """What Spark calls an operator of the drop-in that runs no processor."""
    return _IN_SPARK.get(name.rpartition("_")[0], name)


def as_spark_numbers(names: Iterable[str]) -> list[str]:
    """The operators of a query of the drop-in in the order of Spark's ids, which begin at the sink."""
    return sorted(names, key=_number, reverse=True)


def _number(name: str) -> int:
    number = name.rpartition("_")[2]
    return int(number) if number.isdigit() else 1
