"""Which inputs tasks read themselves, without Spark, and how Spark still keeps their watermark and progress."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import TimestampNTZType, TimestampType

from floodplain.errors import short
from floodplain.sources.evaluation import may_fail
from floodplain.sources.event_times import EventTimes
from floodplain.sources.file_log import files_of_batch
from floodplain.sources.parquet import InputFile
from floodplain.sources.partition_columns import PartitionColumn, can_be_read
from floodplain.sources.scan import (
    Column,
    Const,
    Expression,
    Hash,
    MakeStruct,
    Observe,
    ParquetScan,
    Project,
    Step,
    Where,
    children,
    encoded_schema,
    encoded_type,
)
from floodplain.spark.catalyst import OnlySpark, arrow_type, class_name, column_name, items, parsed_type, translated
from floodplain.versions.records.edit import SourcePosition

_NEEDED = {
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.enableNestedColumnVectorizedReader": "true",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.archive.reader.enabled": "false",
}
"""Settings of the session that the native reader goes by, each with Spark's default, which must hold."""
_REBASE = "CORRECTED"
_OPTIONS = {
    *("path", "mergeschema", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "ignoremissingfiles"),
    *("maxfilespertrigger", "maxbytespertrigger", "maxfileage", "latestfirst", "filenameonly", "maxcachedfiles"),
    *("discardcachedinputratio", "cleansource", "sourcearchivedir", "datetimerebasemode", "int96rebasemode"),
}
"""Options of the source that decide which files there are, which is Spark's part, or that are honoured here."""
_METADATA = {
    "EXISTS_DEFAULT": "a column has a default for files without it",
    "__CHAR_VARCHAR_TYPE_STRING": "a column is of the type char or varchar",
}
_GLOB = frozenset("{}[]*?\\")


@dataclass(frozen=True)
class NativeInput:
    """An input that tasks read themselves."""

    scan: ParquetScan
    base: str
    """The folder that the source reads; "" if it has a pattern."""
    partitions: tuple[PartitionColumn, ...] = ()
    """The columns that are in the names of folders below it, in their order."""

    def files(self, position: SourcePosition, before: SourcePosition) -> tuple[InputFile, ...] | str:
        """The files of the batch at ``position``, or why this batch is left to Spark. ``before``: of the batch before it."""
        return files_of_batch(position, before, self.base, self.partitions)


def native_input(rows: DataFrame) -> NativeInput | str:
    """How tasks can read a streaming DataFrame themselves, with the same result as Spark's; or why they cannot.

    It goes by the plan as Spark optimises it: so the watermark is measured on the same rows, and what Spark does not evaluate is
    not evaluated here.
    """
    try:
        return _native_input(rows)
    except OnlySpark as reason:
        return str(reason)


def _native_input(rows: DataFrame) -> NativeInput:
    analyzed = rows._jdf.queryExecution().analyzed()
    spark = rows.sparkSession
    if analyzed.containsPattern(_jvm().org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()):
        raise OnlySpark("the current time, user or database differs from batch to batch")
    # The optimiser goes by the settings of the active session.
    _jvm().org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    try:
        plan = spark._jsparkSession.sessionState().optimizer().execute(analyzed)
    except Py4JJavaError as error:
        raise OnlySpark(f"Spark does not optimise the plan ({short(error.java_exception.toString(), quoted=False)})") from error
    *operators, relation = _chain(plan)
    options = _checked_source(relation)
    setting = _checked_settings(spark.conf.get)
    steps = tuple(step for operator in reversed(operators) for step in _steps(operator))
    output = tuple(map(column_name, items(plan.output())))
    partitions, base = _partition_columns(relation), _base(options.get("path", ""))
    if partitions and not base:
        raise OnlySpark("the input is partitioned, below folders that are given as a pattern")
    read = _read_columns(relation, steps, output, [column.name for column in partitions])
    named = {attribute.name(): column_name(attribute) for attribute in items(relation.output())}
    scan = ParquetScan(
        encoded_schema(pa.schema([pa.field(name, type_) for name, type_ in read.values()])),
        tuple(read),
        steps,
        output,
        encoded_schema(_output_schema(rows)),
        setting("spark.sql.caseSensitive", "false").lower() == "true",
        options.get("datetimerebasemode", setting("spark.sql.parquet.datetimeRebaseModeInRead", _REBASE)).upper(),
        options.get("int96rebasemode", setting("spark.sql.parquet.int96RebaseModeInRead", _REBASE)).upper(),
        tuple((named[column.name], column.name) for column in partitions),
    )
    return NativeInput(scan, base, partitions)


def _jvm() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None
    return context._jvm


def _chain(plan: Any) -> list[Any]:
    """The operators of a plan without branches, from the last to the source."""
    chain = [plan]
    while class_name(chain[-1]) in ("Project", "Filter", "EventTimeWatermark"):
        chain.append(chain[-1].child())
    if class_name(chain[-1]) == "Union":
        raise OnlySpark("a union of several sources is computed by Spark only")
    if class_name(chain[-1]) != "StreamingRelation":
        raise OnlySpark(f"{short(chain[-1].simpleString(25), quoted=False)} is computed by Spark only")
    return chain


