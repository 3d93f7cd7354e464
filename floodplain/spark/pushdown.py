"""What is done to the input before its rows come as a batch.

Spark hands a batch over as rows that have been read already. A step behind that is analysed anew in each epoch, and spares nobody
the reading of columns and rows that no step asks for. So the first steps of a pipeline are put on the streaming DataFrame itself,
as far as they only choose rows and make columns.

A watermark is of the input, whatever is done with its rows. Spark would choose rows before it looks at their times, so that only
those that are chosen move the watermark; unless a condition stands in between that it may not move.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.plan.nodes import Extend, Input, Keyed, Node, Plan, Select, Union, parents
from floodplain.plan.single_scan import one_pass
from floodplain.runtime.engine import Engine, apply_stateless
from floodplain.spark.exchange import hashed
from floodplain.store.rows.layout import HASH

_STATELESS = {"Project", "Filter", "Generate"}
"""Spark's steps that see one row at a time, on a stream as in a batch."""


def push_down(plan: Plan, engine: Engine, operators: Mapping[str, KeyedOperator], rows: DataFrame) -> tuple[Node, DataFrame]:
    """The step up to which the pipeline's own input is computed, and its rows; with their hash, if an operator reads them as they
    are. Where the watermark is measured on the rows (``plan.watermark``) they are left as they come."""
    node: Node = next(node for node in plan.nodes if isinstance(node, Input) and not node.tag)
    if plan.watermark is not None:
        return node, rows
    fixed = plan.event_time is None
    while (step := _next(plan, node)) is not None:
        given = _all_rows(rows) if not fixed and _chooses(step) else rows
        made = apply_stateless(step, plan, engine, partial(_given, given))
        if not _only_rows(made, given):
            break
        node, rows, fixed = step, made, fixed or given is not rows
    match list(_readers(plan, node)):
        case [Keyed() as reader] if _reads_as_they_are(operators[reader.name], engine.schema(rows)):
            rows = hashed(rows, reader.keys)
    return node, rows


def _all_rows(rows: DataFrame) -> DataFrame:
    """All of them, by a condition that always holds, which Spark compiles into the reading of rows. It depends on the partition,
    which to Spark may be another one in another place of the plan: no condition behind it gets past it."""
    return rows.where(F.spark_partition_id() >= 0)


def _chooses(step: Select | Extend | Union) -> bool:
    """Whether some rows do not get through it."""
    match step:
        case Select(only=only):
            return only is not None
        case Extend(where=where):
            return where is not None
        case _:
            return True


def _given(rows: DataFrame, _: Node) -> DataFrame:
    return rows


def _next(plan: Plan, node: Node) -> Select | Extend | Union | None:
    """The one step that all rows of this one go to, if Spark can take it ahead."""
    readers = list(_readers(plan, node))
    match readers:
        case [Select() | Extend() as step]:
            return step
    for union in plan.nodes:
        if isinstance(union, Union) and (found := one_pass(union)) is not None and found.parent is node:
            between = _between(union, node)
            seen = [reader for step in (node, *between) for reader in _readers(plan, step)]
            if all(reader is union or reader in between for reader in seen):
                return union
    return None


def _readers(plan: Plan, node: Node) -> Iterator[Any]:
    yield from (reader for reader in plan.nodes if node in parents(reader))
    yield from (outlet for outlet in plan.outlets if outlet.node is node)


def _between(union: Union, first: Node) -> list[Node]:
    found: list[Node] = []
    for node in union.members:
        while node is not first:
            found.append(node)
            (node,) = parents(node)
    return found


def _only_rows(made: DataFrame, of: DataFrame) -> bool:
    """Whether a row that comes out is made of one that comes in, and of nothing else."""
    plan, end = (rows._jdf.queryExecution().analyzed() for rows in (made, of))
    while not plan.fastEquals(end):
        if plan.nodeName() not in _STATELESS or not plan.subqueries().isEmpty():
            return False
        plan = plan.children().head()
    return True


def _reads_as_they_are(operator: KeyedOperator, rows: pa.Schema) -> bool:
    """Whether rows keep their hash on the way to it: those that are put together lose it."""
    combiner = operator.traits.combiner
    return combiner is None or HASH in combiner.schema(rows.append(pa.field(HASH, pa.int64()))).names
