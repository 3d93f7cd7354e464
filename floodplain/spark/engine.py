"""Steps of a pipeline as Spark jobs."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from floodplain.errors import BadInput, FloodplainError, UserError, short
from floodplain.eventtime.watermarks import SourceObservation, WatermarkRule
from floodplain.expressions.aliases import has_alias
from floodplain.expressions.identifiers import quoted
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.traits import Combiner
from floodplain.pipeline.stream import SOURCE
from floodplain.plan.nodes import Node, Plan, Rest
from floodplain.plan.single_scan import OnePass
from floodplain.runtime.binder import BoundPlan
from floodplain.runtime.live.operation import ControlOperation
from floodplain.runtime.live.slots import ControlJob, SlotReport
from floodplain.runtime.manifest_feed import ManifestFeed
from floodplain.runtime.staging import Staged, read_staged
from floodplain.runtime.task import Job, StageJob, TaskReport
from floodplain.runtime.task_errors import carried, ours
from floodplain.runtime.task_store import ManifestSource, Work, open_for
from floodplain.spark.exchange import hashed, to_slots
from floodplain.spark.session_conf import SPARKS, ToPython, settings
from floodplain.spark.task_entry import REPORT_SCHEMA, look_at_slot, work
from floodplain.spark.watermark_observer import observed
from floodplain.store.rows.layout import HASH
from floodplain.versions.records.edit import Assignment, RunRef, SourcePosition
from floodplain.versions.records.manifest import Manifest
from floodplain.workers.pushing import in_tables

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_STRICT = {"spark.sql.ansi.enabled": "true"}
"""ANSI mode: a sum that overflows a long is an error instead of wrapping around."""
COMBINED_ROWS = 1 << 18
"""Rows that a task pre-aggregates at a time, which bounds its memory."""
_dumps: Callable[[Any], bytes] = cloudpickle.dumps
TAG = "_input"
"""The column that tells the inputs of a pipeline apart while they travel as one streaming DataFrame."""


class SparkEngine:
    """Runs the jobs of one pipeline. The session of an epoch is Spark's clone for that batch."""

    keeps_rows = False
    moved_slots: int | None = None

    def __init__(self, session: SparkSession, key_groups: int) -> None:
        self._key_groups = key_groups
        self._shuffled: tuple[SparkSession, int] | None = None
        self._to_python = ToPython(session)
        self._with_python: dict[str, bool] = {}
        self._rehash = False
        self._manifests = ManifestFeed(lambda data: _Broadcast(session.sparkContext.broadcast(data)))
        # A relation that Spark knows to be empty is optimised away, and its tasks with it; timers need them.
        self._session = self.use(session.newSession())

    @property
    def description(self) -> str:
        return "tasks: Spark runs a task for each slot in each epoch"

    def follow(self, rows: DataFrame, front: Node, tags: Sequence[str]) -> None:
        """The main input as the streaming query has it, computed up to the step ``front``. ``tags``: those of all inputs."""

    def start(self, bound: BoundPlan, slots: int, name: str) -> None:
        """Before the first epoch. ``name``: what Spark's UI calls the query. Raises ``BadInput`` if this Spark cannot run it."""

    def successor(self, bound: BoundPlan, front: Node | None) -> Callable[[], None]:  # noqa: ARG002
        """Tasks get their operator with their job. Raises ``BadInput`` for one that Spark cannot ship."""
        for operator in bound.operators.values():
            check_ships(f"operator {operator.name}", operator)
        return self._with_python.clear

    def goes_on_from(self, plan: Plan, front: Node, *, rehash: bool) -> None:  # noqa: ARG002
        """The main input of another plan comes computed up to this step of it. ``rehash``: its rows have the hash of other
        keys."""
        self._rehash = rehash

    def prefetch(self, runs: Sequence[RunRef]) -> None:
        """Where tasks of Spark run is not known in advance. Those of the driver's machine find what it keeps in its cache."""

    def give_up(self) -> None:
        """The running epoch ends as soon as it can, however. For any thread. Spark cancels its jobs by itself."""

    def close(self) -> None:
        """After the last epoch. May be called again."""
        self._manifests.close()

    @property
    def pids(self) -> dict[int, int]:
        """Worker → its process, of workers that are registered."""
        return {}

    def concern(self) -> str | None:
        """What is wrong with what runs the epochs, as a warning."""
        return None

    def input_ways(self) -> dict[str, str]:
        """Input → how its rows come to the operators. Empty if Spark shuffles them."""
        return {}

    def inputs(
        self,
        batch: DataFrame,
        tags: Sequence[str],
        position: SourcePosition,  # noqa: ARG002
        before: SourcePosition,  # noqa: ARG002
    ) -> dict[str, Any]:
        """The rows of a micro-batch, by input. ``before``: the position of the batch before it."""
        inputs = untagged(batch, tags)
        return {**inputs, "": inputs[""].drop(HASH)} if self._rehash else inputs

    def batch_done(self, position: SourcePosition) -> None:
        """The epoch of a micro-batch is committed and published."""

    def use(self, session: SparkSession) -> SparkSession:
        """Run the next jobs in this session, without adaptive execution: every slot must have its task."""
        session.conf.set("spark.sql.adaptive.enabled", "false")
        self._to_python.use(session)
        self._session = session
        return session

    def schema(self, rows: DataFrame) -> pa.Schema:
        schema = to_arrow_schema(rows.schema, timezone="UTC")
        return pa.schema([pa.field(f.name, f.type) for f in schema])

    def empty(self, schema: pa.Schema) -> DataFrame:
        return self._session.createDataFrame(self._session.sparkContext.emptyRDD(), from_arrow_schema(schema))

    def transform(self, rows: DataFrame, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
        try:
            return function(rows)
        except (FloodplainError, *SPARKS):
            raise
        except Exception as error:
            raise UserError.in_function("transform", function, error) from error

    def select(self, rows: DataFrame, columns: Sequence[tuple[str, Any]], only: tuple[str, str] | None) -> DataFrame:
        if only is not None:
            rows = rows.where(F.col(quoted(only[0])) == only[1])
        if all(isinstance(made, str) and not has_alias(made) for _, made in columns):
            return rows.selectExpr(*[f"{made} as {quoted(name)}" for name, made in columns])  # one call into the JVM
        return rows.select(*[column.alias(name) for name, made in columns for column in _columns(rows, made)])

    def extend(self, rows: DataFrame, columns: Sequence[tuple[str, Any]], where: Any) -> DataFrame:
        if where is not None:
            rows = rows.where(where)
        return rows.withColumns({name: F.expr(made) if isinstance(made, str) else made for name, made in columns})

    def combined(self, rows: DataFrame, combiner: Combiner, slots: int) -> DataFrame:
        made = combiner.sql()
        if made is None:
            schema = self.schema(rows)
            made_of = combiner.schema(schema)
            both = [each.serialize().to_pybytes() for each in (schema, made_of)]
            return rows.mapInArrow(partial(combine, combiner, *both), from_arrow_schema(made_of))
        self._shuffled = (rows.sparkSession, slots)
        with settings(rows.sparkSession, _STRICT):
            return rows.groupBy(*map(F.expr, made.by)).agg(*map(F.expr, made.computed)).selectExpr(*made.columns)

    def union(self, members: Sequence[DataFrame]) -> DataFrame:
        return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), members)

    def parted(self, rows: DataFrame, parts: OnePass) -> DataFrame:
        return rows.where(parts.where()).selectExpr(*parts.sql())

    def read(self, staged: Staged, place: Work) -> DataFrame:
        """A DataFrame whose tasks read the staged files themselves, wherever they are."""
        count = max(len(staged.files), 1)
        numbers = self._session.range(0, count, 1, count)
        return numbers.mapInArrow(partial(_read, staged, place), from_arrow_schema(staged.schema))

    def run(
        self,
        rows: DataFrame | Staged,
        keys: Sequence[str],
        assignments: Mapping[str, Assignment],
        job: Job,
        row_bytes: float | None,
    ) -> list[TaskReport]:
        assignment = assignments[job.operator.name]
        if isinstance(rows, Staged):
            task_input = self._session.range(0, assignment.slots, 1, assignment.slots)
        else:
            row_bytes = None if self._has_python(job.operator.name, rows) else row_bytes
            schema = pa.ipc.read_schema(pa.py_buffer(job.rows))
            if HASH not in schema.names:
                rows, schema = hashed(rows, keys), schema.append(pa.field(HASH, pa.int64()))
                job = replace(job, rows=schema.serialize().to_pybytes())
            task_input = to_slots(rows, assignment, self._key_groups)
        with self._shuffles(), self._to_python.sending(task_input.sparkSession, row_bytes):
            return _reports(task_input, replace(job, manifest=self._sent(job.manifest)))

    def _sent(self, manifest: Manifest | ManifestSource) -> ManifestSource:
        return self._manifests.send(manifest) if isinstance(manifest, Manifest) else manifest

    def _has_python(self, operator: str, rows: DataFrame) -> bool:
        """Whether the plan upstream of the operator runs Python, which changes the size of rows in ways we do not measure."""
        if operator not in self._with_python:
            plan = rows._jdf.queryExecution().optimizedPlan().toString()
            self._with_python[operator] = re.search("Python|InPandas|InArrow", plan) is not None
        return self._with_python[operator]

    def _shuffles(self) -> AbstractContextManager[None]:
        """Spark shuffles pre-aggregated rows. It gets as many shuffle partitions as there are slots, not Spark's default of 200
        nor the setting of the user's session."""
        if self._shuffled is None:
            return nullcontext()
        (session, slots), self._shuffled = self._shuffled, None
        return settings(session, {_SHUFFLE_PARTITIONS: str(slots)})

    def look(self, job: ControlJob) -> list[SlotReport]:
        """Runs a control operation in all slots, as a job with a task for each. Spark tries tasks that are lost again."""
        slots = len(job.slots)
        check_ships(f"control operation {job.operation.name}", job.operation)
        with ours():
            collected = self._session.range(0, slots, 1, slots).mapInArrow(partial(look_at_slot, job), REPORT_SCHEMA).collect()
        return [msgspec.msgpack.decode(row.report, type=SlotReport) for row in collected]

    def stage(self, rows: DataFrame, job: StageJob) -> list[TaskReport]:
        return _reports(rows, job)

    def collect(self, rows: DataFrame) -> pa.Table:
        with ours():
            return rows.toArrow().cast(self.schema(rows))

    def end_epoch(self) -> None:
        """Nothing is kept."""

    def measure(
        self, rows: DataFrame, rule: WatermarkRule, now_ms: int
    ) -> tuple[DataFrame, Callable[[], Mapping[str, SourceObservation]]]:
        return observed(rows, rule, now_ms)


