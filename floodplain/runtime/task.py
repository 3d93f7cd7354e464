"""The task side: rows of one slot come in as Arrow batches, one report goes out."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from floodplain.clock import Clock
from floodplain.elasticity.measured_load import GroupRows
from floodplain.eventtime.times import EpochTimes
from floodplain.operators.kernel.operator import DroppedRows, KeyedOperator
from floodplain.operators.kernel.spill import Spill, run_buckets
from floodplain.operators.kernel.task_state import TaskLevel
from floodplain.plan.nodes import MAIN
from floodplain.runtime.pieces import Piece
from floodplain.runtime.resources import HERE, Resources
from floodplain.runtime.staging import Split, Staged, StagedFile, stage, staged_batches
from floodplain.runtime.task_errors import Failure
from floodplain.runtime.task_store import ManifestSource, OpenStore, Work, open_for
from floodplain.sinks.row_checks import SinkCheck, check_rows
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.task_writer import Report, TaskWriter, Ticket
from floodplain.tier_use import TierUse, UseTally, carried_tally, tallied, tiers_sum
from floodplain.versions.log.history import Format, History
from floodplain.versions.records.assignment import slot_of_each_group
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.manifest import Manifest


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task of an operator returns."""

    slot: int
    state: Report = Report()
    outputs: dict[str, StagedFile] = {}
    """Of the outputs that somebody reads, those that have rows and are staged."""
    kept: dict[str, Piece] = {}
    """Of those that are not staged."""
    rows: int = 0
    keys: int = 0
    received: int = 0
    """Rows that the task received: fewer than ``rows`` if they were pre-aggregated."""
    received_bytes: int = 0
    dropped: DroppedRows = DroppedRows()
    task_values: bytes = b""
    """As ``operators/kernel/task_state.py`` encodes them."""
    warnings: tuple[str, ...] = ()
    max_event_ms: int | None = None
    busy_ms: int = 0
    measures: dict[str, int] = {}
    """What a caller of its own has counted, by name."""
    tiers: dict[str, TierUse] = {}
    """What it asked tiers for."""
    group_rows: GroupRows = GroupRows()
    failure: Failure | None = None
    """What the task ended with instead of all the rest, where trying it again would not help."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The operator that reads an output in its slots, and their key groups."""

    operator: str
    slots: tuple[GroupRanges, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """All that the tasks of one operator in one epoch need."""

    work: Work
    manifest: Manifest | ManifestSource
    """Of the state that the epoch starts from."""
    operator: KeyedOperator
    times: EpochTimes
    slots: tuple[GroupRanges, ...]
    rows: bytes
    """The Arrow schema of the rows."""
    outputs: Mapping[str, tuple[str, ...]]
    """The outputs that somebody reads → the key columns to split them by for the next operator, if it reads them directly."""
    task_values: Mapping[int, bytes]
    """Slot → the task values that it begins with, if the operator has any."""
    broadcast: bytes
    """The rows of the broadcast input, as an Arrow stream."""
    staged: Staged | None = None
    """Where the rows are, if they come straight from another operator."""
    checks: Mapping[str, tuple[SinkCheck, ...]] = field(default_factory=dict)
    """Output → what its sinks ask of rows."""
    kept: tuple[str, ...] = ()
    """Outputs that are not staged: only operators read them, in the slots they are split by."""
    readers: Mapping[str, Reader] = field(default_factory=dict)
    """Of the outputs that are split: by whose slots."""


@dataclass(frozen=True, slots=True)
class StageJob:
    """Stages rows that no keyed operator made, as they are."""

    work: Work
    name: str
    rows: bytes
    checks: tuple[SinkCheck, ...] = ()
    """What the sinks ask of rows."""


Keep: TypeAlias = Callable[[str, pa.Table, Split], Piece]
"""Keeps the rows of an output in memory, split by slots."""


def _keep_none(output: str, rows: pa.Table, split: Split) -> Piece:  # noqa: ARG001
    raise AssertionError(f"nothing keeps rows here, but output {output} is to be kept")


def run_task(
    job: Job,
    slot: int,
    part: str,
    batches: Iterable[pa.RecordBatch],
    resources: Resources = HERE,
    keep: Keep = _keep_none,
) -> TaskReport:
    """One task of an operator. ``part`` tells it from every other attempt at the same slot. ``resources``: those of the process
    that it runs in. ``keep`` takes the outputs that are not staged."""
    tally = UseTally()
    with tallied(tally, job.operator.name):
        report = _run_task(job, slot, part, batches, resources, keep)
    return msgspec.structs.replace(report, tiers=tiers_sum(tally.uses()))


def _run_task(job: Job, slot: int, part: str, batches: Iterable[pa.RecordBatch], resources: Resources, keep: Keep) -> TaskReport:
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
        values=job.task_values.get(slot, b""),
        broadcast=pa.ipc.open_stream(job.broadcast).read_all(),
        resource=resources.of(job.operator, ticket.store, ticket.token),
    )

    def writer(bucket: int) -> TaskWriter:
        name = job.operator.name
        return TaskWriter(
            ticket, place.blobs, job.work.settings, place.clock, place.randomness, operator=name, part=f"{part}-{bucket}"
        )

    with __BackgroundWriter(threaded=job.work.blobs is None) as background:
        outcome, state = run_buckets(
            job.operator, snapshot, job.times, spill.buckets(waiting, schema, job.slots[slot]), level, writer, background.start
        )
        made = {MAIN: outcome.output, **outcome.sides}
        for output, checks in job.checks.items():
            check_rows(made[output], checks, ticket.epoch)
        outputs = {
            output: stage(
                made[output], _split(job, output, ticket.key_groups), job.work, ticket, place, (job.operator.name, output, part)
            )
            for output in job.outputs
            if len(made[output]) and output not in job.kept
        }
        kept = {output: keep(output, made[output], _split_of(job, output, ticket)) for output in job.kept if len(made[output])}
    return TaskReport(
        slot=slot,
        state=state,
        outputs=outputs,
        kept=kept,
        task_values=outcome.task_values,
        rows=outcome.rows,
        keys=outcome.keys,
        received=outcome.received,
        received_bytes=waiting.bytes,
        dropped=outcome.dropped,
        max_event_ms=outcome.max_event_ms,
        busy_ms=int((place.clock.monotonic_s() - started_s - waiting.waited_s) * 1000),
        warnings=outcome.warnings,
        measures=dict(outcome.measures),
        group_rows=GroupRows.of(*_sparse(outcome.rows_of_group)),
    )


