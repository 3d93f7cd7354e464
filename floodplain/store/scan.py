"""Scans: the resolved rows of a table, a window of hashes at a time, so that memory follows the window and not the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from floodplain.keys import columns_equal, group_bounds, key_group
from floodplain.store import layout
from floodplain.store.evolution import adapt
from floodplain.store.identity import refine, starts_of
from floodplain.store.layout import CLEAR, DELETE, HASH, OP, SUB
from floodplain.store.merge import Rules, resolve
from floodplain.store.needles import Source
from floodplain.store.overlay import overlaid
from floodplain.versions.edit import GroupRanges
from floodplain.versions.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Window:
    """Key groups ``low`` to ``high`` (exclusive), and within them the hashes from ``first`` to ``last`` (inclusive)."""

    low: int
    high: int
    first: int
    last: int


def plan(sources: Sequence[Source], schema: TableSchema, groups: GroupRanges, key_groups: int, window_rows: int) -> list[Window]:
    """Windows that cover ``groups``, each of about ``window_rows`` rows over all sources.

    Windows begin where a chunk of some run begins. All rows of one hash fall into one window, so each can be resolved alone;
    in a time table all rows of one key group do.
    """
    marks = _marks(sources)
    windows = []
    for low, high in groups:
        first, last = (low, high - 1) if schema.shape == "time" else group_bounds(low, high, key_groups)
        cuts = _cuts([mark for mark in marks if first < mark.at <= last], max(window_rows, 1))
        windows += [_window(schema, begin, end, key_groups) for begin, end in pairwise([first, *cuts, last + 1])]
    return windows


class _Mark(NamedTuple):
    """Where a chunk begins."""

    at: int
    rows: int
    of_largest: bool


def _marks(sources: Sequence[Source]) -> list[_Mark]:
    largest = max(sources, key=lambda source: source.reader.ref.rows, default=None)
    return sorted(
        _Mark(at, rows, source is largest)
        for source in sources
        for at, rows in zip(source.reader.first.tolist(), source.reader.count.tolist(), strict=True)
    )


def _cuts(marks: Sequence[_Mark], window_rows: int) -> list[int]:
    """Where windows end; with chunks of the largest run, if they come soon: what is cut through must be put together again."""
    cuts, held = list[int](), 0
    for mark in marks:
        if held >= (window_rows if mark.of_largest else window_rows * 5 // 4) and mark.at not in cuts[-1:]:
            cuts.append(mark.at)
            held = 0
        held += mark.rows
    return cuts


def _window(schema: TableSchema, begin: int, end: int, key_groups: int) -> Window:
    if schema.shape == "time":
        return Window(begin, end, *group_bounds(begin, end, key_groups))
    bounds = key_group(np.array([begin, end - 1], np.uint64), key_groups)
    return Window(int(bounds[0]), int(bounds[1]) + 1, begin, end - 1)


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
        rows = _window_rows(window, source, schema, times)
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
    rows, rank = pa.concat_tables(parts).combine_chunks(), np.repeat(-np.arange(len(parts)), [len(part) for part in parts])
    by = [layout.numbers(rows, HASH)] if schema.shape == "value" else [layout.numbers(rows, SUB), layout.numbers(rows, HASH)]
    order = np.lexsort(by)
    rows, rank = rows.take(pa.array(order)), rank[order]
    hashes = by[-1][order]
    owner = refine(starts_of(hashes), layout.column_arrays(rows, schema.keys))
    at_bottom = None if bottom is None else bottom[key_group(hashes, len(bottom))]
    return resolve(rows, owner, rank, schema, rules, at_bottom)[0]


def _is_plain(parts: Sequence[pa.Table], schema: TableSchema) -> bool:
    """Whether the newest row of a key is all that counts of it."""
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
    found = rows.take(pa.array(newest))
    return found if len(found) == len(rows) or _same_keys(rows, order, first, found, schema) else None


def _same_keys(rows: pa.Table, order: np.ndarray, first: np.ndarray, found: pa.Table, schema: TableSchema) -> bool:
    """Whether all rows have the key of the row found for their hash. Goes through rows as they stand, run by run: both sides of
    the comparison are then read from front to back, and one of them is not copied."""
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(first) - 1
    theirs, ours = (layout.column_arrays(table, schema.keys) for table in (rows, found))
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


def _window_rows(window: Window, source: Source, schema: TableSchema, times: tuple[int, int] | None) -> pa.Table:
    wanted = source.member[window.low : window.high]
    if not wanted.any():
        return layout.physical(source.schema).empty_table()
    if schema.shape == "time":
        batches = _timed_batches(window, source, times)
    else:
        span = source.reader.span(window.first, window.last)
        batches = [_between(batch, window.first, window.last) for batch in source.reader.fetch(list(span)).values()]
    rows = pa.Table.from_batches(batches, layout.physical(source.schema))
    if wanted.all():
        return rows
    if schema.shape != "time" and (near := np.flatnonzero(wanted))[-1] - near[0] == len(near) - 1:
        low = window.low + int(near[0])
        bounds = group_bounds(low, low + len(near), len(source.member))
        return pa.Table.from_batches([_between(batch, *bounds) for batch in batches], rows.schema)
    return rows.filter(pa.array(source.member[key_group(layout.numbers(rows, HASH), len(source.member))]))


def _between(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    hashes = layout.numbers(batch, HASH)
    begin = int(np.searchsorted(hashes, np.uint64(first), "left"))
    return batch.slice(begin, int(np.searchsorted(hashes, np.uint64(last), "right")) - begin)


def _timed_batches(window: Window, source: Source, times: tuple[int, int] | None) -> list[pa.RecordBatch]:
    reader = source.reader
    span = np.array(reader.span(window.low, window.high - 1), np.int64)
    if times is not None and len(span):
        # A chunk within one key group is sorted by time; clears stand first, with a sub-key of 0, and always count.
        alone = (reader.first[span] == reader.last[span]) & (reader.first_sub[span] > 0)
        outside = ~_at_or_after(reader.last_sub[span], times[0]) | _at_or_after(reader.first_sub[span], times[1])
        span = span[~(alone & outside)]
    batches = []
    for batch in reader.fetch(span.tolist()).values():
        hashes, sub = layout.numbers(batch, HASH), layout.numbers(batch, SUB)
        keep = (hashes >= np.uint64(window.first)) & (hashes <= np.uint64(window.last))
        if times is not None:
            keep &= (_at_or_after(sub, times[0]) & ~_at_or_after(sub, times[1])) | (layout.numbers(batch, OP) == CLEAR)
        batches.append(batch if keep.all() else batch.filter(pa.array(keep)))
    return batches


def _at_or_after(sub: np.ndarray, end: int) -> np.ndarray:
    """``sub >= end``, where ``end`` may be one past the largest number of 64 bits."""
    return np.zeros(len(sub), bool) if end >= 1 << 64 else sub >= np.uint64(end)


def in_time_order(rows: pa.Table, key_groups: int) -> pa.Table:
    """Rows of a time table by (key group, time, hash)."""
    hashes = layout.numbers(rows, HASH)
    return rows.take(pa.array(np.lexsort((hashes, layout.numbers(rows, SUB), key_group(hashes, key_groups)))))
