"""Multi-get: all keys of an epoch in one pass over the runs, newest first."""

from collections.abc import Iterator, Mapping, Sequence
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
from floodplain.store.run.lookup_keys import LookupKeys, Source, candidates
from floodplain.store.run.reader import FETCH_BYTES, Hits
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.records.schema import Field, TableSchema

_CONCURRENT_FETCHES = 8
_UNEVEN = 4
"""How much larger rows that are looked up may be than the mean of the chunk with the largest."""

_Chunks: TypeAlias = Mapping[int, pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class _Found:
    rows: pa.Table
    key_number: np.ndarray
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
    lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema, rules: Rules, *, keys: bool = True
) -> tuple[pa.Table, np.ndarray]:
    """Physical rows that the lookup keys resolve to, and for each the number of its key; in no particular order. Sources come
    newest first.

    ``keys``: whether rows have their keys and hashes. Who asked has them, and copying them costs more than finding the rows.
    """
    order = lookup_keys.order()
    if order is not None:
        lookup_keys = lookup_keys.take(order)
    portions = _portions(lookup_keys, sources, schema)
    if len(portions) == 1:
        rows, key_number = _portion(lookup_keys, sources, schema, rules, keys)
    else:
        answers = [_portion(lookup_keys.slice(*bounds), sources, schema, rules, keys) for bounds in portions]
        rows = pa.concat_tables([rows for rows, _ in answers])
        key_number = np.concatenate([start + part for (start, _), (_, part) in zip(portions, answers, strict=True)])
    return rows, key_number if order is None else order[key_number]


def _portions(lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema) -> list[tuple[int, int]]:
    """Ranges of lookup keys whose rows fit in one Arrow array, as far as footers tell. Nearly always it is one."""
    done, open_ = list[tuple[int, int]](), [(0, len(lookup_keys.hashes))]
    while open_:
        start, stop = open_.pop()
        if stop - start <= 1 or not _is_large(lookup_keys.slice(start, stop), sources, schema):
            done.append((start, stop))
        else:
            middle = (start + stop) // 2
            open_ += [(middle, stop), (start, middle)]
    return done


def _is_large(lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema) -> bool:
    """Whether the rows of the lookup keys may be more than an Arrow array can hold, as far as footers tell."""
    readers = [source.reader for source in sources]
    total_bytes = sum(int(reader.decoded_bytes.sum()) for reader in readers)
    if schema.shape == "value":
        row_bytes = max((float((reader.decoded_bytes / reader.count).max()) for reader in readers), default=0)
        if _UNEVEN * row_bytes * len(lookup_keys.hashes) <= large_tables.MOST_BYTES:
            return False
    repeats = _repeats(lookup_keys)
    if repeats * total_bytes <= large_tables.MOST_BYTES:
        return False
    wanted = ((reader, reader.wanted_chunks(lookup_keys.hashes, lookup_keys.subs)) for reader in readers)
    return repeats * sum(int(reader.decoded_bytes[chunks].sum()) for reader, chunks in wanted) > large_tables.MOST_BYTES


def _repeats(lookup_keys: LookupKeys) -> int:
    """How often the same rows may be asked for."""
    if lookup_keys.subs is not None or not len(lookup_keys.hashes):
        return 1
    return int(np.diff(np.flatnonzero(starts_of(lookup_keys.hashes)), append=len(lookup_keys.hashes)).max())


