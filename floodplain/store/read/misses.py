"""Misses: the lookup keys that need chunks which are not at hand, and these chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from floodplain.store.rows import layout
from floodplain.store.rows.layout import MERGE, OP
from floodplain.store.run.lookup_keys import LookupKeys, Source, candidates
from floodplain.store.run.read_ahead import ChunkOf
from floodplain.versions.records.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Misses:
    """A guess: a chunk may come or go at any time. Whoever reads asks again for what is not there."""

    keys: np.ndarray
    """Per lookup key, whether some chunk that it may need is not at hand."""
    chunks: list[ChunkOf]


def misses(lookup_keys: LookupKeys, sources: Sequence[Source], schema: TableSchema) -> Misses:
    """Of a multi-get of these keys. Requires: lookup keys ascend by hash (and sub-key); sources come newest first; no time table.

    Where everything is at hand, no membership filter is asked. Else a key that a newer chunk at hand answers misses nothing.
    """
    none = Misses(np.zeros(len(lookup_keys.hashes), bool), [])
    readers = [source.reader for source in sources if not source.reader.mapped]
    if not any(reader.far(reader.wanted_chunks(lookup_keys.hashes, lookup_keys.subs)) for reader in readers):
        return none
    missing, chunks = none.keys, list[ChunkOf]()
    pending = np.ones(len(missing), bool)
    answers = schema.shape == "value" or lookup_keys.subs is not None
    for source in sources:
        number = candidates(source, lookup_keys, np.flatnonzero(pending))
        subs = None if lookup_keys.subs is None else lookup_keys.subs[number]
        by_chunk = source.reader.keys_by_chunk(lookup_keys.hashes[number], subs)
        far = set(source.reader.far(list(by_chunk)))
        chunks += [(source.reader, chunk) for chunk in by_chunk if chunk in far]
        for chunk in far:
            missing[number[by_chunk[chunk]]] = True
        near = [of for chunk, of in by_chunk.items() if chunk not in far]
        if answers and near:
            of_near = number[np.unique(np.concatenate(near))]
            pending[_answered(source, lookup_keys, of_near[~missing[of_near]])] = False
    return Misses(missing, chunks)


def _answered(source: Source, lookup_keys: LookupKeys, number: np.ndarray) -> np.ndarray:
    """Of these lookup keys, those of which the run has a row that hides all older ones; by hash alone, so it is a guess."""
    subs = None if lookup_keys.subs is None else lookup_keys.subs[number]
    answered = [
        number[hits.key_number[layout.numbers(hits.chunk, OP)[hits.row] != MERGE]]
        for hits in source.reader.find(lookup_keys.hashes[number], subs)
    ]
    return np.concatenate(answered) if answered else number[:0]
