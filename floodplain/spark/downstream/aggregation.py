"""Spark's streaming aggregation as a step: ``groupBy(…)`` with ``count()``, ``agg(…)`` and the like."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.types import DataType

from floodplain.expressions.identifiers import quoted
from floodplain.operators.aggregates import functions
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.expiring import ExpiringAggregate
from floodplain.operators.aggregates.running import RunningAggregate
from floodplain.operators.kernel.process import Process
from floodplain.pipeline.stream import Stream
from floodplain.spark.downstream.plans import (
    DELAY,
    Fragment,
    analyzed,
    as_frame,
    items,
    kind_of,
    literal,
    named,
    projected,
    rewritten,
    sequence,
    type_of,
    unique_names,
    unused,
)
from floodplain.spark.downstream.refused import refused
from floodplain.spark.downstream.steps import BuiltIn, Chain, is_window, keyed
from floodplain.spark.operator_names import AGGREGATE
from floodplain.store.store import Store

SESSION, WINDOW = "spark.sessionWindow", "spark.timeWindow"
_FUNCTIONS: dict[str, Callable[..., Aggregate]] = {
    "avg": functions.avg,
    "count": functions.count,
    "max": functions.max,
    "max_by": functions.max_by,
    "mean": functions.avg,
    "min": functions.min,
    "min_by": functions.min_by,
    "sum": functions.sum,
}
"""Spark's functions that ours are equal to, by their names in Spark."""
_ALL = "_all"
"""The key column of an aggregation without keys."""
_LONGEST = 200
"""Of the name of a column that holds an argument, which is its expression."""


@dataclass(frozen=True)
class Key:
    """A grouping expression: as one column, or a window as two, since its end is the event time."""

    expression: Any
    columns: tuple[str, ...]
    is_window: bool = False

    def made(self, jvm: Any) -> list[Any]:
        if not self.is_window:
            return [named(jvm, self.expression, self.columns[0])]
        catalyst = jvm.org.apache.spark.sql.catalyst.expressions
        parts = [catalyst.GetStructField(self.expression, at, jvm.scala.Option.apply(None)) for at in range(2)]
        return [named(jvm, part, name) for part, name in zip(parts, self.columns, strict=True)]

    def back(self, jvm: Any, columns: Mapping[str, Any]) -> Any:
        """The value of the expression, from the columns of the output."""
        if not self.is_window:
            return columns[self.columns[0]]
        catalyst = jvm.org.apache.spark.sql.catalyst.expressions
        parts = [part for name, column in zip(("start", "end"), self.columns, strict=True) for part in (name, columns[column])]
        return catalyst.CreateNamedStruct(
            sequence(jvm, [literal(jvm, part) if isinstance(part, str) else part for part in parts])
        )


@dataclass(frozen=True)
class Call:
    """One aggregate function: the column of its result, and those of its arguments."""

    expression: Any
    column: str
    aggregate: Aggregate
    arguments: tuple[tuple[str, Any], ...]
    type: DataType


@dataclass(frozen=True)
class Aggregation(BuiltIn):
    """Aggregates by key. The output has the columns of the keys and of the aggregates."""

    name: str
    input: Fragment
    keys: tuple[Key, ...]
    calls: tuple[Call, ...]
    until: str | None = None
    """The column of the key that is the event time."""

    def applied(self, stream: Stream, store: Store, mode: str) -> Stream:  # noqa: ARG002
        aggregates = {call.column: call.aggregate for call in self.calls}
        process: Process = RunningAggregate(aggregates)
        if self.until is not None:
            process = ExpiringAggregate(aggregates, self.until, "update" if mode == "update" else "append")
        keys = tuple(name for key in self.keys for name in key.columns) or (_ALL,)
        return keyed(stream, self._rows, self.name, keys, process, self.until)

    def _rows(self, rows: DataFrame) -> DataFrame:
        jvm = rows.sparkSession._jvm
        columns = [column for key in self.keys for column in key.made(jvm)]
        arguments = dict(argument for call in self.calls for argument in call.arguments)
        columns += [named(jvm, expression, name) for name, expression in arguments.items()]
        made = as_frame(rows, projected(jvm, columns, self.input.plan(rows)))
        return made if self.keys else _with_its_only_key(made)


def _with_its_only_key(rows: DataFrame) -> DataFrame:
    """Without keys Spark gives a result in every batch, with rows or without: so a row without values always comes."""
    empty = rows.sparkSession.range(1).select(*[F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema])
    return rows.unionByName(empty).withColumn(_ALL, F.lit(0))


