"""Multi-get: all keys of an epoch in one pass over the runs, newest first."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from floodplain.keys import columns_equal
from floodplain.store.read import key_range_reader
from floodplain.store.read.collisions import first_of_each, spread
from floodplain.store.read.newest_fast_path import newest_values
from floodplain.store.rows import large_tables, layout
from floodplain.store.rows.evolution import adapt
from floodplain.store.rows.layout import CLEAR, HASH, MERGE, OP, PUT
from floodplain.store.rows.reshape import reshaped
from floodplain.store.rows.resolve import Rules, resolve
from floodplain.store.rows.row_classes import starts_of
from floodplain.store.run.lookup_keys import Needles, Source, candidates
from floodplain.store.run.reader import FETCH_BYTES, Hits
from floodplain.versions.records.schema import Field, TableSchema

_UNEVEN = 4
"""How much larger rows that are looked up may be than the mean of the chunk with the largest."""

_Chunks: TypeAlias = Mapping[int, pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class _Found:
    rows: pa.Table
    needle: np.ndarray
    rank: np.ndarray


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bounds on the bytes of the rows of some keys."""

    at_least: np.ndarray
    """Per key: the chunks that hold nothing else."""
    at_most: int
    """All keys together: the chunks that they touch, decoded."""


def footprint(hashes: np.ndarray, sources: Sequence[Source]) -> Footprint:
    """Requires: no source is of a time table, whose chunks are not in the order of hashes."""
    at_least, at_most = np.zeros(len(hashes), np.int64), 0
    for source in sources:
        reader = source.reader
        sizes = reader.decoded_bytes
        low, high = np.searchsorted(reader.last, hashes, "left"), np.searchsorted(reader.first, hashes, "right")
        hit = np.flatnonzero(high > low)
        first, last, of = low[hit], high[hit] - 1, hashes[hit]
        ends = np.append(0, np.cumsum(sizes))
        own = ends[last + 1] - ends[first]
        shared_first = reader.first[first] != of
        own -= np.where(shared_first, sizes[first], 0)
        own -= np.where((reader.last[last] != of) & ~(shared_first & (first == last)), sizes[last], 0)
        at_least[hit] += own
        touched = np.zeros(len(sizes) + 1, np.int64)
        np.add.at(touched, first, 1)
        np.add.at(touched, last + 1, -1)
        at_most += int(sizes[np.cumsum(touched[:-1]) > 0].sum())
    return Footprint(at_least, at_most)


def multi_get(
    needles: Needles, sources: Sequence[Source], schema: TableSchema, rules: Rules, *, keys: bool = True
) -> tuple[pa.Table, np.ndarray]:
    """Physical rows that count for the needles, and the needle of each; in no particular order. Sources come newest first.

    ``keys``: whether rows have their keys and hashes. Who asked has them, and copying them costs more than finding the rows.
    """
    order = needles.order()
    if order is not None:
        needles = needles.take(order)
    portions = _portions(needles, sources, schema)
    if len(portions) == 1:
        rows, needle = _portion(needles, sources, schema, rules, keys)
    else:
        found = [_portion(needles.slice(*bounds), sources, schema, rules, keys) for bounds in portions]
        rows = pa.concat_tables([rows for rows, _ in found])
        needle = np.concatenate([start + part for (start, _), (_, part) in zip(portions, found, strict=True)])
    return rows, needle if order is None else order[needle]


def _portions(needles: Needles, sources: Sequence[Source], schema: TableSchema) -> list[tuple[int, int]]:
    """Ranges of needles whose rows fit in one Arrow array, as far as footers tell. Nearly always it is one."""
    done, open_ = list[tuple[int, int]](), [(0, len(needles.hashes))]
    while open_:
        start, stop = open_.pop()
        if stop - start <= 1 or not _is_large(needles.slice(start, stop), sources, schema):
            done.append((start, stop))
        else:
            middle = (start + stop) // 2
            open_ += [(middle, stop), (start, middle)]
    return done


def _is_large(needles: Needles, sources: Sequence[Source], schema: TableSchema) -> bool:
    """Whether the rows of the needles may be more than an Arrow array can hold, as far as footers tell."""
    readers = [source.reader for source in sources]
    total_bytes = sum(int(reader.decoded_bytes.sum()) for reader in readers)
    if schema.shape == "value":
        row_bytes = max((float((reader.decoded_bytes / reader.count).max()) for reader in readers), default=0)
        if _UNEVEN * row_bytes * len(needles.hashes) <= large_tables.MOST_BYTES:
            return False
    repeats = _repeats(needles)
    if repeats * total_bytes <= large_tables.MOST_BYTES:
        return False
    wanted = ((reader, reader.wanted_chunks(needles.hashes, needles.subs)) for reader in readers)
    return repeats * sum(int(reader.decoded_bytes[chunks].sum()) for reader, chunks in wanted) > large_tables.MOST_BYTES


