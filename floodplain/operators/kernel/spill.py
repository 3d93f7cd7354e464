"""Spilling: splits the rows of a task that exceed the memory budget into buckets of whole key groups, on disk."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodplain.errors import Conflict, UserError
from floodplain.eventtime.times import EpochTimes
from floodplain.keys import key_group, normalize_keys
from floodplain.operators.kernel.key_grouping import hashes_of
from floodplain.operators.kernel.operator import KeyedOperator, Outcome, combined
from floodplain.operators.kernel.task import KeyedTask
from floodplain.operators.kernel.task_state import TaskLevel
from floodplain.scratch import Scratch
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.task_writer import Report, TaskWriter
from floodplain.tiers.files.errors import no_space_as_ours
from floodplain.versions.records.assignment import order_by_slot
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.groups import from_members

FAN_OUT = 16
"""Spill files per pass. A file that is still too large is partitioned again."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """All rows of some key groups of a task; rows of a key keep their order."""

    groups: GroupRanges
    rows: pa.Table
    too_large_bytes: int = 0
    """Its size if it exceeds the budget and cannot be split, else 0."""


@dataclass(frozen=True, slots=True)
class Spill:
    """The memory budget of a task for its rows, and the folder to spill to."""

    budget_bytes: int
    folder: Path
    key_groups: int
    keys: Sequence[str]
    """The key columns, for rows without a hash column."""

    def buckets(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, groups: GroupRanges) -> Generator[Bucket, None, None]:
        """The rows of all batches, cast to ``schema``. The buckets cover all of ``groups``, also those without rows: they may
        have timers.

        Rows within the budget are one bucket and are not spilled. A single key group is not split, even if it exceeds the
        budget. Closing the iterator deletes the files.
        """
        buffered: list[pa.RecordBatch] = []
        size = 0
        source = iter(batches)
        for batch in source:
            rows = _table([batch], schema)
            buffered += rows.to_batches()
            size += rows.nbytes
            if size > self.budget_bytes:
                break
        else:
            rows = _table(buffered, schema)
            buffered.clear()
            yield Bucket(groups, rows)
            return
        with Scratch("spill", self.folder) as folder:
            members = [group for low, high in groups for group in range(low, high)]
            files = self._partition(_chained(buffered, source), schema, members, folder / "rows")
            yield from self._drained(files, schema)

    def _partition(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, members: list[int], name: Path
    ) -> "list[_SpillFile]":
        """Writes each row to the file of its key group, a batch at a time."""
        count = min(FAN_OUT, len(members))
        files = [
            _SpillFile(
                name.with_name(f"{name.name}-{number}"),
                members[number * len(members) // count : (number + 1) * len(members) // count],
            )
            for number in range(count)
        ]
        file_of_group = np.full(self.key_groups, -1)
        for number, file in enumerate(files):
            file_of_group[file.members] = number
        with no_space_as_ours(f"spilling rows of the epoch to {name.parent}"), ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(file.path), schema)) for file in files]
            for batch in batches:
                rows = _table([batch], schema)
                number_of_row = file_of_group[self._groups_of(rows)]
                if (number_of_row < 0).any():
                    raise Conflict("a row was sent to a slot that does not own its key group: the epoch is aborted")
                order, bounds = order_by_slot(number_of_row, count)
                rows = rows.take(pa.array(order))
                for number, file in enumerate(files):
                    own = rows.slice(bounds[number], bounds[number + 1] - bounds[number])
                    if len(own):
                        writers[number].write_table(own)
                        file.size_bytes += own.nbytes
        return files

    def _groups_of(self, rows: pa.Table) -> np.ndarray:
        return key_group(hashes_of(rows, normalize_keys([rows.column(name) for name in self.keys])), self.key_groups)

    def _bucket(self, files: "list[_SpillFile]", schema: pa.Schema) -> Iterator[Bucket]:
        if files:
            size = sum(file.size_bytes for file in files)
            rows = [batch for file in files for batch in file.batches()]
            groups = from_members(group for file in files for group in file.members)
            yield Bucket(groups, _table(rows, schema), size if size > self.budget_bytes else 0)

    def _drained(self, files: "list[_SpillFile]", schema: pa.Schema) -> Iterator[Bucket]:
        """Adjacent files up to the budget become one bucket; a file that exceeds it is partitioned again."""
        pending: list[_SpillFile] = []
        for file in files:
            if file.size_bytes > self.budget_bytes and len(file.members) > 1:
                yield from self._bucket(pending, schema)
                pending = []
                with closing(file.batches()) as batches:
                    finer = self._partition(batches, schema, file.members, file.path)
                yield from self._drained(finer, schema)
                continue
            if pending and sum(other.size_bytes for other in pending) + file.size_bytes > self.budget_bytes:
                yield from self._bucket(pending, schema)
                pending = []
            pending.append(file)
        yield from self._bucket(pending, schema)


@dataclass(slots=True)
class _SpillFile:
    """A file with the rows of some key groups."""

    path: Path
    members: list[int]
    size_bytes: int = 0

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Its batches. Deletes the file at the end."""
        with pa.OSFile(str(self.path)) as opened, pa.ipc.open_stream(opened) as stream:
            yield from stream
        self.path.unlink()


def _chained(buffered: list[pa.RecordBatch], source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First the buffered batches, releasing each."""
    buffered.reverse()
    while buffered:
        yield buffered.pop()
    yield from source


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def run_buckets(
    operator: KeyedOperator,
    snapshot: Snapshot,
    times: EpochTimes,
    buckets: Generator[Bucket, None, None],
    level: TaskLevel,
    writer_of: Callable[[int], TaskWriter],
    store: Callable[[Callable[[], None]], None] = lambda write: write(),
) -> tuple[Outcome, Report]:
    """Runs a task bucket by bucket, each with its own writer ``writer_of(number)``, so that deltas do not accumulate in memory.

    Keys are independent and each is in one bucket; ``level``, the task-level state, is carried from bucket to bucket.
    ``store`` gets the function that writes the runs of a bucket, and may return before they are written.
    """
    outcomes: list[Outcome] = []
    reports: list[Report] = []
    with closing(buckets):
        for bucket in buckets:
            writer = writer_of(len(reports))
            outcome = KeyedTask(operator, snapshot, writer, times, bucket.groups, level).run(bucket.rows)
            outcomes.append(replace(outcome, warnings=_warnings(operator.name, bucket)))
            report, write = _built(operator.name, writer)
            reports.append(report)
            store(write)
            # Frees the memory before the next bucket is read.
            del bucket, writer, write
    report = Report(
        runs=tuple(run for report in reports for run in report.runs),
        inline=tuple(run for report in reports for run in report.inline),
        rows=sum(report.rows for report in reports),
    )
    return combined(outcomes), report


def _built(operator: str, writer: TaskWriter) -> tuple[Report, Callable[[], None]]:
    try:
        return writer.built()
    except UserError as error:
        raise UserError(f"operator {operator}, {error}") from error


def _warnings(operator: str, bucket: Bucket) -> tuple[str, ...]:
    if not bucket.too_large_bytes:
        return ()
    warning = (
        f"operator {operator}: the rows of key group {bucket.groups[0][0]} take {bucket.too_large_bytes} bytes, more than "
        "StoreSettings.epoch_bytes, and were processed at once: one key may have very many rows, or there are too few key groups"
    )
    return (warning,)
