"""Moves a running job of Spark's own ``transformWithState`` to the drop-in: its checkpoint becomes a state."""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from floodplain.errors import BadInput
from floodplain.eventtime.times import EpochTimes
from floodplain.operators.kernel.operator import KeyedOperator, added_up
from floodplain.operators.kernel.task_state import task_values_at
from floodplain.runtime.checkpoint.spark_checkpoint import NEXT_WATERMARK
from floodplain.runtime.lease_takeover import take_over
from floodplain.runtime.task import Job
from floodplain.runtime.task_store import Work
from floodplain.scratch import Scratch
from floodplain.settings import StoreSettings
from floodplain.spark.checkpoint_import.state_rows import column_names, state_rows
from floodplain.spark.checkpoint_import.state_writer import ImportedState
from floodplain.spark.checkpoint_import.stock_batch import CheckpointFiles, StockBatch, committed_batch
from floodplain.spark.checkpoint_import.stock_operator import StockOperator, stock_operator
from floodplain.spark.engine import SparkEngine
from floodplain.spark.environment import prepare_workers
from floodplain.spark.operator_names import PROCESSOR
from floodplain.spark.session_conf import settings as session_settings
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.tables import OperatorTables, define
from floodplain.store.store import Store, Writer
from floodplain.store.write.epoch import Epoch
from floodplain.store.write.task_writer import Report
from floodplain.tiers.open import folder_of
from floodplain.tiers.redact import without_credentials
from floodplain.versions.records.assignment import even, groups_of
from floodplain.versions.records.edit import NoteChange, PutDefinition

_ONE_TASK_PER_SLOT = {"spark.sql.adaptive.enabled": "false"}


@dataclass(frozen=True)
class ImportedCheckpoint:
    """What ``import_spark_checkpoint`` has taken over."""

    batch_id: int
    """The last batch whose state and input position these are. The ported job begins with the next one."""
    epoch: int
    """The epoch that has it: the one of this batch."""
    watermark_ms: int | None
    """The watermark that the next batch runs by; None if there was none."""
    states: Mapping[str, int]
    """State variable → its values, elements or entries, those that have expired included."""
    timers: int
    offsets: tuple[str, ...]
    """How far each source was read, in its own words."""
    warnings: tuple[str, ...] = ()
    """What is not as it was, or has to be looked after."""


def import_spark_checkpoint(
    checkpoint: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str],
    spark: SparkSession | None = None,
    batch_id: int | None = None,
    settings: StoreSettings | None = None,
    options: Mapping[str, str] | None = None,
) -> ImportedCheckpoint:
    """Make a new state of the checkpoint of a PySpark ``transformWithState`` or ``transformWithStateInPandas`` query.

    ``fp.transform_with_state`` of the same processor, started with ``state`` as its ``checkpointLocation``, goes on where the
    query was stopped: with its values, lists, maps and timers, the times at which they expire, the watermark, the input
    position, the query id and the batch numbers. The checkpoint is read with Spark's own readers and stays as it is.

    ``state``: a directory or URL without a state; ``settings`` and ``options`` as in ``fp.open``. ``spark``: by default the
    active session. ``batch_id``: a committed batch that the checkpoint still has, by default the last. Nothing is imported of a
    batch that was planned and not committed: the ported job reads its input again.

    Raises ``BadInput`` for a checkpoint of another query, for state that cannot be kept here, and if there is a state already.
    All that is imported is committed at once: whatever fails before leaves a state that has nothing.
    """
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise BadInput("import_spark_checkpoint needs a Spark session, and none is active: pass spark=")
    location, files = os.fspath(state), CheckpointFiles(session, os.fspath(checkpoint))
    with Scratch("import") as folder:
        batch = committed_batch(files, batch_id, folder)
    _check_stopped(session, batch, files.location)
    operator = stock_operator(session, files.location, batch.number)
    if location.startswith("memory://"):
        raise BadInput(f"the tasks of Spark cannot write to {location}: use a directory or an object store")
    target = folder_of(location)
    location = location if target is None else str(target.absolute())
    prepare_workers(session)
    settings, options = settings or StoreSettings(), dict(options or {})
    with closing(Store.open(location, create=True, settings=settings, options=options)) as store:
        _check_new(store, location)
        with take_over(store, f"import_{store.history.randomness.nonce()}") as writer:
            writer.keep()
            counts, epoch = _Import(session, operator, batch, writer, location, settings, options).run()
    return _record(operator, batch, counts, epoch)