def _checked_source(relation: Any) -> dict[str, str]:
    """The options of a source of Parquet files, names in lower case."""
    source = relation.dataSource()
    if source.className().lower() != "parquet":
        raise OnlySpark(f"the format {source.className()} is read by Spark only")
    if source.catalogTable().isDefined():
        raise OnlySpark("the source is a table of the catalog")
    info = source.sourceInfo()
    if not source.partitionColumns().isEmpty():
        raise OnlySpark("the source is given its partition columns")
    if relation.output().size() != info.schema().size():
        raise OnlySpark("metadata of files, as in the column _metadata, is known to Spark only")
    schema = info.schema().json()
    for mark, reason in _METADATA.items():
        if mark in schema:
            raise OnlySpark(f"{reason}, which Spark honours only")
    options = {pair._1().lower(): str(pair._2()) for pair in items(source.options())}
    if unknown := sorted(options.keys() - _OPTIONS):
        raise OnlySpark(f"the option {unknown[0]} of the source is honoured by Spark only")
    return options


def _checked_settings(get: Callable[[str, str], str | None]) -> Callable[[str, str], str]:
    def setting(name: str, default: str) -> str:
        return str(get(name, default))

    for name, value in _NEEDED.items():
        if (present := setting(name, value)).lower() != value:
            raise OnlySpark(f"the setting {name} is {present}, which Spark honours only")
    return setting


def _steps(operator: Any) -> Iterator[Step]:
    match class_name(operator):
        case "Project":
            columns = tuple((column_name(made), translated(made)) for made in items(operator.projectList()))
            _check_repeats([made for _, made in columns])
            yield Project(columns)
        case "Filter":
            condition = translated(operator.condition())
            if not (isinstance(condition, Const) and condition.value is True):
                yield Where(condition)
        case _:
            if not isinstance(parsed_type(operator.eventTime()), TimestampType | TimestampNTZType):
                raise OnlySpark("the watermark is on a column that is no timestamp")
            yield Observe(column_name(operator.eventTime()))


def _check_repeats(columns: Sequence[Expression]) -> None:
    """Spark computes an expression that occurs several times only once, and then in rows, too, that do not need it: if it may
    fail, it fails earlier."""
    always, sometimes = Counter[Expression](), Counter[Expression]()
    for expression, conditional in (each for column in columns for each in _failing(column, conditional=False)):
        (sometimes if conditional else always)[expression] += 1
    if any(count > 1 and not always[expression] for expression, count in sometimes.items()):
        raise OnlySpark("an expression that may overflow occurs several times in parts that are not computed for each row")


def _failing(expression: Expression, *, conditional: bool) -> Iterator[tuple[Expression, bool]]:
    """The expressions in this one that may fail, and whether each is evaluated for some rows only."""
    if may_fail(expression):
        yield expression, conditional
        first, *others = children(expression)
        yield from _failing(first, conditional=conditional)
        skips = not isinstance(expression, MakeStruct | Hash)
        yield from (each for other in others for each in _failing(other, conditional=conditional or skips))


def _partition_columns(relation: Any) -> tuple[PartitionColumn, ...]:
    """The columns that Spark has read in names of folders, in the order of folders."""
    types = {attribute.name(): arrow_type(parsed_type(attribute)) for attribute in items(relation.output())}
    columns = []
    for name in map(str, items(relation.dataSource().sourceInfo().partitionColumns())):
        if name not in types or not can_be_read(types[name]):
            raise OnlySpark(f"the input is partitioned by {name}, of the type {types.get(name)}, which only Spark reads there")
        columns.append(PartitionColumn(name, encoded_type(types[name])))
    return tuple(columns)


def _read_columns(
    relation: Any, steps: tuple[Step, ...], output: tuple[str, ...], others: Sequence[str]
) -> dict[str, tuple[str, pa.DataType]]:
    """Of the source, what is used, without ``others``: name in the plan → name and type."""
    used = {*output, *(name for step in steps for name in _names_in(step))}
    return {
        column_name(attribute): (attribute.name(), arrow_type(parsed_type(attribute)))
        for attribute in items(relation.output())
        if column_name(attribute) in used and attribute.name() not in others
    }


def _names_in(step: Step) -> Iterator[str]:
    match step:
        case Where(condition):
            yield from _columns_in(condition)
        case Project(columns):
            yield from (name for _, made in columns for name in _columns_in(made))
        case Observe(column):
            yield column


def _columns_in(expression: Expression) -> Iterator[str]:
    if isinstance(expression, Column):
        yield expression.name
    for child in children(expression):
        yield from _columns_in(child)


def _output_schema(rows: DataFrame) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow_schema(rows.schema, timezone="UTC")])


def _base(path: str) -> str:
    if _GLOB & set(path):
        return ""
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        raise OnlySpark(f"the folder {path} is not on a local or shared disk")
    return str(Path(path[len(parts.scheme) + 1 :] if parts.scheme else path).absolute())


def observe(query: StreamingQuery, event_times: EventTimes, rows: int) -> None:
    """Tell Spark what was read, while its query is in ``foreachBatch``: event times, which move its watermark, and the number of
    rows, for its progress. Requires: no job of Spark reads this batch."""
    plan = query._jsq.streamingQuery().lastExecution().executedPlan()
    if class_name(plan) == "AdaptiveSparkPlanExec":
        plan = plan.executedPlan()
    for leaf in items(plan.collectLeaves()):
        if class_name(leaf) == "FileSourceScanExec":
            leaf.metrics().apply("numOutputRows").add(rows)
    if not event_times.count:
        return
    operators = _jvm().org.apache.spark.sql.execution.streaming.operators.stateful
    times = (event_times.newest_ms, event_times.oldest_ms, event_times.mean_ms, event_times.count)
    for node in _plan_nodes(plan):
        if class_name(node) == "EventTimeWatermarkExec":
            node.eventTimeStats().merge(operators.EventTimeStatsAccum(operators.EventTimeStats(*times)))


def _plan_nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in items(node.children()):
        yield from _plan_nodes(child)
