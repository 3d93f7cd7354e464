"""Where the rows of one key are cut into pieces: goldens for runs drawn by hand, and what must hold for any."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.store.read.key_range_reader import plan

KEY, OTHER = np.uint64(7), np.uint64(9)
END = 1 << 64


@dataclass
class Chunks:
    """What a plan sees of a run: per chunk its first hash and sub-key, and its bytes."""

    first: np.ndarray
    first_sub: np.ndarray
    decoded_bytes: np.ndarray


@dataclass
class Run:
    reader: Chunks


def run(*chunks: tuple[int, int], hash_: np.uint64 = KEY) -> Any:
    subs, counts = [sub for sub, _ in chunks], [count for _, count in chunks]
    return Run(Chunks(np.full(len(chunks), hash_), np.array(subs, np.uint64), np.array(counts, np.int64)))


GOLDENS: dict[str, tuple[list[Any], list[int]]] = {
    "nothing": ([], []),
    "one small chunk": ([run((3, 4))], []),
    "one chunk of a piece": ([run((3, 10))], [3]),
    "chunks of half a piece": ([run((3, 5), (4, 5), (6, 5), (8, 5))], [4, 8]),
    "large and small by turns": ([run((1, 100), (2, 1), (3, 1), (4, 100), (5, 1))], [1, 4]),
    "two runs that interleave": ([run((1, 6), (5, 6)), run((3, 6), (9, 6))], [3, 9]),
    "a large run over a small one": ([run((1, 1), (6, 1)), run((2, 40), (4, 1), (8, 40))], [2, 8]),
    "another key": ([run((1, 50), (2, 50), hash_=OTHER)], []),
    "from the first sub-key on": ([run((0, 50), (END - 1, 50))], [END - 1]),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name: str) -> None:
    runs, cuts = GOLDENS[name]
    assert plan(KEY, runs, 10) == list(pairwise([0, *cuts, END]))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 50)), max_size=8), max_size=4),
    st.sampled_from([0, 1, 7, 30, 1000]),
)
def test_pieces_are_about_as_large_as_asked_for(drawn: list[list[tuple[int, int]]], piece_rows: int) -> None:
    """Counting the rows of a chunk where it begins, none is larger than asked for by more than the chunks of one beginning, and
    no two neighbours could have been one."""
    runs = [run(*sorted(chunks)) for chunks in drawn]
    chunks = sorted(chunk for source in drawn for chunk in source)
    ranges = plan(KEY, runs, piece_rows)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == END
    assert all(low < high == next_low for (low, high), (next_low, _) in pairwise(ranges))
    sizes = [sum(count for sub, count in chunks if low <= sub < high) for low, high in ranges]
    begun = [sum(count for sub, count in chunks if sub == low) for low, _ in ranges]
    for size, first in zip(sizes, begun, strict=True):
        assert size - first < max(piece_rows, 1)
    for (size, _), (_, first) in pairwise(zip(sizes, begun, strict=True)):
        assert size + first > 0
    assert len(ranges) <= sum(sizes) // max(piece_rows, 1) + 1
