"""The bounds on the bytes of some keys, by which a prefetch is planned: never above what a key alone takes, never below all."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from floodplain.keys import hash_columns
from floodplain.store.read.lookup import footprint
from floodplain.store.rows.definition import map_table
from floodplain.store.run.lookup_keys import Source
from tests.store import forge

PAGES = map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.string()})
SETTINGS = replace(forge.SETTINGS, chunk_bytes=400)


def sources(tier: str) -> list[Source]:
    """Runs of many chunks: keys that share theirs, a key that fills several, one that is in one run only."""
    blobs = forge.objects() if tier == "object" else forge.memory()
    store = forge.with_table(PAGES, blobs, SETTINGS)
    for many in (1, 3, 60):
        keys = [key for key in range(12) for _ in range(many if key % 4 == 0 else 1)]
        rows = {"k": keys, "s": range(len(keys)), "v": [f"{many} {n}" * 3 for n in range(len(keys))]}
        forge.write(store, "t", ("put", rows))
    forge.write(store, "t", ("put", {"k": [99], "s": [0], "v": ["alone"]}))
    return store.open_runs.sources(store.head, "t")


def chunks(source: Source) -> list[tuple[int, int, int]]:
    """First and last hash of each, and its bytes in memory."""
    reader = source.reader
    return [
        (int(first), int(last), int(size))
        for first, last, size in zip(reader.first, reader.last, reader.decoded_bytes, strict=True)
    ]


@pytest.mark.parametrize("tier", ["memory", "object"])
@pytest.mark.parametrize("wanted", [[0], [4, 8], list(range(12)), [99], [500], [0, 99, 500]], ids=str)
def test_bounds_are_those_of_the_chunks(tier: str, wanted: list[int]) -> None:
    hashes = np.sort(hash_columns([pa.array(wanted, pa.int64())]))
    found = footprint(hashes, runs := sources(tier))
    every = [chunk for source in runs for chunk in chunks(source)]
    assert len(every) > 2 * len(runs), "some runs have several chunks"
    own = [sum(size for first, last, size in every if first == last == hash_) for hash_ in hashes.tolist()]
    assert found.at_least.tolist() == own
    assert found.at_most == sum(size for first, last, size in every if any(first <= hash_ <= last for hash_ in hashes.tolist()))
