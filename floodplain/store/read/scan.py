"""Range scans: the resolved rows of a table, one window of positions at a time, so that memory is bounded by the window."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from floodplain.keys import columns_equal, key_group
from floodplain.store.read.overlay import overlaid
from floodplain.store.rows import layout
from floodplain.store.rows.evolution import adapt
from floodplain.store.rows.layout import CLEAR, DELETE, HASH, OP, SUB
from floodplain.store.rows.resolve import Rules, resolve
from floodplain.store.rows.row_classes import refine, starts_of
from floodplain.store.run import row_position
from floodplain.store.run.lookup_keys import Source
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Window:
    """Key groups ``low`` to ``high``, and within them the rows at places from ``begin`` to ``end``; both ends are exclusive."""

    low: int
    high: int
    begin: int
    end: int

    @property
    def cut(self) -> int | None:
        """The hash, or key group in a time table, of which the window before has rows as well; None if there is none."""
        return None if row_position.is_first(self.begin) else row_position.major_of(self.begin)


def plan(
    sources: Sequence[Source],
    schema: TableSchema,
    groups: GroupRanges,
    key_groups: int,
    window_bytes: int,
    times: tuple[int, int] | None = None,
) -> list[Window]:
    """Windows that cover ``groups``, each of at most ``window_bytes``, decoded, of chunks that begin in it, or of one chunk.

    Windows begin where a chunk of some run begins: with the first row of a hash (in a time table, of a key group), or within one
    that is large. All rows of one entry fall into one window, so each can be resolved alone. ``times``: as in ``resolved``.
    """
    marks = _marks(sources, times)
    windows = []
    for low, high in groups:
        begin, end = row_position.of_groups(schema, low, high, key_groups)
        cuts = _cuts([mark for mark in marks if begin < mark.place < end], begin, window_bytes)
        windows += [
            Window(
                row_position.group_of(schema, first, key_groups),
                row_position.group_of(schema, last - 1, key_groups) + 1,
                first,
                last,
            )
            for first, last in pairwise([begin, *cuts, end])
        ]
    return windows


class _Mark(NamedTuple):
    """Where a chunk begins."""

    place: int
    size_bytes: int
    of_largest: bool


def _marks(sources: Sequence[Source], times: tuple[int, int] | None) -> list[_Mark]:
    largest = max(sources, key=lambda source: int(source.reader.decoded_bytes.sum()), default=None)
    marks = []
    for source in sources:
        reader = source.reader
        wanted = np.flatnonzero(_may_hold(source, np.arange(len(reader.count)), times))
        columns = (column[wanted].tolist() for column in (reader.first, reader.first_sub, reader.decoded_bytes))
        marks += [
            _Mark(row_position.place_of(major, sub), size, source is largest) for major, sub, size in zip(*columns, strict=True)
        ]
    return sorted(marks)


def _cuts(marks: Sequence[_Mark], begin: int, window_bytes: int) -> list[int]:
    """Where windows end; with chunks of the largest run, if they come soon: a chunk that is cut must be concatenated again.

    A hash, or key group, is not cut through unless it fills half a window.
    """
    cuts, held, inner, major = [begin], 0, 0, -1
    for mark in marks:
        if row_position.major_of(mark.place) != major:
            major, inner = row_position.major_of(mark.place), 0
        most = window_bytes * 4 // 5 if mark.of_largest else window_bytes
        if held and held + mark.size_bytes > most:
            whole = row_position.first_of(major) > cuts[-1] and 2 * inner <= window_bytes
            cut = row_position.first_of(major) if whole else mark.place
            if cut > cuts[-1]:
                cuts.append(cut)
                inner = inner if whole else 0
                held = inner
        held += mark.size_bytes
        inner += mark.size_bytes
    return cuts[1:]


def resolved(
    window: Window,
    sources: Sequence[Source],
    schema: TableSchema,
    rules: Rules,
    *,
    bottom: np.ndarray | None = None,
    times: tuple[int, int] | None = None,
) -> pa.Table:
    """The physical rows of one window that count. Sources come newest first; ``bottom`` is per key group, None for all.

    ``times``: of a time table, the half-open range of ``_sub`` wanted.
    """
    parts, unique = [], True
    for source in sources:
        rows = _window_rows(window, source, times)
        if len(rows):
            parts.append(adapt(rows, source.schema, schema))
            unique &= source.reader.unique
    if not parts:
        return layout.physical(schema).empty_table()
    if len(parts) == 1 and _settled(parts[0], schema):
        return parts[0]
    newest = _newest_of(parts, schema, unique) if _is_plain(parts, schema) else None
    if newest is not None:
        return _without_deletes(newest, bottom)
    rows = _resolved(parts, schema, rules, bottom)
    return rows if window.cut is None or bottom is None else _without_borrowed(rows, window.cut, schema, len(bottom))


def _resolved(parts: Sequence[pa.Table], schema: TableSchema, rules: Rules, bottom: np.ndarray | None) -> pa.Table:
    rows, rank = pa.concat_tables(parts).combine_chunks(), np.repeat(-np.arange(len(parts)), [len(part) for part in parts])
    by = [layout.numbers(rows, HASH)] if schema.shape == "value" else [layout.numbers(rows, SUB), layout.numbers(rows, HASH)]
    order = np.lexsort(by)
    rows, rank = rows.take(pa.array(order)), rank[order]
    hashes = by[-1][order]
    owner = refine(starts_of(hashes), layout.column_arrays(rows, schema.keys))
    at_bottom = None if bottom is None else bottom[key_group(hashes, len(bottom))]
    return resolve(rows, owner, rank, schema, rules, at_bottom)[0]


def _without_borrowed(rows: pa.Table, cut: int, schema: TableSchema, key_groups: int) -> pa.Table:
    """Without the clears that ``_window_rows`` borrowed: the window that begins with their hash, or key group, has them."""
    hashes = layout.numbers(rows, HASH)
    major = key_group(hashes, key_groups).astype(np.uint64) if schema.shape == "time" else hashes
    return rows.filter(pa.array((layout.numbers(rows, OP) != CLEAR) | (major != np.uint64(cut))))


def _is_plain(parts: Sequence[pa.Table], schema: TableSchema) -> bool:
    """Whether the newest row of a key hides all older ones: no merge operands, no sub-keys."""
    if schema.shape != "value" or _expires(schema):
        return False
    return not any((layout.numbers(rows, OP) > DELETE).any() for rows in parts)


def _newest_of(parts: Sequence[pa.Table], schema: TableSchema, unique: bool) -> pa.Table | None:
    """The newest row of each key, by hash; None where different keys share a hash. Parts come newest first.

    ``unique``: no part has a hash twice.
    """
    overlay = overlaid(parts, schema) if unique and len(parts) > 1 else None
    if overlay is None:
        return _newest_rows(pa.concat_tables(parts).combine_chunks(), schema)
    if not overlay.new:
        return overlay.rows
    new = _newest_rows(pa.concat_tables(overlay.new).combine_chunks(), schema)
    return None if new is None else _newest_rows(pa.concat_tables([overlay.rows, new]).combine_chunks(), schema)


def _newest_rows(rows: pa.Table, schema: TableSchema) -> pa.Table | None:
    """As ``_newest_of``, where rows of newer runs stand before those of older ones. Only the winners are copied."""
    hashes = layout.numbers(rows, HASH)
    order = np.argsort(hashes, kind="stable")
    first = starts_of(hashes[order])
    # Places, not masks: NumPy picks by places several times faster.
    newest = order[np.flatnonzero(first)]
    winners = rows.take(pa.array(newest))
    return winners if len(winners) == len(rows) or _same_keys(rows, order, first, winners, schema) else None


def _same_keys(rows: pa.Table, order: np.ndarray, first: np.ndarray, winners: pa.Table, schema: TableSchema) -> bool:
    """Whether all rows have the key of the row found for their hash. Goes through rows as they stand, run by run: both sides of
    the comparison are then read from front to back, and one of them is not copied."""
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(first) - 1
    theirs, ours = (layout.column_arrays(table, schema.keys) for table in (rows, winners))
    return bool(columns_equal(theirs, [key.take(pa.array(place)) for key in ours]).all())


def _without_deletes(rows: pa.Table, bottom: np.ndarray | None) -> pa.Table:
    gone = layout.numbers(rows, OP) == DELETE
    if bottom is not None and gone.any():
        gone &= bottom[key_group(layout.numbers(rows, HASH), len(bottom))]
    return rows.filter(pa.array(~gone)) if gone.any() else rows


def _expires(schema: TableSchema) -> bool:
    return bool(schema.ttl_ms or any(field.ttl_ms for field in schema.values))


def _settled(rows: pa.Table, schema: TableSchema) -> bool:
    """Whether rows of one run are what counts as they are. A run has one row per entry, unless merges wait to be folded."""
    return not _expires(schema) and not layout.numbers(rows, OP).any()


def _window_rows(window: Window, source: Source, times: tuple[int, int] | None) -> pa.Table:
    schema, member = source.schema, source.member
    wanted = member[window.low : window.high]
    if not wanted.any():
        return layout.physical(schema).empty_table()
    begin, end = window.begin, window.end
    near = window.low + np.flatnonzero(wanted)
    is_range = near[-1] - near[0] == len(near) - 1
    if is_range and len(near) < len(wanted):
        first, last = row_position.of_groups(schema, int(near[0]), int(near[-1]) + 1, len(member))
        begin, end = max(begin, first), min(end, last)
    batches = _batches(source, begin, end, times)
    if window.cut is not None and wanted[0] and source.reader.ref.deletes:
        batches = [*_clears(source, window.cut), *batches]
    rows = pa.Table.from_batches(batches, layout.physical(schema))
    return rows if is_range else rows.filter(pa.array(member[key_group(layout.numbers(rows, HASH), len(member))]))


def _batches(source: Source, begin: int, end: int, times: tuple[int, int] | None) -> list[pa.RecordBatch]:
    chunks = np.array(source.reader.span(begin, end), np.int64)
    fetched = source.reader.fetch(chunks[_may_hold(source, chunks, times)].tolist()).values()
    batches = [row_position.between(batch, source.schema, begin, end, len(source.member)) for batch in fetched]
    return batches if times is None else [_timed(batch, times) for batch in batches]


def chunks_wanted(
    source: Source, schema: TableSchema, groups: GroupRanges, key_groups: int, times: tuple[int, int] | None
) -> list[int]:
    """The chunks that a scan of these key groups may read."""
    spans = [source.reader.span(*row_position.of_groups(schema, low, high, key_groups)) for low, high in groups]
    chunks = np.unique(np.concatenate([np.array(span, np.int64) for span in spans])) if spans else np.empty(0, np.int64)
    wanted: list[int] = chunks[_may_hold(source, chunks, times)].tolist()
    return wanted


def _clears(source: Source, major: int) -> list[pa.RecordBatch]:
    """The clears of a hash, or key group: they stand before its other rows, with a sub-key of 0, and count for all of them."""
    batches = _batches(source, row_position.first_of(major), row_position.first_of(major) + 1, None)
    return [batch.filter(pa.array(layout.numbers(batch, OP) == CLEAR)) for batch in batches]


def _may_hold(source: Source, chunks: np.ndarray, times: tuple[int, int] | None) -> np.ndarray:
    """Of these chunks, whether they may hold rows of a time table that count for the times."""
    reader = source.reader
    if times is None or not len(chunks):
        return np.ones(len(chunks), bool)
    # A chunk within one key group is sorted by time; clears stand first, with a sub-key of 0, and always count.
    alone = (reader.first[chunks] == reader.last[chunks]) & (reader.first_sub[chunks] > 0)
    outside = ~_at_or_after(reader.last_sub[chunks], times[0]) | _at_or_after(reader.first_sub[chunks], times[1])
    return ~(alone & outside)


def _timed(batch: pa.RecordBatch, times: tuple[int, int]) -> pa.RecordBatch:
    sub = layout.numbers(batch, SUB)
    keep = (_at_or_after(sub, times[0]) & ~_at_or_after(sub, times[1])) | (layout.numbers(batch, OP) == CLEAR)
    return batch if keep.all() else batch.filter(pa.array(keep))


def _at_or_after(sub: np.ndarray, end: int) -> np.ndarray:
    """``sub >= end``, where ``end`` may be one past the largest number of 64 bits."""
    return np.zeros(len(sub), bool) if end >= 1 << 64 else sub >= np.uint64(end)


def in_time_order(rows: pa.Table, key_groups: int) -> pa.Table:
    """Rows of a time table by (key group, time, hash)."""
    hashes = layout.numbers(rows, HASH)
    return rows.take(pa.array(np.lexsort((hashes, layout.numbers(rows, SUB), key_group(hashes, key_groups)))))
