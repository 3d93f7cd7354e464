from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from floodplain.tiers.ranges import coalesce, cut

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=12)


@given(RANGES, st.integers(0, 40))
def test_joined_ranges_cover_all_and_are_apart(ranges: list[tuple[int, int]], gap: int) -> None:
    joined = coalesce(ranges, gap)
    wanted = {at for offset, length in ranges for at in range(offset, offset + length)}
    covered = [at for offset, length in joined for at in range(offset, offset + length)]
    assert wanted <= set(covered)
    assert len(covered) == len(set(covered))
    assert all(after[0] - sum(before) > gap for before, after in pairwise(joined))
    assert all(offset in wanted and offset + length - 1 in wanted for offset, length in joined)


@given(RANGES, st.integers(0, 40), st.integers(0, 400))
def test_cutting_gives_back_each_range_as_far_as_the_blob_goes(ranges: list[tuple[int, int]], gap: int, size: int) -> None:
    blob = bytes(at % 251 for at in range(size))
    pieces = [(0, pa.py_buffer(b""))]
    pieces += [(at, pa.py_buffer(blob[at : at + length])) for at, length in coalesce(ranges, gap) if at < size]
    assert [piece.to_pybytes() for piece in cut(ranges, pieces)] == [blob[at : at + length] for at, length in ranges]