@dataclass(frozen=True)
class Results:
    """The plan of what an aggregation gives: Spark's result expressions over the columns of keys and aggregates."""

    step: Aggregation
    expressions: tuple[Any, ...]
    is_plain: bool = False

    def __call__(self, rows: DataFrame) -> Any:
        jvm = rows.sparkSession._jvm
        types = {call.column: call.type for call in self.step.calls}
        columns = [F.col(quoted(name)) for name in rows.columns]
        cast = rows.select(
            *[column.cast(types[name]) if name in types else column for name, column in zip(rows.columns, columns, strict=True)]
        )
        base = analyzed(cast)
        present = {column.name(): column for column in items(base.output())}

        def other(expression: Any) -> Any:
            for key in self.step.keys:
                if expression.semanticEquals(key.expression):
                    return key.back(jvm, present)
            if kind_of(expression) == "AggregateExpression":
                return next(present[call.column] for call in self.step.calls if expression.semanticEquals(call.expression))
            return None

        made = []
        for expression in self.expressions:
            value = other(expression)
            result = rewritten(jvm, expression, other) if value is None else named(jvm, value, expression.name(), expression)
            made.append(result)
        return projected(jvm, made, base)


def aggregated(node: Any, chain: Chain) -> Chain:
    """The chain with an ``Aggregate`` of Spark's plan."""
    keys = tuple(items(node.groupingExpressions()))
    timed = [key for key in keys if hasattr(key, "metadata") and _marked(key, DELAY)]
    _check(keys, timed, chain)
    wanted = [key.name() if hasattr(key, "name") else key.sql() for key in keys]
    made = _keys(keys, timed, wanted)
    until = next((key.columns[-1] for key in made if key.expression in timed), None)
    results = tuple(items(node.aggregateExpressions()))
    calls = _calls(results, [_ALL, *(name for key in made for name in key.columns)], bool(keys))
    step = Aggregation(chain.named(AGGREGATE), chain.last, made, calls, until)
    return chain.then(step, Fragment(Results(step, results)))


def _marked(key: Any, mark: str) -> bool:
    return kind_of(key) == "AttributeReference" and bool(key.metadata().contains(mark))


def _check(keys: tuple[Any, ...], timed: list[Any], chain: Chain) -> None:
    for key in keys:
        if _marked(key, SESSION):
            raise refused("session_window", "sessions are merged by Spark's own operator: use window(…) of a fixed length")
    if timed and not chain.has_watermark:
        raise refused("an aggregation by event time", "in Spark no watermark passes a step of processing time")


def _keys(keys: tuple[Any, ...], timed: list[Any], wanted: list[str]) -> tuple[Key, ...]:
    windows = [is_window(key) and (key in timed or _marked(key, WINDOW)) for key in keys]
    names = [[f"{name}_start", f"{name}_end"] if two else [name] for name, two in zip(wanted, windows, strict=True)]
    unique = iter(unique_names(name for both in names for name in both))
    return tuple(Key(key, tuple(next(unique) for _ in both), two) for key, both, two in zip(keys, names, windows, strict=True))


def _calls(results: tuple[Any, ...], taken: list[str], has_keys: bool) -> tuple[Call, ...]:
    distinct: list[Any] = []
    for result in results:
        for each in _aggregates_in(result):
            if not any(each.semanticEquals(other) for other in distinct):
                distinct.append(each)
    made: list[Call] = []
    for each in distinct:
        made.append(_call(each, [*taken, *(call.column for call in made)], made, has_keys))
    return tuple(made)


def _aggregates_in(expression: Any) -> list[Any]:
    if kind_of(expression) == "AggregateExpression":
        return [expression]
    return [each for child in items(expression.children()) for each in _aggregates_in(child)]


def _call(expression: Any, taken: list[str], before: list[Call], has_keys: bool) -> Call:
    function = expression.aggregateFunction()
    kind, text = _FUNCTIONS.get(function.prettyName()), expression.sql()
    if kind is None or expression.isDistinct():
        known = ", ".join(sorted(_FUNCTIONS))
        raise refused(text, f"of aggregates {known} are, each over all rows; for others use transformWithState")
    present = [argument for call in before for argument in call.arguments]
    arguments: list[tuple[str, Any]] = []
    for child in items(function.children()):
        if has_keys and kind is functions.count and not child.nullable():
            continue
        arguments.append(_argument(child, [*present, *arguments], taken))
    where = None
    if expression.filter().isDefined():
        where = _argument(expression.filter().get(), [*present, *arguments], taken)
    aggregate = kind(*[name for name, _ in arguments], where=None if where is None else where[0])
    columns = arguments if where is None else [*arguments, where]
    column = unused(text[:_LONGEST], [*taken, *(name for name, _ in [*present, *columns])])
    return Call(expression, column, aggregate, tuple(columns), type_of(expression))


def _argument(expression: Any, present: list[tuple[str, Any]], taken: list[str]) -> tuple[str, Any]:
    """The column of an argument: one that is there already, or another."""
    for name, other in present:
        if expression.semanticEquals(other):
            return name, other
    return unused(f"of {expression.sql()[:_LONGEST]}", [*taken, *(name for name, _ in present)]), expression