def _repeats(needles: Needles) -> int:
    """How often the same rows may be asked for."""
    if needles.subs is not None or not len(needles.hashes):
        return 1
    return int(np.diff(np.flatnonzero(starts_of(needles.hashes)), append=len(needles.hashes)).max())


def _in_pieces(
    needles: Needles, sources: Sequence[Source], schema: TableSchema, rules: Rules, keys: bool
) -> tuple[pa.Table, np.ndarray]:
    """The rows of one key that is large."""
    reader = key_range_reader.PieceReader(needles, sources, schema, rules)
    bounds = key_range_reader.plan(needles.hashes[0], sources, large_tables.MOST_BYTES // 4)
    rows = pa.concat_tables([reader.read(low, high).select(_columns(schema, keys)) for low, high in bounds])
    return rows, np.zeros(len(rows), np.int64)


def _portion(
    needles: Needles, sources: Sequence[Source], schema: TableSchema, rules: Rules, keys: bool
) -> tuple[pa.Table, np.ndarray]:
    """As ``multi_get``, of needles that ascend by hash and fit in one Arrow array, or of one."""
    if (
        len(needles.hashes) == 1
        and needles.subs is None
        and schema.shape in ("ordered", "hashed")
        and _is_large(needles, sources, schema)
    ):
        return _in_pieces(needles, sources, schema, rules, keys)
    pending, unsettled = np.arange(len(needles.hashes)), np.ones(len(needles.hashes), bool)
    held = _prefetch(needles, pending, sources)
    newest = None if keys else newest_values(needles, sources, schema, held)
    if newest is not None:
        return newest
    parts: list[_Found] = []
    for age, source in enumerate(sources):
        if not len(pending):
            break
        found = _search(source, needles, pending, schema, -age, held.get(age, {}), keys)
        if not found:
            continue
        for part in found:
            unsettled[_settled(part, needles, schema)] = False
        parts += found
        pending = np.flatnonzero(unsettled)
    if not parts:
        return layout.physical(schema).empty_table().select(_columns(schema, keys)), np.empty(0, np.int64)
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    needle = np.concatenate([part.needle for part in parts])
    if not _plain(rows, schema):
        rows, needle = resolve(rows, needle, np.concatenate([part.rank for part in parts]), schema, rules)
    elif not (put := layout.numbers(rows, OP) == PUT).all():
        rows, needle = rows.filter(pa.array(put)), needle[put]
    return rows, needle


def _plain(rows: pa.Table, schema: TableSchema) -> bool:
    """Whether the first row found for a key is the answer: no operands to fold, nothing that expires, one row per key."""
    if schema.shape != "value" or schema.ttl_ms or any(field.ttl_ms for field in schema.values):
        return False
    return not (layout.numbers(rows, OP) == MERGE).any()


def _settled(part: _Found, needles: Needles, schema: TableSchema) -> np.ndarray:
    """The needles for which nothing older than these rows matters."""
    op = layout.numbers(part.rows, OP)
    settles = op != MERGE if schema.shape == "value" or needles.subs is not None else op == CLEAR
    return part.needle if settles.all() else part.needle[settles]


def _columns(schema: TableSchema, keys: bool) -> list[str]:
    left_out = set() if keys else {HASH, *map(layout.column, schema.keys)}
    return [name for name in layout.physical(schema).names if name not in left_out]


def _search(
    source: Source, needles: Needles, pending: np.ndarray, schema: TableSchema, rank: int, held: _Chunks, keys: bool
) -> list[_Found]:
    number = candidates(source, needles, pending)
    if not len(number):
        return []
    subs = None if needles.subs is None else needles.subs[number]
    finds = _hits(source, needles, number, subs, schema, held, clears=False)
    found = [_verified(hits, number, needles, source, schema, keys, clears=False) for hits in finds if len(hits.row)]
    if subs is not None and source.reader.ref.deletes:
        clears = _hits(source, needles, number, np.zeros_like(subs), schema, held, clears=True)
        found += [_verified(hits, number, needles, source, schema, keys, clears=True) for hits in clears if len(hits.row)]
    return [_Found(rows, needle, np.full(len(needle), rank, np.int64)) for rows, needle in found if len(needle)]


def _hits(
    source: Source,
    needles: Needles,
    number: np.ndarray,
    subs: np.ndarray | None,
    schema: TableSchema,
    held: _Chunks,
    *,
    clears: bool,
) -> Iterator[Hits]:
    """Rows that may answer the needles of these numbers. A hash that several have is looked for once."""
    hashes = needles.hashes[number]
    first = first_of_each(hashes, subs)
    if len(first) == len(number):
        yield from source.reader.find(hashes, subs, held)
        return
    pairs, asked = _told_apart(needles, source.schema, schema, clears=clears)
    for hits in source.reader.find(hashes[first], None if subs is None else subs[first], held):
        stored = partial(_stored, hits.chunk, pairs)
        yield spread(hits, first, len(number), stored, lambda at: [column.take(pa.array(number[at])) for column in asked])


def _stored(chunk: pa.RecordBatch, pairs: Sequence[tuple[Field, Field]], rows: np.ndarray) -> list[pa.Array]:
    return [reshaped(layout.at_rows(chunk.column(layout.column(old)), rows), old, new) for old, new in pairs]


def _told_apart(
    needles: Needles, old: TableSchema, new: TableSchema, *, clears: bool
) -> tuple[list[tuple[Field, Field]], list[pa.Array]]:
    """What tells rows of one hash (and sub-key) apart: columns as they were written and as they are now, and the needles'."""
    fields, columns = list(zip(old.keys, new.keys, strict=True)), list(needles.keys)
    if needles.subkeys and not clears:
        fields += zip(layout.stored_subkeys(old), layout.stored_subkeys(new), strict=True)
        columns += needles.subkeys
    return fields, columns


def _verified(
    hits: Hits, number: np.ndarray, needles: Needles, source: Source, schema: TableSchema, keys: bool, *, clears: bool
) -> tuple[pa.Table, np.ndarray]:
    """Hits whose keys (and sub-keys) are equal, not only their hashes, as rows of the newest schema; and their needles."""
    needle, row = number[hits.needle], hits.row
    if needles.subs is not None and len(row):
        is_clear = layout.numbers(hits.chunk, OP)[row] == CLEAR
        needle, row = needle[is_clear == clears], row[is_clear == clears]
    rows = pa.Table.from_batches([layout.at_rows(hits.chunk.select(_columns(source.schema, keys)), row)])
    fields, columns = _told_apart(needles, source.schema, schema, clears=clears)
    if len(row):
        stored = [reshaped(_taken(rows, hits.chunk, layout.column(old), row), old, new) for old, new in fields]
        same = columns_equal(stored, [layout.at_rows(column, needle) for column in columns])
        if not same.all():
            rows, needle = rows.filter(pa.array(same)), needle[same]
    return adapt(rows, source.schema, schema), needle


def _taken(rows: pa.Table, chunk: pa.RecordBatch, name: str, places: np.ndarray) -> pa.Array:
    """A column of the rows, which were taken from the chunk at these places, maybe without it."""
    return layout.one_array(rows.column(name)) if name in rows.column_names else layout.at_rows(chunk.column(name), places)


def _prefetch(needles: Needles, pending: np.ndarray, sources: Sequence[Source]) -> dict[int, _Chunks]:
    """Where chunks must travel, ask all runs at once: waiting for one after the other costs more than a chunk too many.

    Not where that would bring too much into memory; then each run is asked in its turn, a few chunks at a time.
    """
    wanted = {age: _chunks_wanted(source, needles, pending) for age, source in enumerate(sources) if not source.reader.mapped}
    sizes = (int(sources[age].reader.decoded_bytes[chunks].sum()) for age, chunks in wanted.items())
    if len(wanted) < 2 or sum(sizes) > FETCH_BYTES:
        return {}
    with ThreadPoolExecutor(min(8, len(wanted))) as pool:
        fetched = pool.map(lambda age: sources[age].reader.fetch(wanted[age]), wanted)
        return dict(zip(wanted, fetched, strict=True))


def _chunks_wanted(source: Source, needles: Needles, pending: np.ndarray) -> list[int]:
    wanted = candidates(source, needles, pending)
    subs = None if needles.subs is None else needles.subs[wanted]
    return source.reader.wanted_chunks(needles.hashes[wanted], subs)
