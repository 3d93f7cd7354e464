"""Pushes the first stateless steps of a pipeline down to the streaming DataFrame of the input.

Spark hands a batch to ``foreachBatch`` as rows that it has read already. It analyses the steps downstream of that again in each
epoch, and cannot push their projections and filters down to the scan. So the first steps, as far as they are projections and
filters, become part of the streaming query itself.

The watermark is that of the whole input. If Spark pushed a filter down below the watermark operator, only rows that pass the
filter would advance the watermark. A condition in between that Spark must not move keeps it from doing so.
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
"""Spark's operators that process one row at a time, on a stream as in a batch."""


def push_down(
    plan: Plan, engine: Engine, operators: Mapping[str, KeyedOperator], rows: DataFrame, *, steps: bool = True
) -> tuple[Node, DataFrame]:
    """The last step that was pushed down, and the rows that it makes of the pipeline's main input.

    They have the hash of their key, if their only reader is an operator that reads them uncombined. Where the watermark is
    measured on the rows (``plan.watermark``), nothing is pushed down. ``steps``: whether steps are, besides the hash.
    """
    node: Node = next(node for node in plan.nodes if isinstance(node, Input) and not node.tag)
    if plan.watermark is not None:
        return node, rows
    fixed = plan.event_time is None
    while steps and (step := _next(plan, node)) is not None:
        step_input = _all_rows(rows) if not fixed and _filters(step) else rows
        made = apply_stateless(step, plan, engine, partial(_only_input, step_input))
        if not _is_stateless(made, step_input):
            break
        node, rows, fixed = step, made, fixed or step_input is not rows
    keys = hashed_by(plan, node, operators, engine.schema(rows))
    return node, rows if keys is None else hashed(rows, keys)


def hashed_by(plan: Plan, node: Node, operators: Mapping[str, KeyedOperator], rows: pa.Schema) -> tuple[str, ...] | None:
    """The keys of the operator that is the only reader of these rows, if it reads them uncombined."""
    match list(_readers(plan, node)):
        case [Keyed() as reader] if _reads_uncombined(operators[reader.name], rows):
            return reader.keys
    return None


def _all_rows(rows: DataFrame) -> DataFrame:
    """All rows, by a condition that always holds and that costs next to nothing. It depends on the number of the partition, which
    Spark takes for non-deterministic: it pushes no condition downstream of it past it."""
    return rows.where(F.spark_partition_id() >= 0)


def _filters(step: Select | Extend | Union) -> bool:
    """Whether the step may drop rows."""
    match step:
        case Select(only=only):
            return only is not None
        case Extend(where=where):
            return where is not None
        case _:
            return True


def _only_input(rows: DataFrame, _: Node) -> DataFrame:
    return rows


def _next(plan: Plan, node: Node) -> Select | Extend | Union | None:
    """The one step that reads all rows of this one, if it can be pushed down."""
    readers = list(_readers(plan, node))
    match readers:
        case [Select() | Extend() as step]:
            return step
    for union in plan.nodes:
        if isinstance(union, Union) and (scan := one_pass(union)) is not None and scan.parent is node:
            between = _between(union, node)
            seen = [reader for step in (node, *between) for reader in _readers(plan, step)]
            if all(reader is union or reader in between for reader in seen):
                return union
    return None


def _readers(plan: Plan, node: Node) -> Iterator[Any]:
    yield from (reader for reader in plan.nodes if node in parents(reader))
    yield from (outlet for outlet in plan.outlets if outlet.node is node)


def _between(union: Union, first: Node) -> list[Node]:
    """The steps from the first one (exclusive) to the union (exclusive)."""
    steps: list[Node] = []
    for node in union.members:
        while node is not first:
            steps.append(node)
            (node,) = parents(node)
    return steps


def _is_stateless(made: DataFrame, of: DataFrame) -> bool:
    """Whether each output row is computed from one input row and nothing else."""
    plan, end = (rows._jdf.queryExecution().analyzed() for rows in (made, of))
    while not plan.fastEquals(end):
        if plan.nodeName() not in _STATELESS or not plan.subqueries().isEmpty():
            return False
        plan = plan.children().head()
    return True


def _reads_uncombined(operator: KeyedOperator, rows: pa.Schema) -> bool:
    """Whether the operator gets rows with their hash: those that are combined before the shuffle may lose it."""
    combiner = operator.traits.combiner
    return combiner is None or HASH in combiner.schema(rows.append(pa.field(HASH, pa.int64()))).names
