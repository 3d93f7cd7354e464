"""What Spark calls for each partition: rows in, one report out."""

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from floodplain.runtime.live.slots import ControlJob, look
from floodplain.runtime.resources import close_when_spark_ends, opens
from floodplain.runtime.task import Job, StageJob, TaskReport, run_task, stage_task
from floodplain.runtime.task_errors import FINAL, Failure, carried

REPORT_SCHEMA = "report binary"


_modules_seen = 0


def work(job: Job | StageJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark runs for each partition. A function by its name: one that is defined in another takes longer to send."""
    context: Any = TaskContext.get()
    slot, part = context.partitionId(), f"{context.partitionId()}-{context.taskAttemptId()}"
    if isinstance(job, Job) and opens(job.operator.process):
        close_when_spark_ends()
    report = _report(job, slot, part, batches)
    for _ in batches:
        pass  # Spark ends a worker that leaves some of its input unread, and starting the next one takes a second
    freeze_modules()
    yield pa.record_batch({"report": pa.array([msgspec.msgpack.encode(report)], pa.binary())})


def look_at_slot(job: ControlJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark runs for each slot that a control operation looks at."""
    context: Any = TaskContext.get()
    with carried():
        report = look(job, context.partitionId())
    for _ in batches:
        pass
    yield pa.record_batch({"report": pa.array([msgspec.msgpack.encode(report)], pa.binary())})


def _report(job: Job | StageJob, slot: int, part: str, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    with carried():
        try:
            return run_task(job, slot, part, batches) if isinstance(job, Job) else stage_task(job, slot, part, batches)
        except FINAL as error:
            return TaskReport(slot=slot, failure=Failure.of(error))


def freeze_modules() -> None:
    """Spark runs a full garbage collection in a worker after each task. Most objects it walks through belong to modules: once
    new modules were loaded, freeze them so that later collections skip them."""
    global _modules_seen
    if len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        gc.collect()
        gc.freeze()
