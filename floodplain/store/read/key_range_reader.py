"""Range scans of one key by sub-key, so that a map of a million entries is read in bounded memory."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from floodplain.keys import columns_equal, key_group
from floodplain.store.rows import layout
from floodplain.store.rows.evolution import adapt
from floodplain.store.rows.layout import CLEAR, OP
from floodplain.store.rows.resolve import Rules, resolve
from floodplain.store.run import row_position
from floodplain.store.run.lookup_keys import LookupKeys, Source
from floodplain.versions.records.schema import TableSchema

_END = 1 << 64


def plan(hash_: np.uint64, sources: Sequence[Source], piece_bytes: int) -> list[tuple[int, int]]:
    """Half-open ranges of ``_sub`` that cover the key, of about ``piece_bytes``, decoded, cut where a chunk begins."""
    marks, counts = [np.zeros(1, np.uint64)], [np.zeros(1, np.int64)]
    for source in sources:
        inside = np.flatnonzero(source.reader.first == hash_)
        marks.append(source.reader.first_sub[inside])
        counts.append(source.reader.decoded_bytes[inside])
    subs, sizes = np.concatenate(marks), np.concatenate(counts)
    order = np.argsort(subs, kind="stable")
    steps = np.cumsum(sizes[order]) // max(piece_bytes, 1)
    cuts = np.unique(subs[order][1:][np.diff(steps) > 0]).tolist()
    return list(pairwise([0, *(cut for cut in cuts if cut), _END]))


class PieceReader:
    """Reads ranges of one key, from the lowest on. Clears stand before all sub-keys and count for every later piece."""

    def __init__(self, key_number: LookupKeys, sources: Sequence[Source], schema: TableSchema, rules: Rules) -> None:
        self._hash = key_number.hashes[0]
        self._keys = key_number.keys
        self._schema = schema
        self._rules = rules
        self._sources = [
            (-age, source)
            for age, source in enumerate(sources)
            if source.member[key_group(key_number.hashes[:1], len(source.member))[0]]
        ]
        self._clears: list[tuple[pa.Table, np.ndarray]] = []

    def read(self, low: int, high: int) -> pa.Table:
        """The physical rows that count with ``low <= _sub < high``. Requires: the range that starts at 0 was read first."""
        parts = []
        for rank, source in self._sources:
            rows = self._rows(source, low, high)
            if len(rows):
                parts.append((rows, np.full(len(rows), rank, np.int64)))
        if low == 0:
            self._clears = [
                (rows.filter(pa.array(mask)), ranks[mask]) for rows, ranks in parts if (mask := _is_clear(rows)).any()
            ]
        else:
            parts += self._clears
        if not parts:
            return layout.physical(self._schema).empty_table()
        rows = pa.concat_tables([rows for rows, _ in parts]).combine_chunks()
        newest = np.concatenate([ranks for _, ranks in parts])
        return resolve(rows, np.zeros(len(rows), np.int64), newest, self._schema, self._rules)[0]

    def _rows(self, source: Source, low: int, high: int) -> pa.Table:
        reader = source.reader
        begin, end = row_position.first_of(int(self._hash)) + low, row_position.first_of(int(self._hash)) + high
        chunks = reader.fetch(list(reader.span(begin, end))).values()
        batches = [row_position.between(batch, source.schema, begin, end, len(source.member)) for batch in chunks]
        rows = pa.Table.from_batches(batches, layout.physical(source.schema)).combine_chunks()
        if not len(rows):
            return rows
        rows = adapt(rows, source.schema, self._schema)
        stored = layout.column_arrays(rows, self._schema.keys)
        lookup_keys = [key.take(pa.array(np.zeros(len(rows), np.int64))) for key in self._keys]
        same = columns_equal(stored, lookup_keys)
        return rows if same.all() else rows.filter(pa.array(same))


def _is_clear(rows: pa.Table) -> np.ndarray:
    return layout.numbers(rows, OP) == CLEAR
