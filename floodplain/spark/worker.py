"""The task side: rows of one slot come in as Arrow batches, one report goes out."""

import gc
import io
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.clock import Clock, SystemChance, SystemClock
from floodplain.errors import BadInput
from floodplain.eventtime.times import EpochTimes
from floodplain.keys import hash_columns, normalize_keys
from floodplain.metrics import Counters
from floodplain.operators.operator import KeyedOperator
from floodplain.operators.resources import HERE, Resources, close_when_spark_ends, opens
from floodplain.operators.spill import Spill, run_buckets
from floodplain.operators.tasklevel import TaskLevel
from floodplain.settings import StoreSettings
from floodplain.spark.conditions import Comparison
from floodplain.spark.failures import FINAL, Failure, carried
from floodplain.spark.fitness import Check, check_fits
from floodplain.spark.plan import MAIN
from floodplain.spark.sink import as_parquet
from floodplain.store.readers import Readers
from floodplain.store.task import Report, TaskWriter, Ticket
from floodplain.store.view import Snapshot
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.create import create_or_read
from floodplain.tiers.open import open_blobs
from floodplain.versions.assignment import slot_of_each_group, slots_of
from floodplain.versions.edit import GroupRanges
from floodplain.versions.history import Format, History
from floodplain.versions.manifest import Manifest
from floodplain.versions.vouched import FileSum, check, checked

REPORT_SCHEMA = "report binary"
SAMPLE_ROWS = 1000
"""Rows that tell how a file of them is best written."""


class StagedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Output rows of one task, as a Parquet file among the store's blobs."""

    name: str
    rows: int
    sum: FileSum
    """As the task that wrote it computed it."""
    parts: tuple[int, ...] = ()
    """Slot of the next operator → the row group that holds its rows, or -1; empty if the rows are not split."""
    pieces: tuple[FileSum, ...] = ()
    """Of rows that are split: the file in pieces, one for each row group and one for what follows them."""

    def check(self, part: int, data: pa.Buffer) -> None:
        """Raises ``Corrupt`` unless all that a reader of this row group uses is as it was written; of all of them if it is -1."""
        author = paths.token_and_epoch_of(self.name)
        last_good = None if author is None else max(author[1] - 1, 0)
        if part < 0 or data.size != self.sum.length:
            check(self.name, self.sum, data, last_good)
            return
        starts = [0, *accumulate(piece.length for piece in self.pieces)]
        for number in (part, len(self.pieces) - 1):
            piece = self.pieces[number]
            check(self.name, piece, data.slice(starts[number], piece.length), last_good, starts[number])


