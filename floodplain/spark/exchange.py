"""Rows to slots: hash and slot are computed in the JVM."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.expressions.identifiers import quoted
from floodplain.store.rows.layout import HASH
from floodplain.versions.records.edit import Assignment

FEW_RANGES = 16
"""Of key groups; so many comparisons cost less than to look a slot up."""


def hashed(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """``rows`` with the hash of their keys."""
    return rows.selectExpr("*", f"xxhash64({', '.join(map(quoted, keys))}) as {HASH}")


def to_slots(rows: DataFrame, assignment: Assignment, key_groups: int) -> DataFrame:
    """``rows``, which have their hash, spread so that partition i has those of slot i; empty slots have a partition too."""
    return rows.repartitionById(assignment.slots, F.expr(_slot(assignment, key_groups)))


def _slot(assignment: Assignment, key_groups: int) -> str:
    """The slot of a row as SQL: one call into the JVM, where an expression built in Python makes one per node."""
    bits = key_groups.bit_length() - 1
    group = f"cast(shiftrightunsigned({HASH}, {64 - bits}) as int)" if bits else "0"
    ends = [start for start, _ in assignment.starts[1:]] + [key_groups]
    ranges = [(slot, start, end) for (start, slot), end in zip(assignment.starts, ends, strict=True)]
    if len(ranges) <= FEW_RANGES:
        cases = " ".join(f"when {group} < {end} then {slot}" for slot, _, end in ranges[:-1])
        return f"case {cases} else {ranges[-1][0]} end" if cases else str(ranges[-1][0])
    slots = [str(slot) for slot, start, end in ranges for _ in range(start, end)]
    return f"cast(element_at(split('{','.join(slots)}', ','), {group} + 1) as int)"
