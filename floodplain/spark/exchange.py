"""Rows to slots: hash and slot are computed in the JVM."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.store.layout import HASH
from floodplain.versions.edit import Assignment

SLOT = "_slot"


def to_slots(rows: DataFrame, keys: Sequence[str], assignment: Assignment, key_groups: int) -> DataFrame:
    """``rows`` with their hash, spread so that partition i has the rows of slot i; empty slots have a partition too."""
    hashed = rows.withColumn(HASH, F.xxhash64(*[F.col(quoted(key)) for key in keys]))
    slotted = hashed.withColumn(SLOT, _slot(assignment, key_groups))
    return slotted.repartitionById(assignment.slots, F.col(SLOT)).drop(SLOT)


def _slot(assignment: Assignment, key_groups: int) -> Column:
    bits = key_groups.bit_length() - 1
    group = F.shiftrightunsigned(F.col(HASH), 64 - bits).cast("int") if bits else F.lit(0)
    slots: list[str] = []
    ends = [start for start, _ in assignment.starts[1:]] + [key_groups]
    for (start, slot), end in zip(assignment.starts, ends, strict=True):
        slots += [str(slot)] * (end - start)
    return F.element_at(F.split(F.lit(",".join(slots)), ","), group + F.lit(1)).cast("int")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