@dataclass(frozen=True, slots=True)
class Staged:
    """All rows of one output of an operator in this epoch: exactly the files that the winning reports name."""

    files: tuple[StagedFile, ...]
    schema: pa.Schema
    where: tuple[Comparison, ...] = ()
    """Only rows for which all of these hold."""


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task of an operator returns."""

    slot: int
    state: Report = Report()
    outputs: dict[str, StagedFile] = {}
    """Of the outputs that somebody reads, those that have rows."""
    rows: int = 0
    keys: int = 0
    received: int = 0
    """What rows came as: fewer, if some were put together before."""
    received_bytes: int = 0
    late: int = 0
    dead: int = 0
    early: int = 0
    ignored: int = 0
    task_values: bytes = b""
    """As ``operators/tasklevel.py`` encodes them."""
    warnings: tuple[str, ...] = ()
    max_event_ms: int | None = None
    busy_ms: int = 0
    failure: Failure | None = None
    """What the task ended with instead of all the rest, where trying it again would not help."""


@dataclass(frozen=True, slots=True)
class Work:
    """Where and for which epoch tasks work; shipped with the function by Spark."""

    location: str = field(repr=False)
    settings: StoreSettings
    options: Mapping[str, str] = field(repr=False)
    ticket: bytes
    blobs: Blobs | None = None
    """Given where tasks run in the process of the driver; else each process opens its own."""


@dataclass(frozen=True, slots=True)
class Job:
    """All that the tasks of one operator in one epoch need."""

    work: Work
    manifest: bytes
    operator: KeyedOperator
    times: EpochTimes
    slots: tuple[GroupRanges, ...]
    rows: bytes
    """The Arrow schema of the rows."""
    outputs: Mapping[str, tuple[str, ...]]
    """The outputs that somebody reads → the key columns to split them by for the next operator, if it reads them directly."""
    task_values: tuple[bytes, ...]
    """Slot → the task values that it begins with."""
    broadcast: bytes
    """The rows of the broadcast input, as an Arrow stream."""
    staged: Staged | None = None
    """Where the rows are, if they come straight from another operator."""
    checks: Mapping[str, tuple[Check, ...]] = field(default_factory=dict)
    """Output → what its sinks ask of rows."""


@dataclass(frozen=True, slots=True)
class StageJob:
    """Rows that no operator of ours made are staged as they are."""

    work: Work
    name: str
    rows: bytes
    checks: tuple[Check, ...] = ()
    """What the sinks ask of rows."""


@dataclass
class _Place:
    """A store as this worker process has it open; workers live on between epochs, and so does what they mapped."""

    blobs: Blobs
    readers: Readers
    clock: SystemClock = field(default_factory=SystemClock)
    chance: SystemChance = field(default_factory=SystemChance)


_places: dict[tuple[str, str], _Place] = {}
_modules_seen = 0


def open_for(work: Work) -> _Place:
    """The store that this work is for."""
    ticket = msgspec.msgpack.decode(work.ticket, type=Ticket)
    if work.blobs is not None:
        return _Place(work.blobs, _readers(work, ticket, work.blobs))
    if (work.location, ticket.store) not in _places:
        blobs = open_blobs(
            work.location,
            work.settings,
            options=work.options,
            clock=SystemClock(),
            chance=SystemChance(),
            counters=Counters(),
        )
        _places[work.location, ticket.store] = _Place(blobs, _readers(work, ticket, blobs))
    return _places[work.location, ticket.store]


def _readers(work: Work, ticket: Ticket, blobs: Blobs) -> Readers:
    return Readers(blobs, ticket.store, work.settings.memory_bytes, window_bytes=work.settings.window_bytes)


def work(job: Job | StageJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark runs for each partition. A function by its name: one that is defined in another takes longer to send."""
    from pyspark import TaskContext  # the rest of this module works without Spark

    context: Any = TaskContext.get()
    slot, part = context.partitionId(), f"{context.partitionId()}-{context.taskAttemptId()}"
    if isinstance(job, Job) and opens(job.operator.process):
        close_when_spark_ends()
    report = _report(job, slot, part, batches)
    for _ in batches:
        pass  # Spark ends a worker that leaves some of its input unread, and starting the next one takes a second
    _leave_out_what_stays()
    yield pa.record_batch({"report": pa.array([msgspec.msgpack.encode(report)], pa.binary())})


