"""The cache of verified chunks against a model: what is used least goes first, and never more is held than allowed."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.store.run.chunk_cache import ChunkCache


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(range(rows), pa.int64())})


def held(cache: ChunkCache, chunks: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [chunk for chunk in chunks if cache.get(*chunk) is not None]


@pytest.mark.parametrize("kept", [set(), {"a"}, {"a", "b"}, {"b", "none"}, {"a", "b", "c"}], ids=sorted)
def test_only_the_chunks_of_some_runs_are_kept(kept: set[str]) -> None:
    chunks = [(run, number) for run in "abc" for number in range(2)]
    cache = ChunkCache(6 * 80)
    for run, number in chunks:
        cache.put(run, number, batch(10), held=run == "c")
    cache.drop_all_but(kept)
    assert held(cache, chunks) == [chunk for chunk in chunks if chunk[0] in kept]
    for number in range(6):
        cache.put("new", number, batch(10), held=False)
    assert held(cache, [("new", number) for number in range(6)]) == [("new", number) for number in range(6)], "its bytes are free"


STEPS = st.lists(st.tuples(st.sampled_from(["put", "held", "get"]), st.integers(0, 9), st.integers(1, 12)), max_size=40)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(STEPS, st.sampled_from([0, 80, 200, 10_000]))
def test_what_is_used_least_goes_first(steps: list[tuple[str, int, int]], limit: int) -> None:
    cache, model = ChunkCache(limit), dict[int, tuple[int, int]]()
    for what, number, rows in steps:
        if what == "get":
            found = cache.get("run", number)
            assert (found is None) == (number not in model)
            if found is not None:
                assert len(found) == model[number][0]
                model[number] = model.pop(number)
            continue
        cost = 8 * rows if what == "put" else 0
        cache.put("run", number, batch(rows), held=what == "held")
        if number not in model and cost <= limit:
            model[number] = (rows, cost)
            while sum(bytes_ for _, bytes_ in model.values()) > limit:
                model.pop(next(iter(model)))
    assert [number for number in range(10) if cache.get("run", number) is not None] == sorted(model)
