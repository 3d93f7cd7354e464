"""Places found in a directory are those that a search finds, however the numbers are spread."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.store.run.interpolation_index import Directory

RNG = np.random.default_rng(5)
SPREADS = {
    "even": RNG.integers(0, 1 << 63, 5000, dtype=np.uint64),
    "heaps": np.array([*range(2000), *range(1 << 63, (1 << 63) + 3000), (1 << 64) - 1], np.uint64),
    "powers": np.uint64(1) << np.arange(64, dtype=np.uint64),
    "one": np.array([7], np.uint64),
    "neighbours": np.arange(100, 1100, dtype=np.uint64),
}


def found(present: np.ndarray, wanted: np.ndarray) -> tuple[list[int], list[int]]:
    places, rows = Directory(present).find(wanted)
    return places.tolist(), rows.tolist()


def searched(present: np.ndarray, wanted: np.ndarray) -> tuple[list[int], list[int]]:
    rows = {int(number): row for row, number in enumerate(present)}
    there = [place for place, number in enumerate(wanted.tolist()) if number in rows]
    return there, [rows[int(wanted[place])] for place in there]


@pytest.mark.parametrize("spread", SPREADS)
def test_what_is_there_is_found_and_nothing_else(spread: str) -> None:
    present = np.unique(SPREADS[spread])
    others = RNG.integers(0, 1 << 64, 300, dtype=np.uint64)
    near = np.concatenate([present - np.uint64(1), present, present + np.uint64(1), others])
    wanted = np.unique(near)
    assert found(present, wanted) == searched(present, wanted)
    assert found(present, present) == (list(range(len(present))), list(range(len(present))))


@given(st.sets(st.integers(0, (1 << 64) - 1), min_size=1, max_size=60), st.sets(st.integers(0, (1 << 64) - 1), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_numbers(present: set[int], others: set[int]) -> None:
    held = np.array(sorted(present), np.uint64)
    wanted = np.array(sorted(present | others), np.uint64)
    assert found(held, wanted) == searched(held, wanted)


def test_nothing_is_wanted() -> None:
    assert found(np.array([1, 5], np.uint64), np.empty(0, np.uint64)) == ([], [])
    assert found(np.array([10, 50], np.uint64), np.array([1, 2, 99], np.uint64)) == ([], [])


@pytest.mark.parametrize("step", [1, 3, 1 << 20, 1 << 50])
@pytest.mark.parametrize("first", [0, 1, 1 << 40, (1 << 63) - 5, (1 << 63) + 5, (1 << 64) - (1 << 61)])
def test_wherever_the_numbers_lie_there_is_about_a_bucket_for_each(first: int, step: int) -> None:
    """So a lookup looks at one or two rows. Its size is what the docs of its users promise."""
    count = 1000
    present = np.uint64(first) + np.arange(count, dtype=np.uint64) * np.uint64(step)
    assert count <= 2 * len(Directory(present)._starts) <= 4 * count + 2
    assert Directory(present)._starts.nbytes <= 8 * count + 8
