"""Order and identity of rows by their hashes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.store.rows.row_classes import hash_order, refine, starts_of

CLOSE = st.integers(0, 7).map(lambda low: (5 << 40) + low)
"""Hashes that differ only in bits that give way to a row's place."""
HASHES = st.lists(st.one_of(st.integers(0, (1 << 64) - 1), CLOSE), max_size=200)


@settings(deadline=None)
@given(HASHES)
def test_hash_order_is_the_stable_order(hashes):
    array = np.array(hashes, np.uint64)
    assert hash_order(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("count", [1 << 12, (1 << 12) + 1])
def test_hash_order_keeps_equal_hashes_as_they_stand(count):
    hashes = np.random.default_rng(3).integers(0, 1 << 64, count // 4, dtype=np.uint64).repeat(4)
    np.random.default_rng(4).shuffle(hashes)
    assert (hash_order(hashes) == np.argsort(hashes, kind="stable")).all()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=60))
def test_refining_by_an_order_is_refining_what_is_ordered(rows):
    hashes = np.array([row[0] for row in rows], np.uint64)
    keys = pa.array([row[1] for row in rows], pa.string())
    order = hash_order(hashes)
    first = starts_of(hashes[order]) if len(rows) else np.empty(0, bool)
    assert refine(first, [keys], order).tolist() == refine(first, [keys.take(pa.array(order))]).tolist()