def _check_stopped(spark: SparkSession, batch: StockBatch, location: str) -> None:
    """Sessions of one application share what they know of running queries."""
    jvm: Any = spark._jvm
    running: Any = spark._jsparkSession.sharedState().activeStreamingQueries()
    if running.containsKey(jvm.java.util.UUID.fromString(batch.entry.position.query_id)):
        raise BadInput(f"the query at {location} is running: stop it, so that no batch comes after what is imported")


def _check_new(store: Store, location: str) -> None:
    head = store.head
    if head.epoch or head.definitions:
        raise BadInput(
            f"there is a state at {without_credentials(location)} already, at epoch {head.epoch}: import into a new location"
        )


class _Import:
    """One import, from the rows that Spark reads to the commit."""

    def __init__(
        self,
        spark: SparkSession,
        operator: StockOperator,
        batch: StockBatch,
        writer: Writer,
        location: str,
        settings: StoreSettings,
        options: Mapping[str, str],
    ) -> None:
        self._spark, self._stock, self._batch, self._writer = spark, operator, batch, writer
        self._location, self._settings, self._options = location, settings, options
        process = ImportedState(operator.states(), column_names(operator))
        self._operator = KeyedOperator(PROCESSOR, process, operator.key_types)

    def run(self) -> tuple[dict[str, int], int]:
        """How many rows each state has, and the epoch that has them."""
        batch, entry = self._batch, self._batch.entry
        define(self._writer, _without_merges(self._operator.tables))
        watermarks = {EVENT_TIME: entry.watermark_ms} if entry.watermark_ms > 0 else {}
        if batch.next_watermark_ms > entry.watermark_ms:
            watermarks[NEXT_WATERMARK] = batch.next_watermark_ms
        epoch = self._writer.epoch(now_ms=entry.timestamp_ms, watermarks=watermarks, number=batch.number + 1)
        reports, counts = self._written(epoch)
        note = NoteChange(f"import batch {batch.number} of query {entry.position.query_id}")
        epoch.commit(
            reports, source=entry.position, also=[PutDefinition(PROCESSOR, self._stock.definition()), note], published=True
        )
        return counts, epoch.number

    def _written(self, epoch: Epoch) -> tuple[list[Report], dict[str, int]]:
        head, store = self._writer.store.head, self._writer.store
        slots = min(self._spark.sparkContext.defaultParallelism, head.key_groups)
        assignment = even(slots, head.key_groups, 1)
        with session_settings(self._spark, _ONE_TASK_PER_SLOT):
            engine = SparkEngine(self._spark, head.key_groups)
            rows = state_rows(self._stock)
            before = task_values_at(store.snapshot(), self._operator, slots)
            job = Job(
                work=Work(self._location, self._settings, self._options, msgspec.msgpack.encode(epoch.ticket)),
                manifest=head,
                operator=self._operator,
                times=EpochTimes(self._batch.entry.timestamp_ms),
                slots=groups_of(assignment, head.key_groups),
                rows=engine.schema(rows).serialize().to_pybytes(),
                outputs={},
                task_values={slot: before.of(slot) for slot in range(slots)},
                broadcast=_no_rows(),
            )
            reports = engine.run(rows, list(self._operator.keys), {self._operator.name: assignment}, job, None)
        return [report.state for report in reports], added_up(report.measures for report in reports)


def _without_merges(tables: OperatorTables) -> OperatorTables:
    """The first start declares merges, and time to live, which cannot change where there are merges."""
    change = msgspec.structs.replace
    schemas = (change(schema, values=tuple(change(field, merge="") for field in schema.values)) for schema in tables.schemas)
    return replace(tables, schemas=tuple(schemas))


def _no_rows() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([])):
        pass
    return sink.getvalue().to_pybytes()


def _record(operator: StockOperator, batch: StockBatch, counts: Mapping[str, int], epoch: int) -> ImportedCheckpoint:
    uncommitted = (
        f"batch {batch.number + 1} was planned and not committed: the ported job reads its input again. If its sink got some of "
        "that batch already, it gets it twice"
    )
    return ImportedCheckpoint(
        batch_id=batch.number,
        epoch=epoch,
        watermark_ms=max(batch.next_watermark_ms, batch.entry.watermark_ms) or None,
        states={name: counts.get(stored, 0) for name, stored in operator.stored_names.items()},
        timers=counts.get(operator.timer_state or "", 0),
        offsets=tuple(batch.entry.position.offsets.splitlines()[2:]),
        warnings=(uncommitted,) if batch.begun else (),
    )
