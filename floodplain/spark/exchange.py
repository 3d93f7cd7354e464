"""Rows to slots: hash and slot are computed in the JVM."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.spark.names import quoted
from floodplain.store.layout import HASH
from floodplain.versions.edit import Assignment


def to_slots(rows: DataFrame, keys: Sequence[str], assignment: Assignment, key_groups: int) -> DataFrame:
    """``rows`` with their hash, spread so that partition i has the rows of slot i; empty slots have a partition too."""
    hashed = rows.selectExpr("*", f"xxhash64({', '.join(map(quoted, keys))}) as {HASH}")
    return hashed.repartitionById(assignment.slots, F.expr(_slot(assignment, key_groups)))


def _slot(assignment: Assignment, key_groups: int) -> str:
    """The slot of a row as SQL: one call into the JVM, where an expression built in Python makes one per node."""
    bits = key_groups.bit_length() - 1
    group = f"cast(shiftrightunsigned({HASH}, {64 - bits}) as int)" if bits else "0"
    slots: list[str] = []
    ends = [start for start, _ in assignment.starts[1:]] + [key_groups]
    for (start, slot), end in zip(assignment.starts, ends, strict=True):
        slots += [str(slot)] * (end - start)
    return f"cast(element_at(split('{','.join(slots)}', ','), {group} + 1) as int)"