class __BackgroundWriter:
    """Writes runs in the background while the task goes on: syncing is mostly waiting. All is written when the block ends well.

    ``threaded``: in a thread of its own; else at once, so that steps have one order and a fault can be put between any two.
    """

    def __init__(self, threaded: bool) -> None:
        self._threaded = threaded
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def start(self, write: Callable[[], None]) -> None:
        """One at a time, so that runs do not pile up in memory."""
        if not self._threaded:
            write()
            return
        self._settle()
        self._running = self._pool.submit(carried_tally(write))

    def _settle(self) -> None:
        if self._running is not None:
            self._running.result()

    def __enter__(self) -> "__BackgroundWriter":
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


def _snapshot(job: Job, ticket: Ticket, place: OpenStore) -> Snapshot:
    manifest = place.advance(job.manifest)
    history = History(
        place.blobs,
        Format(ticket.store, ticket.key_groups, 0),
        settings=job.work.settings,
        clock=place.clock,
        randomness=place.randomness,
    )
    history.advance(manifest)
    return Snapshot(manifest, place.open_runs, history)


def stage_task(job: StageJob, slot: int, part: str, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Stage the rows of one partition."""
    tally = UseTally()
    with tallied(tally, job.name):
        report = _stage_task(job, slot, part, batches)
    return msgspec.structs.replace(report, tiers=tiers_sum(tally.uses()))


def _stage_task(job: StageJob, slot: int, part: str, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    ticket = msgspec.msgpack.decode(job.work.ticket, type=Ticket)
    place = open_for(job.work)
    started_s = place.clock.monotonic_s()
    schema = pa.ipc.read_schema(pa.py_buffer(job.rows))
    held = list(batches)
    rows = pa.Table.from_batches(held).cast(schema) if held else schema.empty_table()
    check_rows(rows, job.checks, ticket.epoch)
    outputs = {MAIN: stage(rows, None, job.work, ticket, place, (job.name, MAIN, part))} if len(rows) else {}
    busy_ms = int((place.clock.monotonic_s() - started_s) * 1000)
    return TaskReport(slot=slot, outputs=outputs, rows=len(rows), busy_ms=busy_ms)


def _sparse(rows_of_group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    groups = np.flatnonzero(rows_of_group)
    return groups, rows_of_group[groups]


def _split_of(job: Job, output: str, ticket: Ticket) -> Split:
    split = _split(job, output, ticket.key_groups)
    assert split is not None
    return split


def _split(job: Job, output: str, key_groups: int) -> Split | None:
    keys = job.outputs[output]
    if not keys:
        return None
    slots = job.readers[output].slots
    return Split(keys, slot_of_each_group(slots, key_groups), len(slots))
