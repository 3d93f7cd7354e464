"""Parts of Spark's analysed plans, applied to the rows of an epoch.

A plan refers to columns by ids, not by names. So what Spark has analysed between two stateful steps of a stream is put onto
the rows of an epoch as it is: over a projection that gives these the ids of the columns in whose place they stand.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.types import DataType, StructType

EVENT_TIME_NODE = "UpdateEventTimeWatermarkColumn"
DELAY = "spark.watermarkDelayMs"
"""Where Spark notes an event-time column's watermark delay, in its metadata."""


def kind_of(node: Any) -> str:
    """The class of a plan's node or of an expression."""
    return str(node.getClass().getSimpleName())


def items(sequence: Any) -> Iterator[Any]:
    """Of a Scala sequence."""
    return (sequence.apply(at) for at in range(sequence.size()))


def sequence(jvm: Any, members: Iterable[Any]) -> Any:
    """As a Scala sequence."""
    made = jvm.java.util.ArrayList()
    for member in members:
        made.add(member)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(made).toSeq()


def analyzed(rows: Any) -> Any:
    return rows._jdf.queryExecution().analyzed()


def rewritten(jvm: Any, expression: Any, other: Callable[[Any], Any]) -> Any:
    """The expression with those parts replaced for which ``other`` gives something."""
    made = other(expression)
    if made is not None:
        return made
    children = list(items(expression.children()))
    if not children:
        return expression
    return expression.withNewChildren(sequence(jvm, [rewritten(jvm, child, other) for child in children]))


def named(jvm: Any, expression: Any, name: str, like: Any = None) -> Any:
    """The expression as a column. ``like``: the attribute whose id it gets; by default a new one."""
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    identity = catalyst.NamedExpression.newExprId() if like is None else like.exprId()
    none, empty = jvm.scala.Option.apply(None), sequence(jvm, [])
    return catalyst.Alias(expression, name, identity, empty, none, empty)


def literal(jvm: Any, value: Any) -> Any:
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    return getattr(getattr(catalyst, "Literal$"), "MODULE$").apply(value)


def projected(jvm: Any, columns: Iterable[Any], child: Any) -> Any:
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(sequence(jvm, columns), child)


def as_frame(rows: DataFrame, plan: Any) -> DataFrame:
    """A DataFrame of the session of ``rows``."""
    session: Any = rows.sparkSession
    return ClassicFrame(session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def unused(name: str, taken: Iterable[str]) -> str:
    """The name, with a number if it is taken. Case is ignored, as in Spark."""
    lower = {other.lower() for other in taken}
    choices = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(choice for choice in choices if choice.lower() not in lower)


def unique_names(wanted: Iterable[str]) -> list[str]:
    """These names, with a number where one was there before."""
    made: list[str] = []
    for name in wanted:
        made.append(unused(name, made))
    return made


def type_of(expression: Any) -> DataType:
    field = {"name": "_", "type": json.loads(expression.dataType().json()), "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType


class Planted(Protocol):
    """What a plan begins with."""

    def __call__(self, rows: DataFrame) -> Any:
        """The rows as a plan, with the ids that nodes above it refer to."""

    @property
    def is_plain(self) -> bool:
        """Whether it changes no names and no columns."""


@dataclass(frozen=True)
class ByPosition:
    """The first columns of the rows, in the order of these attributes."""

    attributes: tuple[Any, ...]
    is_plain: bool = True

    def __call__(self, rows: DataFrame) -> Any:
        jvm, base = rows.sparkSession._jvm, analyzed(rows)
        present = items(base.output())
        columns = [named(jvm, column, like.name(), like) for column, like in zip(present, self.attributes, strict=False)]
        return projected(jvm, columns, base)


@dataclass(frozen=True)
class Fragment:
    """Stateless nodes above what a stateful step gives, from bottom to top; each with the number of the child that it reads."""

    begin: Planted
    nodes: tuple[tuple[Any, int], ...] = ()

    def under(self, node: Any, child: int = 0) -> "Fragment":
        """With one more node on top."""
        return self if kind_of(node) == EVENT_TIME_NODE else replace(self, nodes=(*self.nodes, (node, child)))

    @property
    def is_plain(self) -> bool:
        return not self.nodes and self.begin.is_plain

    def plan(self, rows: DataFrame) -> Any:
        jvm, plan = rows.sparkSession._jvm, self.begin(rows)
        for node, child in self.nodes:
            children = list(items(node.children()))
            children[child] = plan
            plan = node.withNewChildren(sequence(jvm, children))
        return plan

    def __call__(self, rows: DataFrame) -> DataFrame:
        return as_frame(rows, self.plan(rows))