def _report(job: Job | StageJob, slot: int, part: str, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    with carried():
        try:
            return run_task(job, slot, part, batches) if isinstance(job, Job) else stage_task(job, slot, part, batches)
        except FINAL as error:
            return TaskReport(slot=slot, failure=Failure.of(error))


def _leave_out_what_stays() -> None:
    """Spark has the cycles of a worker collected after each task, before it gets the next one. Most of what is looked through
    then are modules and what they hold: where any were loaded, that is left out from now on."""
    global _modules_seen
    if len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        gc.collect()
        gc.freeze()


def run_task(job: Job, slot: int, part: str, batches: Iterable[pa.RecordBatch], resources: Resources = HERE) -> TaskReport:
    """One task of an operator. ``part`` tells it from every other attempt at the same slot. ``resources``: those of the process
    that it runs in."""
    ticket = msgspec.msgpack.decode(job.work.ticket, type=Ticket)
    place = open_for(job.work)
    started_s = place.clock.monotonic_s()
    schema = pa.ipc.read_schema(pa.py_buffer(job.rows))
    waiting = _Waiting(batches if job.staged is None else staged_batches(job.staged, place.blobs, slot), place.clock)
    snapshot = _snapshot(job, ticket, place)
    spill = Spill(job.work.settings.epoch_bytes, Path(tempfile.gettempdir()), ticket.key_groups, list(job.operator.keys))
    level = TaskLevel(
        job.operator,
        snapshot,
        slot=slot,
        values=job.task_values[slot],
        broadcast=pa.ipc.open_stream(job.broadcast).read_all(),
        resource=resources.of(job.operator, ticket.store, ticket.token),
    )

    def writer(bucket: int) -> TaskWriter:
        name = job.operator.name
        return TaskWriter(
            ticket, place.blobs, job.work.settings, place.clock, place.chance, operator=name, part=f"{part}-{bucket}"
        )

    with _Beside(apart=job.work.blobs is None) as beside:
        outcome, state = run_buckets(
            job.operator, snapshot, job.times, spill.buckets(waiting, schema, job.slots[slot]), level, writer, beside.start
        )
        made = {MAIN: outcome.output, **outcome.sides}
        for output, checks in job.checks.items():
            check_fits(made[output], checks, ticket.epoch)
        outputs = {
            output: _stage(
                made[output], _split(job, keys, ticket.key_groups), job.work, ticket, place, (job.operator.name, output, part)
            )
            for output, keys in job.outputs.items()
            if len(made[output])
        }
    return TaskReport(
        slot=slot,
        state=state,
        outputs=outputs,
        task_values=outcome.task_values,
        rows=outcome.rows,
        keys=outcome.keys,
        received=outcome.received,
        received_bytes=waiting.bytes,
        late=outcome.late,
        dead=outcome.dead,
        early=outcome.early,
        ignored=outcome.ignored,
        max_event_ms=outcome.max_event_ms,
        busy_ms=int((place.clock.monotonic_s() - started_s - waiting.waited_s) * 1000),
        warnings=outcome.warnings,
    )


class _Beside:
    """Has runs written while the task goes on: syncing is mostly waiting. All is written when the block is left without error.

    ``apart``: in a thread of its own; else at once, so that steps have one order and a fault can be put between any two.
    """

    def __init__(self, apart: bool) -> None:
        self._apart = apart
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def start(self, write: Callable[[], None]) -> None:
        """One at a time, so that runs do not pile up in memory."""
        if not self._apart:
            write()
            return
        self._settle()
        self._running = self._pool.submit(write)

    def _settle(self) -> None:
        if self._running is not None:
            self._running.result()

    def __enter__(self) -> "_Beside":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()
        if error is None:
            self._settle()


class _Waiting:
    """Batches, their size, and how long the task waited for them: that is not its own work."""

    def __init__(self, batches: Iterable[pa.RecordBatch], clock: Clock) -> None:
        self._batches = iter(batches)
        self._clock = clock
        self.waited_s = 0.0
        self.bytes = 0

    def __iter__(self) -> "_Waiting":
        return self

    def __next__(self) -> pa.RecordBatch:
        asked_s = self._clock.monotonic_s()
        try:
            batch = next(self._batches)
            self.bytes += batch.nbytes
            return batch
        finally:
            self.waited_s += self._clock.monotonic_s() - asked_s


def _snapshot(job: Job, ticket: Ticket, place: _Place) -> Snapshot:
    manifest = msgspec.msgpack.decode(job.manifest, type=Manifest)
    history = History(
        place.blobs,
        Format(ticket.store, ticket.key_groups, 0),
        settings=job.work.settings,
        clock=place.clock,
        chance=place.chance,
    )
    history.advance(manifest)
    place.readers.keep_only(run for runs in manifest.runs.values() for run in runs)
    return Snapshot(manifest, place.readers, history)


def stage_task(job: StageJob, slot: int, part: str, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Stage the rows of one partition."""
    ticket = msgspec.msgpack.decode(job.work.ticket, type=Ticket)
    place = open_for(job.work)
    started_s = place.clock.monotonic_s()
    schema = pa.ipc.read_schema(pa.py_buffer(job.rows))
    held = list(batches)
    rows = pa.Table.from_batches(held).cast(schema) if held else schema.empty_table()
    check_fits(rows, job.checks, ticket.epoch)
    outputs = {MAIN: _stage(rows, None, job.work, ticket, place, (job.name, MAIN, part))} if len(rows) else {}
    busy_ms = int((place.clock.monotonic_s() - started_s) * 1000)
    return TaskReport(slot=slot, outputs=outputs, rows=len(rows), busy_ms=busy_ms)


def read_staged(staged: Staged, blobs: Blobs) -> pa.Table:
    """All rows of staged files."""
    return pa.Table.from_batches(staged_batches(staged, blobs), staged.schema)


def staged_batches(staged: Staged, blobs: Blobs, slot: int | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of staged files, file by file: all, or those for one slot of the operator that they were split for."""
    for file in sorted(staged.files, key=lambda file: file.name):
        part = -1 if slot is None or not file.parts else file.parts[slot]
        if slot is not None and file.parts and part < 0:
            continue
        opened = as_parquet(checked(file.name, blobs, partial(file.check, part))[0])
        for batch in (opened.read() if part < 0 else opened.read_row_group(part)).cast(staged.schema).to_batches():
            yield reduce(lambda rows, condition: condition.kept(rows), staged.where, batch)


@dataclass(frozen=True, slots=True)
class _Split:
    """How the operator that reads rows next spreads them over its slots."""

    keys: tuple[str, ...]
    slot_of_group: np.ndarray
    slots: int

    def of(self, rows: pa.Table) -> np.ndarray:
        return slots_of(hash_columns(normalize_keys([rows.column(name) for name in self.keys])), self.slot_of_group)


def _split(job: Job, keys: tuple[str, ...], key_groups: int) -> _Split | None:
    return _Split(keys, slot_of_each_group(job.slots, key_groups), len(job.slots)) if keys else None


def _stage(
    rows: pa.Table, split: _Split | None, work: Work, ticket: Ticket, place: _Place, named: tuple[str, str, str]
) -> StagedFile:
    sink, parts, ends = io.BytesIO(), tuple[int, ...](), list[int]()
    if split is None:
        pq.write_table(rows, sink, **encoding(rows))
    else:
        parts, ends = _write_split(rows, split, sink)
    data = sink.getbuffer()
    pieces = tuple(FileSum.of(data[start:end]) for start, end in pairwise([0, *ends, len(data)])) if ends else ()
    name = paths.staged(ticket.start, f"{ticket.token}-{ticket.epoch}-{ticket.attempt}", *named)
    if create_or_read(place.blobs, name, data, work.settings.retry, place.clock, place.chance) is not None:
        raise BadInput(f"{name} was staged already by another task")
    return StagedFile(name, len(rows), FileSum.of(data), parts, pieces)


def _write_split(rows: pa.Table, split: _Split, sink: io.BytesIO) -> tuple[tuple[int, ...], list[int]]:
    """One row group for each slot that has rows; a slot's rows keep their order. Returns what each slot reads, and where each
    row group ends."""
    slot_of_row = split.of(rows)
    order = np.argsort(slot_of_row, kind="stable")
    rows, bounds = rows.take(pa.array(order)), np.searchsorted(slot_of_row[order], np.arange(split.slots + 1)).tolist()
    parts, ends = list[int](), list[int]()
    with pq.ParquetWriter(sink, rows.schema, **encoding(rows)) as writer:
        for low, high in pairwise(bounds):
            parts.append(-1 if low == high else max(parts, default=-1) + 1)
            if low < high:
                writer.write_table(rows.slice(low, high - low), row_group_size=high - low)
                ends.append(sink.tell())
    return tuple(parts), ends


def encoding(rows: pa.Table) -> dict[str, Any]:
    """How to write these rows as Parquet. A dictionary pays where values repeat; where they do not, trying is what costs most.
    Pages have checksums, which stay with files that are published."""
    head = rows.slice(0, SAMPLE_ROWS)
    plain = [field.name for field in head.schema if not pa.types.is_nested(field.type)]
    repeating = [name for name in plain if 4 * len(head.column(name).unique()) <= len(head)]
    return {"compression": "snappy", "use_dictionary": repeating, "write_page_checksum": True}