def check_ships(what: str, code: KeyedOperator | ControlOperation) -> None:
    """Raises ``BadInput`` if Spark cannot ship it."""
    try:
        _dumps(code)
    except Exception as error:
        raise BadInput(
            f"{what} cannot be sent to tasks of Spark: {type(error).__name__}: {short(str(error), quoted=False)}. DataFrames and "
            "pipelines stay in the driver: a control operation keeps a pipeline in an fp.Update"
        ) from error


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """Bytes that Spark brings to an executor once, and a Python process reads from its disk."""

    broadcast: Any

    def bytes(self) -> bytes:
        data: bytes = self.broadcast.value
        return data

    def close(self) -> None:
        with suppress(*SPARKS):
            self.broadcast.destroy()


def _columns(rows: DataFrame, made: Any) -> list[Any]:
    """The requested column; none if it is the rest of the row and there is none."""
    if isinstance(made, Rest):
        rest = [F.col(quoted(name)) for name in rows.columns if name not in made.but]
        return [F.struct(*rest)] if rest else []
    return [F.expr(made) if isinstance(made, str) else made]


def _reports(rows: DataFrame, job: Job | StageJob) -> list[TaskReport]:
    """Runs the job. If tasks fail with one of our errors, the one of the lowest slot is raised and the epoch is not committed."""
    with ours():
        collected = rows.mapInArrow(partial(work, job), REPORT_SCHEMA).collect()
    reports = [msgspec.msgpack.decode(row.report, type=TaskReport) for row in collected]
    failed = [report for report in reports if report.failure is not None]
    for report in sorted(failed, key=lambda report: report.slot)[:1]:
        assert report.failure is not None
        raise report.failure.error()
    return reports


