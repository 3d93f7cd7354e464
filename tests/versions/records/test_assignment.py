"""Rows by slot."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from floodplain.versions.records.assignment import order_by_slot


@given(st.data(), st.sampled_from([1, 2, 7, 1 << 16, (1 << 16) + 1]))
def test_rows_of_a_slot_keep_their_order(data, slots):
    slot_of_row = data.draw(arrays.arrays(np.int64, st.integers(0, 40), elements=st.integers(0, slots - 1)))
    order, bounds = order_by_slot(slot_of_row, slots)
    assert len(bounds) == slots + 1
    wanted = [[row for row, its in enumerate(slot_of_row) if its == slot] for slot in set(slot_of_row.tolist())]
    assert [order[bounds[slot] : bounds[slot + 1]].tolist() for slot in set(slot_of_row.tolist())] == wanted
    assert bounds[-1] == len(slot_of_row) and sorted(order.tolist()) == list(range(len(slot_of_row)))
