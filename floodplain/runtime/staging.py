"""Staged rows: the output of a task as a Parquet file, split by the slots of the next operator if one reads it directly."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate, pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.errors import BadInput
from floodplain.expressions.comparison import Comparison
from floodplain.keys import hash_columns, normalize_keys
from floodplain.runtime.pieces import Piece
from floodplain.runtime.task_store import OpenStore, Work
from floodplain.sinks.staged import as_parquet, encoding
from floodplain.store.run.open_runs import LOCAL_TIERS
from floodplain.store.write.task_writer import Ticket
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.create import create_or_read
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.log.history import History
from floodplain.versions.records.assignment import order_by_slot, slots_of
from floodplain.versions.records.vouched import FileSum, check, checked


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
    data: bytes = b""
    """The file itself, if it is small and not stored."""

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
    pieces: tuple[Piece, ...] = ()
    """What workers keep of them instead, split by the slots of the operator that reads them."""

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which the conditions hold."""
        return reduce(lambda some, condition: condition.kept(some), self.where, rows)


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
            yield staged.kept(batch)


MOST_INLINE_BYTES = 256 << 10
"""Of output in one edit. Who follows the log reads it; more is stored on its own."""
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Split:
    """How the operator that reads rows next spreads them over its slots."""

    keys: tuple[str, ...]
    slot_of_group: np.ndarray
    slots: int

    def of(self, rows: pa.Table) -> np.ndarray:
        return slots_of(hash_columns(normalize_keys([rows.column(name) for name in self.keys])), self.slot_of_group)


def stage(
    rows: pa.Table, split: Split | None, work: Work, ticket: Ticket, place: OpenStore, named: tuple[str, str, str]
) -> StagedFile:
    """Stores the rows. Where that is a request, few that are not split return in the report instead."""
    sink, parts, ends = io.BytesIO(), tuple[int, ...](), list[int]()
    if split is None:
        pq.write_table(rows, sink, **encoding(rows))
    else:
        parts, ends = _write_split(rows, split, sink)
    data = sink.getbuffer()
    pieces = tuple(FileSum.of(data[start:end]) for start, end in pairwise([0, *ends, len(data)])) if ends else ()
    name = paths.staged(ticket.start, f"{ticket.token}-{ticket.epoch}-{ticket.attempt}", *named)
    if split is None and len(data) < work.settings.inline_bytes and place.blobs.tier not in LOCAL_TIERS:
        return StagedFile(name, len(rows), FileSum.of(data), data=bytes(data))
    if create_or_read(place.blobs, name, data, work.settings.retry, place.clock, place.randomness) is not None:
        raise BadInput(f"{name} was staged already by another task")
    return StagedFile(name, len(rows), FileSum.of(data), parts, pieces)


def _write_split(rows: pa.Table, split: Split, sink: io.BytesIO) -> tuple[tuple[int, ...], list[int]]:
    """One row group for each slot that has rows; a slot's rows keep their order. Returns what each slot reads, and where each
    row group ends."""
    order, bounds = order_by_slot(split.of(rows), split.slots)
    rows = rows.take(pa.array(order))
    parts, ends = list[int](), list[int]()
    with pq.ParquetWriter(sink, rows.schema, **encoding(rows)) as writer:
        for low, high in pairwise(bounds):
            parts.append(-1 if low == high else max(parts, default=-1) + 1)
            if low < high:
                writer.write_table(rows.slice(low, high - low), row_group_size=high - low)
                ends.append(sink.tell())
    return tuple(parts), ends


def merged_small(files: Sequence[StagedFile], ticket: Ticket) -> list[StagedFile]:
    """These files of one output, those that are not stored as one, with their rows in the order of the names."""
    stored, inline = [file for file in files if not file.data], [file for file in files if file.data]
    if len(inline) < 2:
        return [*stored, *inline]
    rows = pa.concat_tables([as_parquet(pa.py_buffer(file.data)).read() for file in sorted(inline, key=lambda file: file.name)])
    sink = io.BytesIO()
    pq.write_table(rows, sink, **encoding(rows))
    data, author = sink.getvalue(), f"{ticket.token}-{ticket.epoch}-{ticket.attempt}"
    name = paths.staged(ticket.start, author, *paths.output_of(inline[0].name), "small")
    return [*stored, StagedFile(name, len(rows), FileSum.of(data), data=data)]


def stored(files: Sequence[StagedFile], history: History) -> list[StagedFile]:
    """The files, all of them stored on their own."""

    def store(file: StagedFile) -> StagedFile:
        if not file.data:
            return file
        blobs, retry = history.blobs, history.settings.retry
        if create_or_read(blobs, file.name, file.data, retry, history.clock, history.randomness) is not None:
            raise BadInput(f"{file.name} was staged already by another task")
        return msgspec.structs.replace(file, data=b"")

    return fan_out(history.blobs, store, files, _THREADS)


def fitted_to_edit(files: Sequence[StagedFile], history: History) -> list[StagedFile]:
    """The files, those that are not stored as many as one edit may have; the others are stored, the largest first."""
    by_size = sorted((file for file in files if file.data), key=lambda file: len(file.data))
    ends = accumulate(len(file.data) for file in by_size)
    inline = [file for file, end in zip(by_size, ends, strict=True) if end <= MOST_INLINE_BYTES]
    names = {file.name for file in inline}
    return [*inline, *stored([file for file in files if file.name not in names], history)]
