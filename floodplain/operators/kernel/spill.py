"""Epochs larger than memory: the rows of a task in buckets of whole key groups, the excess on disk meanwhile."""

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
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.groups import from_members

FAN_OUT = 16
"""Files that rows are spread over at a time. One that is still too large is spread over as many again."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """All rows of some key groups of a task; rows of a key in the order they came."""

    groups: GroupRanges
    rows: pa.Table
    too_large_bytes: int = 0
    """Its size, if it is more than the budget and cannot be split."""


@dataclass(frozen=True, slots=True)
class Spill:
    """What a task may hold of its rows, and where the rest waits."""

    budget_bytes: int
    folder: Path
    key_groups: int
    keys: Sequence[str]
    """The key columns, for rows that do not carry their hash."""

    def buckets(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, groups: GroupRanges) -> Generator[Bucket, None, None]:
        """The rows of all batches. Together the buckets have all of ``groups``, those without rows too: timers need them.

        What fits the budget, as ``schema`` has it, is one bucket and never written. A key group that alone is larger than the
        budget is a bucket all the same. Files are gone when the iterator is closed.
        """
        held: list[pa.RecordBatch] = []
        size = 0
        source = iter(batches)
        for batch in source:
            rows = _table([batch], schema)
            held += rows.to_batches()
            size += rows.nbytes
            if size > self.budget_bytes:
                break
        else:
            rows = _table(held, schema)
            held.clear()
            yield Bucket(groups, rows)
            return
        with Scratch("spill", self.folder) as folder:
            members = [group for low, high in groups for group in range(low, high)]
            parts = self._spread(_chained(held, source), schema, members, folder / "rows")
            yield from self._drained(parts, schema)

    def _spread(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, members: list[int], name: Path) -> "list[_Part]":
        """Each row into the file of its key group's part, a batch at a time."""
        count = min(FAN_OUT, len(members))
        parts = [
            _Part(
                name.with_name(f"{name.name}-{number}"),
                members[number * len(members) // count : (number + 1) * len(members) // count],
            )
            for number in range(count)
        ]
        part_of_group = np.full(self.key_groups, -1)
        for number, part in enumerate(parts):
            part_of_group[part.members] = number
        with no_space_as_ours(f"setting rows of the epoch aside in {name.parent}"), ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(part.file), schema)) for part in parts]
            for batch in batches:
                rows = _table([batch], schema)
                number_of_row = part_of_group[self._groups_of(rows)]
                if (number_of_row < 0).any():
                    raise Conflict("a row came to a slot that does not have its key group: the epoch is given up")
                order = np.argsort(number_of_row, kind="stable")
                rows, bounds = rows.take(pa.array(order)), np.searchsorted(number_of_row[order], np.arange(count + 1)).tolist()
                for number, part in enumerate(parts):
                    found = rows.slice(bounds[number], bounds[number + 1] - bounds[number])
                    if len(found):
                        writers[number].write_table(found)
                        part.size_bytes += found.nbytes
        return parts

    def _groups_of(self, rows: pa.Table) -> np.ndarray:
        return key_group(hashes_of(rows, normalize_keys([rows.column(name) for name in self.keys])), self.key_groups)

    def _taken(self, parts: "list[_Part]", schema: pa.Schema) -> Iterator[Bucket]:
        if parts:
            size = sum(part.size_bytes for part in parts)
            rows = [batch for part in parts for batch in part.batches()]
            groups = from_members(group for part in parts for group in part.members)
            yield Bucket(groups, _table(rows, schema), size if size > self.budget_bytes else 0)

    def _drained(self, parts: "list[_Part]", schema: pa.Schema) -> Iterator[Bucket]:
        """Neighbours that fit together as one bucket; a part that does not fit is spread again."""
        together: list[_Part] = []
        for part in parts:
            if part.size_bytes > self.budget_bytes and len(part.members) > 1:
                yield from self._taken(together, schema)
                together = []
                with closing(part.batches()) as batches:
                    finer = self._spread(batches, schema, part.members, part.file)
                yield from self._drained(finer, schema)
                continue
            if together and sum(other.size_bytes for other in together) + part.size_bytes > self.budget_bytes:
                yield from self._taken(together, schema)
                together = []
            together.append(part)
        yield from self._taken(together, schema)


@dataclass(slots=True)
class _Part:
    """Rows of some key groups in a file."""

    file: Path
    members: list[int]
    size_bytes: int = 0

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Its batches, and then the file is gone."""
        with pa.OSFile(str(self.file)) as opened, pa.ipc.open_stream(opened) as stream:
            yield from stream
        self.file.unlink()


def _chained(held: list[pa.RecordBatch], source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First what is held, letting go of it."""
    held.reverse()
    while held:
        yield held.pop()
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
    """Run a task bucket by bucket, each with a writer of its own, so that deltas do not pile up. ``writer_of(number)`` makes it.

    Keys are independent and each is in one bucket; what belongs to no key goes on from bucket to bucket in ``level``.
    ``store`` is given what writes the runs of a bucket, and may return before that is done.
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
            # Before the next one is read.
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
        "StoreSettings.epoch_bytes, and were processed at once: a key may have very many rows, or there are too few key groups"
    )
    return (warning,)