def combine(combiner: Combiner, input_: bytes, output: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combines rows before the shuffle, ``COMBINED_ROWS`` at a time. ``input_``, ``output``: serialized schemas."""
    rows_schema, made_schema = (pa.ipc.read_schema(pa.py_buffer(each)) for each in (input_, output))
    with carried():
        for rows in in_tables(batches, COMBINED_ROWS):
            yield from combiner(rows.cast(rows_schema)).cast(made_schema).to_batches()


def _read(staged: Staged, place: Work, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with carried():
        blobs = open_for(place).blobs
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_staged(replace(staged, files=staged.files[number : number + 1]), blobs).to_batches()


def union_of(sources: Mapping[str, DataFrame]) -> DataFrame:
    """The only source as it is, or the union of several, with a column that names the source of a row."""
    if "" in sources:
        return sources[""]
    types: dict[str, tuple[str, Any]] = {}
    for tag, rows in sources.items():
        if SOURCE in rows.columns:
            raise BadInput(f"source {tag} has a column called {SOURCE}, which is to name the source of a row: rename it")
        for field in rows.schema.fields:
            other, type_ = types.setdefault(field.name, (tag, field.dataType))
            if type_ != field.dataType:
                raise BadInput(
                    f"column {field.name} is {type_.simpleString()} in source {other} and {field.dataType.simpleString()} in "
                    f"{tag}: cast or rename one of them"
                )
    named = [rows.withColumn(SOURCE, F.lit(tag)) for tag, rows in sources.items()]
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), named)


def tagged(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The union of all inputs as one DataFrame, so that one epoch covers them all. A struct has the columns of an input."""
    if len(inputs) == 1:
        return next(iter(inputs.values()))
    parts = [
        rows.select(F.lit(tag).alias(TAG), F.struct(*[F.col(quoted(name)) for name in rows.columns]).alias(_struct(tag)))
        for tag, rows in inputs.items()
    ]
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)


def untagged(batch: DataFrame, tags: Sequence[str]) -> dict[str, Any]:
    """Splits what ``tagged`` has united into the inputs again."""
    if len(tags) == 1:
        return {tags[0]: batch}
    return {tag: batch.where(F.col(TAG) == tag).select(f"{_struct(tag)}.*") for tag in tags}


def _struct(tag: str) -> str:
    return f"_rows_{tag}"