def _in_pieces(
    lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema, rules: Rules, keys: bool
) -> tuple[pa.Table, np.ndarray]:
    """The rows of one key that is large."""
    reader = key_range_reader.PieceReader(lookup_keys, sources, schema, rules)
    bounds = key_range_reader.plan(lookup_keys.hashes[0], sources, large_tables.MOST_BYTES // 4)
    rows = pa.concat_tables([reader.read(low, high).select(_columns(schema, keys)) for low, high in bounds])
    return rows, np.zeros(len(rows), np.int64)


def _portion(
    lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema, rules: Rules, keys: bool
) -> tuple[pa.Table, np.ndarray]:
    """As ``multi_get``, of lookup keys that ascend by hash and fit in one Arrow array, or of one."""
    if (
        len(lookup_keys.hashes) == 1
        and lookup_keys.subs is None
        and schema.shape in ("ordered", "hashed")
        and _is_large(lookup_keys, sources, schema)
    ):
        return _in_pieces(lookup_keys, sources, schema, rules, keys)
    pending, unsettled = np.arange(len(lookup_keys.hashes)), np.ones(len(lookup_keys.hashes), bool)
    held = _prefetch(lookup_keys, pending, sources)
    newest = None if keys else newest_values(lookup_keys, sources, schema, held)
    if newest is not None:
        return newest
    parts: list[_Found] = []
    for age, source in enumerate(sources):
        if not len(pending):
            break
        parts_of_run = _search(source, lookup_keys, pending, schema, -age, held.get(age, {}), keys)
        if not parts_of_run:
            continue
        for part in parts_of_run:
            unsettled[_settled(part, lookup_keys, schema)] = False
        parts += parts_of_run
        pending = np.flatnonzero(unsettled)
    if not parts:
        return layout.physical(schema).empty_table().select(_columns(schema, keys)), np.empty(0, np.int64)
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    key_number = np.concatenate([part.key_number for part in parts])
    if not _plain(rows, schema):
        rows, key_number = resolve(rows, key_number, np.concatenate([part.rank for part in parts]), schema, rules)
    elif not (put := layout.numbers(rows, OP) == PUT).all():
        rows, key_number = rows.filter(pa.array(put)), key_number[put]
    return rows, key_number


def _plain(rows: pa.Table, schema: TableSchema) -> bool:
    """Whether the first row found for a key is the answer: no operands to fold, nothing that expires, one row per key."""
    if schema.shape != "value" or schema.ttl_ms or any(field.ttl_ms for field in schema.values):
        return False
    return not (layout.numbers(rows, OP) == MERGE).any()


def _settled(part: _Found, lookup_keys: LookupKeys, schema: TableSchema) -> np.ndarray:
    """The lookup keys for which nothing older than these rows matters."""
    op = layout.numbers(part.rows, OP)
    settles = op != MERGE if schema.shape == "value" or lookup_keys.subs is not None else op == CLEAR
    return part.key_number if settles.all() else part.key_number[settles]


def _columns(schema: TableSchema, keys: bool) -> list[str]:
    left_out = set() if keys else {HASH, *map(layout.column, schema.keys)}
    return [name for name in layout.physical(schema).names if name not in left_out]


def _search(
    source: Source, lookup_keys: LookupKeys, pending: np.ndarray, schema: TableSchema, rank: int, held: _Chunks, keys: bool
) -> list[_Found]:
    number = candidates(source, lookup_keys, pending)
    if not len(number):
        return []
    subs = None if lookup_keys.subs is None else lookup_keys.subs[number]
    finds = _hits(source, lookup_keys, number, subs, schema, held, clears=False)
    matches = [_verified(hits, number, lookup_keys, source, schema, keys, clears=False) for hits in finds if len(hits.row)]
    if subs is not None and source.reader.ref.deletes:
        clears = _hits(source, lookup_keys, number, np.zeros_like(subs), schema, held, clears=True)
        matches += [_verified(hits, number, lookup_keys, source, schema, keys, clears=True) for hits in clears if len(hits.row)]
    return [_Found(rows, key_number, np.full(len(key_number), rank, np.int64)) for rows, key_number in matches if len(key_number)]


def _hits(
    source: Source,
    lookup_keys: LookupKeys,
    number: np.ndarray,
    subs: np.ndarray | None,
    schema: TableSchema,
    held: _Chunks,
    *,
    clears: bool,
) -> Iterator[Hits]:
    """Rows that may answer the lookup keys of these numbers. A hash that several have is looked for once."""
    hashes = lookup_keys.hashes[number]
    first = first_of_each(hashes, subs)
    if len(first) == len(number):
        yield from source.reader.find(hashes, subs, held)
        return
    pairs, key_columns = _told_apart(lookup_keys, source.schema, schema, clears=clears)
    for hits in source.reader.find(hashes[first], None if subs is None else subs[first], held):
        stored = partial(_stored, hits.chunk, pairs)
        yield spread(hits, first, len(number), stored, lambda at: [column.take(pa.array(number[at])) for column in key_columns])


def _stored(chunk: pa.RecordBatch, pairs: Sequence[tuple[Field, Field]], rows: np.ndarray) -> list[pa.Array]:
    return [reshaped(layout.at_rows(chunk.column(layout.column(old)), rows), old, new) for old, new in pairs]


def _told_apart(
    lookup_keys: LookupKeys, old: TableSchema, new: TableSchema, *, clears: bool
) -> tuple[list[tuple[Field, Field]], list[pa.Array]]:
    """What tells rows of one hash (and sub-key) apart: columns as they were written and as they are now, and the lookup keys'."""
    fields, columns = list(zip(old.keys, new.keys, strict=True)), list(lookup_keys.keys)
    if lookup_keys.subkeys and not clears:
        fields += zip(layout.stored_subkeys(old), layout.stored_subkeys(new), strict=True)
        columns += lookup_keys.subkeys
    return fields, columns


def _verified(
    hits: Hits, number: np.ndarray, lookup_keys: LookupKeys, source: Source, schema: TableSchema, keys: bool, *, clears: bool
) -> tuple[pa.Table, np.ndarray]:
    """Hits whose keys (and sub-keys) are equal, not only their hashes, as rows of the newest schema; and their lookup keys."""
    key_number, row = number[hits.key_number], hits.row
    if lookup_keys.subs is not None and len(row):
        is_clear = layout.numbers(hits.chunk, OP)[row] == CLEAR
        key_number, row = key_number[is_clear == clears], row[is_clear == clears]
    rows = pa.Table.from_batches([layout.at_rows(hits.chunk.select(_columns(source.schema, keys)), row)])
    fields, columns = _told_apart(lookup_keys, source.schema, schema, clears=clears)
    if len(row):
        stored = [reshaped(_taken(rows, hits.chunk, layout.column(old), row), old, new) for old, new in fields]
        same = columns_equal(stored, [layout.at_rows(column, key_number) for column in columns])
        if not same.all():
            rows, key_number = rows.filter(pa.array(same)), key_number[same]
    return adapt(rows, source.schema, schema), key_number


def _taken(rows: pa.Table, chunk: pa.RecordBatch, name: str, places: np.ndarray) -> pa.Array:
    """A column of the rows, which were taken from the chunk at these places, maybe without it."""
    return layout.one_array(rows.column(name)) if name in rows.column_names else layout.at_rows(chunk.column(name), places)


def _prefetch(lookup_keys: LookupKeys, pending: np.ndarray, sources: Sequence[Source]) -> dict[int, _Chunks]:
    """Where chunks must travel, ask all runs at once: waiting for one after the other costs more than a chunk too many.

    Not where that would bring too much into memory; then each run is asked in its turn, a few chunks at a time.
    """
    remote = {age: source for age, source in enumerate(sources) if not source.reader.mapped}
    if not any(source.reader.far(_chunks_of(source, lookup_keys, pending)) for source in remote.values()):
        return {}
    wanted = {age: _chunks_wanted(source, lookup_keys, pending) for age, source in remote.items()}
    sizes = (int(sources[age].reader.decoded_bytes[chunks].sum()) for age, chunks in wanted.items())
    if len(wanted) < 2 or sum(sizes) > FETCH_BYTES:
        return {}
    ages, blobs = list(wanted), sources[next(iter(wanted))].reader.blobs
    fetched = fan_out(blobs, lambda age: sources[age].reader.fetch(wanted[age]), ages, _CONCURRENT_FETCHES)
    return dict(zip(ages, fetched, strict=True))


def _chunks_wanted(source: Source, lookup_keys: LookupKeys, pending: np.ndarray) -> list[int]:
    return _chunks_of(source, lookup_keys, candidates(source, lookup_keys, pending))


def _chunks_of(source: Source, lookup_keys: LookupKeys, wanted: np.ndarray) -> list[int]:
    subs = None if lookup_keys.subs is None else lookup_keys.subs[wanted]
    return source.reader.wanted_chunks(lookup_keys.hashes[wanted], subs)
