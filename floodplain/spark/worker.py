"""The task side: rows of one slot come in as Arrow batches, one report goes out."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from floodplain.clock import SystemChance, SystemClock
from floodplain.errors import BadInput
from floodplain.eventtime.times import EpochTimes
from floodplain.metrics import Counters
from floodplain.operators.keyed import KeyedTask
from floodplain.operators.operator import KeyedOperator
from floodplain.settings import StoreSettings
from floodplain.store.readers import Readers
from floodplain.store.task import Report, TaskWriter, Ticket
from floodplain.store.view import Snapshot
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.create import create_or_read
from floodplain.tiers.open import open_blobs
from floodplain.versions.edit import GroupRanges
from floodplain.versions.history import Format, History
from floodplain.versions.manifest import Manifest

REPORT_SCHEMA = "report binary"


class TaskReport(msgspec.Struct, frozen=True):
    """What a task of an operator returns."""

    slot: int
    state: Report
    output: str
    """Name of the staged output; empty if there is none."""
    output_rows: int
    rows: int
    keys: int
    late: int
    max_event_ms: int | None
    busy_ms: int


@dataclass(frozen=True)
class Job:
    """All that the tasks of one operator in one epoch need; shipped with the function by Spark."""

    location: str
    settings: StoreSettings
    options: Mapping[str, str]
    ticket: bytes
    manifest: bytes
    operator: KeyedOperator
    times: EpochTimes
    slots: tuple[GroupRanges, ...]
    rows: bytes
    """The Arrow schema of the rows."""


class _Place:
    """A store as this worker process has it open; workers live on between epochs, and so does what they mapped."""

    def __init__(self, job: Job, store: str) -> None:
        self.clock, self.chance = SystemClock(), SystemChance()
        self.blobs: Blobs = open_blobs(
            job.location, job.settings, options=job.options, clock=self.clock, chance=self.chance, counters=Counters()
        )
        self.readers = Readers(self.blobs, store, job.settings.memory_bytes)


_places: dict[tuple[str, str], _Place] = {}


def worker(job: Job) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise BadInput("a task of Floodplain runs inside a Spark task")
        schema = pa.ipc.read_schema(pa.py_buffer(job.rows))
        held = list(batches)
        rows = pa.Table.from_batches(held).cast(schema) if held else schema.empty_table()
        report = run_task(job, context.partitionId(), f"{context.partitionId()}-{context.taskAttemptId()}", rows)
        yield pa.record_batch({"report": pa.array([msgspec.msgpack.encode(report)], pa.binary())})

    return work


def run_task(job: Job, slot: int, part: str, rows: pa.Table) -> TaskReport:
    """One task: what Spark calls, and what tests call without Spark."""
    ticket = msgspec.msgpack.decode(job.ticket, type=Ticket)
    manifest = msgspec.msgpack.decode(job.manifest, type=Manifest)
    if (job.location, ticket.store) not in _places:
        _places[job.location, ticket.store] = _Place(job, ticket.store)
    place = _places[job.location, ticket.store]
    started_s = place.clock.monotonic_s()
    history = History(
        place.blobs, Format(ticket.store, ticket.key_groups, 0), settings=job.settings, clock=place.clock, chance=place.chance
    )
    history.advance(manifest)
    place.readers.keep_only(run for runs in manifest.runs.values() for run in runs)
    writer = TaskWriter(ticket, place.blobs, job.settings, place.clock, place.chance, operator=job.operator.name, part=part)
    task = KeyedTask(job.operator, Snapshot(manifest, place.readers, history), writer, job.times, job.slots[slot])
    outcome = task.run(rows)
    state = writer.finish()
    output = _stage(outcome.output, job, ticket, part, place) if len(outcome.output) else ""
    return TaskReport(
        slot=slot,
        state=state,
        output=output,
        output_rows=len(outcome.output),
        rows=outcome.rows,
        keys=outcome.keys,
        late=outcome.late,
        max_event_ms=outcome.max_event_ms,
        busy_ms=int((place.clock.monotonic_s() - started_s) * 1000),
    )


def _stage(rows: pa.Table, job: Job, ticket: Ticket, part: str, place: _Place) -> str:
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="lz4")
    name = paths.staged(ticket.start, f"{ticket.token}-{ticket.epoch}-{ticket.attempt}", f"{job.operator.name}-{part}")
    if create_or_read(place.blobs, name, sink.getvalue(), job.settings.retry, place.clock, place.chance) is not None:
        raise BadInput(f"{name} was staged already by another task")
    return name
